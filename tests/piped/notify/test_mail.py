# SPDX-License-Identifier: Apache-2.0
"""Mail reaches a real server, protected as it is configured, and says what happened."""

import json
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

from pipecd.config.piped.notification import ADDRESS, EmailSpec, ReceiverSpec, is_mail_address
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.piped.notify.message import Console
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.receivers.choice import choose
from pipecd.piped.notify.receivers.mail import mail
from pipecd.piped.notify.receivers.smtp import stuffed
from pipecd.piped.notify.transition import deployment_is
from pipecd.piped.notify.wording import Wording
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.notification_pb2 import NotificationEventDeploymentFailed
from servers.receivers import Mailbox

Kinds = dict[NoticeKind, Notice]
FAILED = NoticeKind.DEPLOYMENT_FAILED


@contextmanager
def open_mailbox(**how: Any) -> Iterator[Mailbox]:
    mailbox = Mailbox(**how)
    try:
        yield mailbox
    finally:
        mailbox.close()


async def send(mailbox: Mailbox, notice: Notice, **fields: Any) -> None:
    spec = {"host": "127.0.0.1", "port": mailbox.port, "tls": "NONE", "from": "cd@example.com", "to": ["team@example.com"], **fields}  # fmt: skip
    described = ReceiverSpec.model_validate_json(json.dumps({"name": "mail", "email": spec}))
    async with httpx2.AsyncClient() as client:
        chosen = choose(described, Console("https://cd.example.com", "shop"), client)
        assert chosen is not None
        await chosen.send(Letter(notice))


async def test_people_read_what_happened_in_text_and_in_html(
    mailbox: Mailbox, notices: Kinds
) -> None:
    await send(mailbox, notices[FAILED])
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


async def test_what_others_wrote_breaks_neither_header_nor_page(
    mailbox: Mailbox, about_deployment: Callable[..., Deployment]
) -> None:
    made = about_deployment(
        status=5,
        application_name="cart\r\nBcc: eve@example.com",
        status_reason="<script>alert(1)</script>\n.\nQUIT\n.hidden\nÜber",
    )
    await send(mailbox, deployment_is(made))
    (mail,) = mailbox.mails
    assert mail.content["Bcc"] is None
    assert "Bcc: eve@example.com" in mail.subject
    assert "<script>" not in mail.text("html")
    assert "\n.\nQUIT\n.hidden\nÜber" in mail.text()


@pytest.mark.parametrize("ways", ["PLAIN LOGIN", "LOGIN"])
@pytest.mark.parametrize("from_the_first_byte", [True, False])
async def test_mail_is_protected_and_logged_in(
    notices: Kinds,
    certificate: tuple[str, str],
    tmp_path: Path,
    ways: str,
    from_the_first_byte: bool,
) -> None:
    password = tmp_path / "password"
    password.write_text("s3cret word\n")
    with open_mailbox(certificate=certificate, from_the_first_byte=from_the_first_byte, ways=ways) as mailbox:  # fmt: skip
        mailbox.login = "cd:s3cret word"
        await send(
            mailbox,
            notices[FAILED],
            tls="TLS" if from_the_first_byte else "STARTTLS",
            caFile=certificate[0],
            username="cd",
            passwordFile=str(password),
        )
        (mail,) = mailbox.mails
    assert mail.was_protected
    assert mail.login == "cd:s3cret word"


async def test_a_server_that_cannot_be_trusted_gets_no_mail(
    notices: Kinds, certificate: tuple[str, str]
) -> None:
    with open_mailbox(certificate=certificate) as mailbox:
        with pytest.raises(Unavailable, match="certificate"):
            await send(mailbox, notices[FAILED], tls="STARTTLS")
        assert mailbox.mails == []


async def test_without_starttls_nothing_is_sent_in_the_clear(
    mailbox: Mailbox, notices: Kinds
) -> None:
    with pytest.raises(UserMistake, match="does not offer STARTTLS"):
        await send(mailbox, notices[FAILED], tls="STARTTLS", username="u", password="s3cret")
    assert mailbox.mails == []


