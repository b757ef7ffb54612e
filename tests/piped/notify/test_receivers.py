# SPDX-License-Identifier: Apache-2.0
"""Each receiver gets an event in its own format, and its errors decide about retries."""

import base64
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.config.piped_notifications import ReceiverSpec
from pipecd.controlplane.webhooks.signature import is_signed
from pipecd.model.document import from_json
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.piped.notify.deployment_events import deployment_event
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.piped.notify.message import ConsoleLinks
from pipecd.piped.notify.notifier import RECEIVERS, create_receiver
from pipecd.piped.notify.outbox import Delivery, Receiver, RetryAfter
from pipecd.piped.notify.receivers.discord import escape as discord_escape
from pipecd.piped.notify.receivers.teams import escape as teams_escape
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.notification_pb2 import NotificationEventDeploymentFailed
from servers.receivers import (
    DISCORD,
    SIGNATURE,
    SIGNING_SECRET,
    SLACK_API,
    SLACK_HOOK,
    SLACK_TOKEN,
    TEAMS,
    WEBHOOK,
    Answer,
    Receivers,
)

Events = dict[EventType, NotificationEvent]
CONSOLE = ConsoleLinks("https://cd.example.com", "shop")
LINK = "https://cd.example.com/deployments/deployment-1?project=shop"
FAILED = EventType.DEPLOYMENT_FAILED


@asynccontextmanager
async def receiver(**sections: Any) -> AsyncGenerator[Receiver]:
    async with httpx2.AsyncClient() as client:
        spec = ReceiverSpec.model_validate_json(json.dumps({"name": "r", **sections}))
        created = create_receiver(spec, CONSOLE, client)
        assert created is not None
        yield created


async def send(event: NotificationEvent, **sections: Any) -> None:
    async with receiver(**sections) as created:
        await created.send(Delivery(event))


def fields_of(attachment: Any) -> dict[str, str]:
    assert all(field["short"] for field in attachment["fields"])
    return {field["title"]: field["value"] for field in attachment["fields"]}


async def test_slack_receives_an_attachment_by_webhook(
    receivers: Receivers, events: Events
) -> None:
    hook = {"hookURL": receivers.url(SLACK_HOOK), "mentionedAccounts": ["@U2"], "mentionedGroups": ["G2"]}  # fmt: skip
    await send(events[FAILED], slack=hook)
    (delivery,) = receivers.at(SLACK_HOOK)
    assert delivery.json["username"] == "PipeCD"
    (attachment,) = delivery.json["attachments"]
    assert attachment["title"] == 'Deployment for "cart" was failed'
    assert attachment["title_link"] == LINK
    assert attachment["text"] == "it is so"
    assert attachment["color"] == "#9C3C31"
    assert attachment["mrkdwn_in"] == ["text"]
    assert attachment["ts"] > 1_700_000_000
    fields = fields_of(attachment)
    assert fields["Deployment"] == f"<{LINK}|deployme...>"
    assert fields["Started At"].startswith("<!date^1700000000^{date_num} {time_secs}|")
    assert fields["Mention To Users"] == "<@U1> <@U2>"
    assert fields["Mention To Groups"] == "<!subteam^G1> <!subteam^G2>"


async def test_a_second_message_to_slack_does_not_repeat_the_mentions_of_the_first(
    receivers: Receivers, events: Events
) -> None:
    async with receiver(slack={"hookURL": receivers.url(SLACK_HOOK)}) as slack:
        for kind in (FAILED, EventType.PIPED_STARTED, FAILED):
            await slack.send(Delivery(events[kind]))
    messages = [fields_of(d.json["attachments"][0]) for d in receivers.at(SLACK_HOOK)]
    assert [fields.get("Mention To Users") for fields in messages] == ["<@U1>", None, "<@U1>"]


async def test_slack_markup_is_escaped(
    receivers: Receivers, new_deployment: Callable[..., Deployment]
) -> None:
    created = new_deployment(status=5, status_reason="<!channel> a & b", application_name="<x>")
    await send(deployment_event(created), slack={"hookURL": receivers.url(SLACK_HOOK)})
    (attachment,) = receivers.at(SLACK_HOOK)[0].json["attachments"]
    assert attachment["text"] == "&lt;!channel&gt; a &amp; b"
    assert "<x>" not in attachment["title"]


def by_token(receivers: Receivers, **fields: Any) -> dict[str, Any]:
    return {"channelID": "C1", "apiURL": receivers.url("/api"), **fields}


