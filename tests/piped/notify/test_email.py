# SPDX-License-Identifier: Apache-2.0
"""E-mails reach a real SMTP server, with TLS and authentication as configured."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.policy import SMTP, default
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.piped_notifications import ADDRESS, EmailSpec, ReceiverSpec, is_mail_address
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.piped.notify.deployment_events import deployment_event
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.piped.notify.message import ConsoleLinks
from pipecd.piped.notify.notifier import create_receiver
from pipecd.piped.notify.outbox import Delivery
from pipecd.piped.notify.receivers.email import SmtpSession, create_email
from pipecd.piped.notify.template import MessageRenderer
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.notification_pb2 import NotificationEventDeploymentFailed
from servers.polling import eventually
from servers.receivers import Mailbox

Events = dict[EventType, NotificationEvent]
FAILED = EventType.DEPLOYMENT_FAILED


@contextmanager
def open_mailbox(**how: Any) -> Iterator[Mailbox]:
    mailbox = Mailbox(**how)
    try:
        yield mailbox
    finally:
        mailbox.close()


async def send(mailbox: Mailbox, event: NotificationEvent, **fields: Any) -> None:
    spec = {"host": "127.0.0.1", "port": mailbox.port, "tls": "NONE", "from": "cd@example.com", "to": ["team@example.com"], **fields}  # fmt: skip
    receiver = ReceiverSpec.model_validate_json(json.dumps({"name": "mail", "email": spec}))
    async with httpx2.AsyncClient() as client:
        created = create_receiver(receiver, ConsoleLinks("https://cd.example.com", "shop"), client)
        assert created is not None
        await created.send(Delivery(event))


async def test_an_email_has_a_text_and_an_html_part(mailbox: Mailbox, events: Events) -> None:
    await send(mailbox, events[FAILED])
    (mail,) = mailbox.mails
    assert mail.sender == "cd@example.com"
    # The application mentions one person, and one text that is no address.
    assert mail.readers == ("team@example.com", "ann@example.com")
    assert mail.subject == 'Deployment for "cart" was failed'
    assert mail.content["From"] == "PipeCD <cd@example.com>"
    assert "deployment-1@example.com" in mail.content["References"]
    assert mail.content["Auto-Submitted"] == "auto-generated"
    link = "https://cd.example.com/deployments/deployment-1?project=shop"
    assert "it is so" in mail.text()
    assert "Triggered By: ann" in mail.text()
    assert link in mail.text()
    assert f'<a href="{link}">' in mail.text("html")


async def test_user_texts_cannot_inject_headers_or_html(
    mailbox: Mailbox, new_deployment: Callable[..., Deployment]
) -> None:
    created = new_deployment(
        status=5,
        application_name="cart\r\nBcc: eve@example.com",
        status_reason="<script>alert(1)</script>\n.\nQUIT\n.hidden\nÜber",
    )
    await send(mailbox, deployment_event(created))
    (mail,) = mailbox.mails
    assert mail.content["Bcc"] is None
    assert "Bcc: eve@example.com" in mail.subject
    assert "<script>" not in mail.text("html")
    assert "\n.\nQUIT\n.hidden\nÜber" in mail.text()


@pytest.mark.parametrize("mechanisms", ["PLAIN LOGIN", "LOGIN"])
@pytest.mark.parametrize("from_the_first_byte", [True, False])
async def test_tls_and_authentication(
    events: Events,
    certificate: tuple[str, str],
    tmp_path: Path,
    mechanisms: str,
    from_the_first_byte: bool,
) -> None:
    password = tmp_path / "password"
    password.write_text("s3cret word\n")
    with open_mailbox(certificate=certificate, from_the_first_byte=from_the_first_byte, ways=mechanisms) as mailbox:  # fmt: skip
        mailbox.login = "cd:s3cret word"
        await send(
            mailbox,
            events[FAILED],
            tls="TLS" if from_the_first_byte else "STARTTLS",
            caFile=certificate[0],
            username="cd",
            passwordFile=str(password),
        )
        (mail,) = mailbox.mails
    assert mail.was_protected
    assert mail.login == "cd:s3cret word"


async def test_an_untrusted_certificate_stops_the_delivery(
    events: Events, certificate: tuple[str, str]
) -> None:
    with open_mailbox(certificate=certificate) as mailbox:
        with pytest.raises(Unavailable, match="certificate"):
            await send(mailbox, events[FAILED], tls="STARTTLS")
        assert mailbox.mails == []


async def test_a_server_without_starttls_receives_nothing(mailbox: Mailbox, events: Events) -> None:
    with pytest.raises(UserMistake, match="does not offer STARTTLS"):
        await send(mailbox, events[FAILED], tls="STARTTLS", username="u", password="s3cret")
    assert mailbox.mails == []


@pytest.mark.parametrize(
    ("command", "reply", "error"),
    [
        pytest.param("CONNECT", "421 too busy", Unavailable, id="too busy"),
        pytest.param("CONNECT", "554 go away", UserMistake, id="rejected"),
        pytest.param("MAIL", "451 greylisted", Unavailable, id="greylisted"),
        pytest.param("RCPT", "550 nobody of that name", UserMistake, id="an unknown recipient"),
        pytest.param("RCPT", "450 mailbox is busy", Unavailable, id="a busy mailbox"),
        pytest.param("DATA", "552 too large", UserMistake, id="too large"),
        pytest.param("EHLO", "nonsense", Unavailable, id="nonsense"),
        pytest.param("EHLO", "250-" + "x" * 100_000, UserMistake, id="a line that is too long"),
    ],
)
async def test_smtp_replies_decide_whether_to_retry(
    mailbox: Mailbox, events: Events, command: str, reply: str, error: type[PipecdError]
) -> None:
    mailbox.replies[command] = [reply]
    with pytest.raises(error):
        await send(mailbox, events[EventType.PIPED_STARTED])
    assert mailbox.mails == []


async def test_a_rejected_recipient_does_not_stop_the_others(
    mailbox: Mailbox, events: Events
) -> None:
    mailbox.replies["RCPT"] = ["550 nobody of that name"]
    await send(mailbox, events[FAILED])
    assert [mail.readers for mail in mailbox.mails] == [("ann@example.com",)]


async def test_a_wrong_password_is_reported_without_it(mailbox: Mailbox, events: Events) -> None:
    mailbox.login = "cd:right"
    with pytest.raises(UserMistake, match="535") as caught:
        await send(mailbox, events[FAILED], username="cd", password="s3cret-word")
    assert "s3cret-word" not in str(caught.value)


async def test_credentials_may_contain_other_characters_than_ascii(
    mailbox: Mailbox, events: Events
) -> None:
    mailbox.login = "cd:pässwörd"
    await send(mailbox, events[FAILED], username="cd", password="pässwörd")
    (mail,) = mailbox.mails
    assert mail.login == "cd:pässwörd"


def test_a_session_ends_when_it_is_aborted(mailbox: Mailbox) -> None:
    mailbox.replies["EHLO"] = ["250-the rest never comes"]
    spec = EmailSpec(host="127.0.0.1", port=mailbox.port, tls="NONE", sender="a@x", to=("b@x",))
    session, errors = SmtpSession(spec, "", None), list[Exception]()

    def blocks() -> None:
        try:
            session.send(spec.to, b"")
        except PipecdError as e:
            errors.append(e)

    thread = threading.Thread(target=blocks)
    thread.start()
    while mailbox.replies["EHLO"]:
        time.sleep(0.001)
    session.abort()
    # Long before the timeout of the socket.
    thread.join(3)
    assert not thread.is_alive()
    assert isinstance(errors[0], Unavailable)


async def test_a_cancelled_delivery_aborts_its_session(mailbox: Mailbox, events: Events) -> None:
    mailbox.replies["EHLO"] = ["250-the rest never comes"]
    sending = asyncio.create_task(send(mailbox, events[FAILED]))
    await eventually(lambda: not mailbox.replies["EHLO"])
    sending.cancel()
    await asyncio.wait({sending}, timeout=3)
    assert sending.cancelled()


async def test_an_unavailable_server_is_retryable(mailbox: Mailbox, events: Events) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await send(mailbox, events[FAILED], port=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ann",
        "ann@",
        "@x",
        "a b@x",
        "a@x\r\nDATA",
        "<a@x>",
        "a@x,b@x",
        "ü@x",
        'a"@x',
        "a@x>",
        ".a@x",
        "a..b@x",
        "a@x..y",
        "a@[",
        "a@",
    ],
)
def test_invalid_email_addresses(text: str) -> None:
    assert not is_mail_address(text)


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.slow
@given(ANY_TEXT, ANY_TEXT, st.lists(st.from_regex(ADDRESS, fullmatch=True), min_size=1, max_size=3))
def test_any_user_text_becomes_a_valid_email(name: str, reason: str, recipients: list[str]) -> None:
    metadata = NotificationEventDeploymentFailed(
        deployment=Deployment(id="d", application_id="a", application_name=name), reason=reason
    )
    delivery = Delivery(NotificationEvent(FAILED, metadata))
    message = MessageRenderer(ConsoleLinks("https://cd.example.com", "shop")).render(delivery, str)
    content = create_email(message, delivery, recipients[0], tuple(recipients)).as_bytes(
        policy=SMTP
    )
    assert message_from_bytes(content, policy=default)["To"]


@pytest.mark.parametrize("text", ["ann@example.com", "a.b+c@mail.example.com", "a@[127.0.0.1]"])
def test_valid_email_addresses(text: str) -> None:
    assert is_mail_address(text)


@pytest.mark.parametrize(("tls", "port"), [("STARTTLS", 587), ("TLS", 465), ("NONE", 25)])
def test_the_default_port_depends_on_tls(tls: Any, port: int) -> None:
    assert EmailSpec(host="h", tls=tls, sender="a@x", to=("b@x",)).server_port == port