@pytest.mark.parametrize(
    ("command", "reply", "error"),
    [
        pytest.param("CONNECT", "421 too busy", Unavailable, id="too busy"),
        pytest.param("CONNECT", "554 go away", UserMistake, id="not welcome"),
        pytest.param("MAIL", "451 greylisted", Unavailable, id="to be tried later"),
        pytest.param("RCPT", "550 nobody of that name", UserMistake, id="an unknown reader"),
        pytest.param("RCPT", "450 mailbox is busy", Unavailable, id="a reader who is busy"),
        pytest.param("DATA", "552 too large", UserMistake, id="too large"),
        pytest.param("EHLO", "nonsense", Unavailable, id="nonsense"),
        pytest.param("EHLO", "250-" + "x" * 100_000, Unavailable, id="a line without an end"),
    ],
)
async def test_a_server_that_refuses_is_believed(
    mailbox: Mailbox, notices: Kinds, command: str, reply: str, error: type[PipecdError]
) -> None:
    mailbox.replies[command] = [reply]
    with pytest.raises(error):
        await send(mailbox, notices[NoticeKind.PIPED_STARTED])
    assert mailbox.mails == []


async def test_one_refused_reader_does_not_keep_the_others_from_reading(
    mailbox: Mailbox, notices: Kinds
) -> None:
    mailbox.replies["RCPT"] = ["550 nobody of that name"]
    await send(mailbox, notices[FAILED])
    assert [mail.readers for mail in mailbox.mails] == [("ann@example.com",)]


async def test_a_wrong_password_is_told_without_it(mailbox: Mailbox, notices: Kinds) -> None:
    mailbox.login = "cd:right"
    with pytest.raises(UserMistake, match="535") as caught:
        await send(mailbox, notices[FAILED], username="cd", password="s3cret-word")
    assert "s3cret-word" not in str(caught.value)


async def test_a_server_that_is_away_is_waited_for(mailbox: Mailbox, notices: Kinds) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await send(mailbox, notices[FAILED], port=1)


@given(st.binary(max_size=200) | st.text("a.\r\n", max_size=40).map(str.encode))
def test_no_line_of_a_mail_looks_like_its_end(content: bytes) -> None:
    sent = stuffed(content)
    assert sent.endswith(b"\r\n")
    lines = sent.removesuffix(b"\r\n").split(b"\r\n")
    assert b"." not in lines
    assert not any(b"\n" in line or b"\r" in line for line in lines)


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
def test_what_is_no_address_is_not_written_to(text: str) -> None:
    assert not is_mail_address(text)


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.slow
@given(ANY_TEXT, ANY_TEXT, st.lists(st.from_regex(ADDRESS, fullmatch=True), min_size=1, max_size=3))
def test_whatever_others_wrote_becomes_a_mail(name: str, reason: str, readers: list[str]) -> None:
    facts = NotificationEventDeploymentFailed(
        deployment=Deployment(id="d", application_id="a", application_name=name), reason=reason
    )
    letter = Letter(Notice(FAILED, facts))
    message = Wording(Console("https://cd.example.com", "shop")).of(letter, str)
    content = mail(message, letter, readers[0], tuple(readers)).as_bytes(policy=SMTP)
    assert message_from_bytes(content, policy=default)["To"]


@pytest.mark.parametrize("text", ["ann@example.com", "a.b+c@mail.example.com", "a@[127.0.0.1]"])
def test_an_address_is_one(text: str) -> None:
    assert is_mail_address(text)


@pytest.mark.parametrize(("tls", "port"), [("STARTTLS", 587), ("TLS", 465), ("NONE", 25)])
def test_the_port_follows_from_the_protection(tls: Any, port: int) -> None:
    assert EmailSpec(host="h", tls=tls, sender="a@x", to=("b@x",)).server_port == port