@pytest.mark.parametrize("setting", ["oauthToken", "oauthTokenData", "oauthTokenFile"])
async def test_slack_receives_messages_by_api_token(
    receivers: Receivers, events: Events, tmp_path: Path, setting: str
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SLACK_TOKEN}\n")
    tokens = {
        "oauthToken": SLACK_TOKEN,
        "oauthTokenData": base64.b64encode(SLACK_TOKEN.encode()).decode(),
        "oauthTokenFile": str(file),
    }
    await send(events[FAILED], slack=by_token(receivers, **{setting: tokens[setting]}))
    (delivery,) = receivers.at(SLACK_API)
    assert delivery.headers["authorization"] == f"Bearer {SLACK_TOKEN}"
    assert delivery.json["channel"] == "C1"
    assert delivery.json["attachments"][0]["text"] == "it is so"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(b'{"ok":false,"error":"channel_not_found"}', UserMistake, id="an unknown channel"),
        pytest.param(b'{"ok":false,"error":"ratelimited"}', Unavailable, id="too many messages"),
        pytest.param(b'{"ok":false,"error":"internal_error"}', Unavailable, id="an internal error"),
        pytest.param(b"<html>", UserMistake, id="something that is not Slack"),
        pytest.param(b"[]", UserMistake, id="something else that is not Slack"),
    ],
)  # fmt: skip
async def test_an_api_error_of_slack_with_status_200_is_an_error(
    receivers: Receivers, events: Events, answer: bytes, error: type[PipecdError]
) -> None:
    receivers.answers[SLACK_API] = [Answer(body=answer)]
    with pytest.raises(error):
        await send(events[FAILED], slack=by_token(receivers, oauthToken=SLACK_TOKEN))


async def test_webhooks_receive_upstreams_payload(receivers: Receivers, events: Events) -> None:
    webhook = {"url": receivers.url(WEBHOOK), "signatureValue": SIGNATURE}
    await send(events[FAILED], webhook=webhook)
    (delivery,) = receivers.at(WEBHOOK)
    assert delivery.headers["pipecd-signature"] == SIGNATURE
    assert delivery.body.startswith(b'{"Type":5,"Metadata":{"deployment":{"id":"deployment-1",')
    assert delivery.body.endswith(b"}}\n")
    metadata = from_json(json.dumps(delivery.json["Metadata"]), NotificationEventDeploymentFailed)
    assert metadata == events[FAILED].metadata
    assert "webhook-signature" not in delivery.headers


async def test_every_event_type_reaches_a_webhook(receivers: Receivers, events: Events) -> None:
    async with receiver(webhook={"url": receivers.url(WEBHOOK)}) as webhook:
        for event in events.values():
            await webhook.send(Delivery(event))
    deliveries = receivers.at(WEBHOOK)
    assert [d.json["Type"] for d in deliveries] == [int(kind) for kind in events]
    # The header is sent even if its value is not configured.
    assert {d.headers["pipecd-signature"] for d in deliveries} == {""}


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(SIGNING_SECRET, id="a secret in the format of Standard Webhooks"),
        pytest.param("words, and not base64", id="any other text"),
    ],
)
async def test_webhook_requests_are_signed(
    receivers: Receivers, events: Events, tmp_path: Path, secret: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{secret}\n")
    async with receiver(
        webhook={"url": receivers.url(WEBHOOK), "signingSecretFile": str(file), "signatureKey": "X-Mine"}
    ) as webhook:  # fmt: skip
        delivery = Delivery(events[FAILED])
        await webhook.send(delivery)
        await webhook.send(delivery)
    first, second = receivers.at(WEBHOOK)
    now = datetime.now(UTC)
    assert is_signed(first.headers, first.body, [secret], now)
    assert not is_signed(first.headers, first.body + b" ", [secret], now)
    assert not is_signed(first.headers, first.body, ["another"], now)
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == delivery.id
    assert "x-mine" in first.headers


async def test_a_secret_that_changes_in_its_file_is_used_at_once(
    receivers: Receivers, events: Events, tmp_path: Path
) -> None:
    file = tmp_path / "value"
    file.write_text("one\n")
    async with receiver(
        webhook={"url": receivers.url(WEBHOOK), "signatureValueFile": str(file)}
    ) as webhook:
        await webhook.send(Delivery(events[FAILED]))
        file.write_text("two\n")
        await webhook.send(Delivery(events[FAILED]))
    assert [d.headers["pipecd-signature"] for d in receivers.at(WEBHOOK)] == ["one", "two"]


async def test_teams_receives_an_adaptive_card(
    receivers: Receivers, events: Events, tmp_path: Path
) -> None:
    file = tmp_path / "url"
    file.write_text(f"{receivers.url(TEAMS)}\n")
    await send(
        events[FAILED],
        teams={"hookURLFile": str(file), "mentionedUsers": ["ann@example.com"]},
    )
    (delivery,) = receivers.at(TEAMS)
    assert delivery.json["type"] == "message"
    (attachment,) = delivery.json["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    title, text, facts, mentions = card["body"]
    assert (card["type"], title["color"]) == ("AdaptiveCard", "Attention")
    assert title["text"] == 'Deployment for "cart" was failed'
    assert text["text"] == "it is so"
    assert {"title": "Project", "value": "shop"} in facts["facts"]
    assert mentions["text"] == "<at>ann@example.com</at>"
    assert card["msteams"]["entities"][0]["mentioned"]["id"] == "ann@example.com"
    assert card["actions"] == [{"type": "Action.OpenUrl", "title": "Open", "url": LINK}]


async def test_a_rate_limit_of_teams_with_status_200_is_retried(
    receivers: Receivers, events: Events
) -> None:
    body = b"Microsoft Teams endpoint returned HTTP error 429 with ContextId x"
    receivers.answers[TEAMS] = [Answer(body=body)]
    with pytest.raises(Unavailable):
        await send(events[FAILED], teams={"hookURL": receivers.url(TEAMS)})


async def test_discord_receives_an_embed_with_configured_mentions_only(
    receivers: Receivers, events: Events
) -> None:
    receivers.answers[DISCORD] = [Answer(204, b"")]
    await send(
        events[FAILED],
        discord={"hookURL": receivers.url(DISCORD), "mentionedUsers": ["1"], "mentionedRoles": ["2"]},
    )  # fmt: skip
    (delivery,) = receivers.at(DISCORD)
    assert delivery.json["content"] == "<@1> <@&2>"
    assert delivery.json["allowed_mentions"] == {"parse": [], "users": ["1"], "roles": ["2"]}
    (embed,) = delivery.json["embeds"]
    assert embed["title"] == 'Deployment for "cart" was failed'
    assert (embed["description"], embed["url"], embed["color"]) == ("it is so", LINK, 0x9C3C31)
    assert datetime.fromisoformat(embed["timestamp"])
    fields = {field["name"]: field["value"] for field in embed["fields"]}
    assert fields["Started At"] == "<t:1700000000>"
    assert fields["Deployment"] == f"[deployme...]({LINK})"


@pytest.mark.parametrize("escape", [discord_escape, teams_escape])
def test_markup_is_escaped(escape: Callable[[str], str]) -> None:
    assert "[click](http://x)" not in escape("[click](http://x)")
    assert "**loud**" not in escape("**loud**")
    assert escape("plain words, 1.5: fine!") == "plain words, 1.5: fine!"


@pytest.mark.parametrize("kind", ["teams", "discord"])
async def test_a_long_reason_is_truncated(
    receivers: Receivers, new_deployment: Callable[..., Deployment], kind: str
) -> None:
    created = new_deployment(status=5, status_reason="x" * 100_000, application_name="y" * 1000)
    path = {"teams": TEAMS, "discord": DISCORD}[kind]
    await send(deployment_event(created), **{kind: {"hookURL": receivers.url(path)}})
    (delivery,) = receivers.at(path)
    assert len(delivery.body) < 28_000
    if kind == "discord":
        (embed,) = delivery.json["embeds"]
        assert (len(embed["title"]), len(embed["description"])) == (256, 4000)


HOOKS = [
    pytest.param("slack", SLACK_HOOK, id="slack"),
    pytest.param("teams", TEAMS, id="teams"),
    pytest.param("discord", DISCORD, id="discord"),
]


@pytest.mark.parametrize(("kind", "path"), HOOKS)
@pytest.mark.parametrize(
    ("status", "error"),
    [(400, UserMistake), (404, UserMistake), (301, UserMistake), (408, Unavailable), (500, Unavailable), (503, Unavailable)],
)  # fmt: skip
async def test_the_status_decides_whether_to_retry(
    receivers: Receivers, events: Events, kind: str, path: str, status: int, error: type[Exception]
) -> None:
    # A server may quote the request in its response.
    receivers.answers[path] = [Answer(status, f"no such thing {path}".encode())]
    with pytest.raises(error, match=f"status {status}: no such thing") as caught:
        await send(events[FAILED], **{kind: {"hookURL": receivers.url(path)}})
    assert path.rpartition("/")[2] not in str(caught.value)


def in_ten_minutes() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=10))


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        pytest.param(lambda: "7", 7, 7, id="seconds"),
        pytest.param(in_ten_minutes, 300, 600, id="a date"),
        pytest.param(lambda: "soon", 0, 0, id="neither of both"),
    ],
)  # fmt: skip
async def test_the_retry_after_header_is_parsed(
    receivers: Receivers, events: Events, header: Callable[[], str], least: float, most: float
) -> None:
    receivers.answers[DISCORD] = [Answer(429, b"", {"Retry-After": header()})]
    with pytest.raises(RetryAfter) as caught:
        await send(events[FAILED], discord={"hookURL": receivers.url(DISCORD)})
    assert least <= caught.value.seconds <= most


async def test_the_response_is_read_up_to_a_limit(receivers: Receivers, events: Events) -> None:
    receivers.answers[DISCORD] = [Answer(400, b"x" * 5_000_000)]
    with pytest.raises(UserMistake) as caught:
        await send(events[FAILED], discord={"hookURL": receivers.url(DISCORD)})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("url", "error"),
    [
        pytest.param(
            "http://127.0.0.1:1/secret-part", Unavailable, id="a port where nothing listens"
        ),
        pytest.param("ftp://127.0.0.1/secret-part", UserMistake, id="another protocol"),
        pytest.param("secret-part", UserMistake, id="a URL without a scheme"),
        pytest.param("http://[secret-part", Unavailable, id="an incomplete address"),
        pytest.param("http://host:99999999/secret-part", Unavailable, id="no such port"),
    ],
)
async def test_urls_do_not_appear_in_errors(
    events: Events, url: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        await send(events[FAILED], discord={"hookURL": url})
    assert "secret-part" not in str(caught.value)


@pytest.mark.parametrize("field", ["signatureKey", "signatureValue"])
async def test_an_invalid_header_is_reported_without_its_value(
    receivers: Receivers, events: Events, field: str
) -> None:
    webhook = {"url": receivers.url(WEBHOOK), field: "Schlüssel-wort"}
    with pytest.raises(UserMistake) as caught:
        await send(events[FAILED], webhook=webhook)
    assert "wort" not in str(caught.value)


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({"slack": {"channelID": "C", "oauthTokenFile": "/no/such/file"}}, id="a token of Slack"),
        pytest.param({"webhook": {"url": "http://x", "signatureValueFile": "/no/such/file"}}, id="a shared secret"),
        pytest.param({"webhook": {"url": "http://x", "signingSecretFile": "/no/such/file"}}, id="a signing secret"),
        pytest.param({"teams": {"hookURLFile": "/no/such/file"}}, id="a webhook URL of Teams"),
        pytest.param({"discord": {"hookURLFile": "/no/such/file"}}, id="a webhook URL of Discord"),
        pytest.param({"email": {"host": "h", "from": "a@x", "to": ["b@x"], "username": "u", "passwordFile": "/no/such/file"}}, id="a password for mail"),
        pytest.param({"email": {"host": "h", "from": "a@x", "to": ["b@x"], "caFile": "/no/such/file"}}, id="certificates for mail"),
        pytest.param({"slack": {"channelID": "C", "oauthTokenData": "?"}}, id="something that is not base64"),
    ],
)  # fmt: skip
async def test_a_missing_secret_is_reported_at_startup(sections: dict[str, Any]) -> None:
    (kind,) = sections
    with pytest.raises(UserMistake, match=rf"notifications\.receivers\.{kind}\."):
        async with receiver(**sections):
            pass


def test_every_kind_of_the_configuration_has_a_receiver() -> None:
    assert tuple(RECEIVERS) == ReceiverSpec.kinds()


async def test_slack_is_used_if_slack_and_webhook_are_set(
    receivers: Receivers, events: Events
) -> None:
    hook = {"hookURL": receivers.url(SLACK_HOOK)}
    await send(events[FAILED], slack=hook, webhook={"url": receivers.url(WEBHOOK)})
    assert (len(receivers.at(SLACK_HOOK)), len(receivers.at(WEBHOOK))) == (1, 0)


async def test_a_receiver_without_configuration_is_none() -> None:
    async with httpx2.AsyncClient() as client:
        assert create_receiver(ReceiverSpec(name="r"), CONSOLE, client) is None
