# SPDX-License-Identifier: Apache-2.0
"""A channel of Slack, by an incoming webhook or by the API."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from pipecd.config.piped.credential import slack_token
from pipecd.config.piped.notification import SUBTEAM, SlackSpec
from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.notify.message import Field, Message
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.receivers.post import post
from pipecd.piped.notify.wording import Wording, cut

API = "https://slack.com/api"
_USERNAME = "PipeCD"
_MOST_TEXT = 8000
_JSON = {"Content-Type": "application/json; charset=utf-8"}
# What Slack answers when the next try may succeed.
_PASSING = frozenset(
    {"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable"}
    | {"request_timeout", "team_added_to_org"}
)


@dataclass(frozen=True)
class SlackReceiver:
    """Writes to one channel."""

    spec: SlackSpec
    wording: Wording
    client: httpx2.AsyncClient

    async def send(self, letter: Letter) -> None:
        message = self.wording.of(letter, escape)
        content = payload(message, self.spec, int(letter.told_at.timestamp()))
        if self.spec.hook_url:
            body = json.dumps(content).encode()
            await post(self.client, self.spec.hook_url, body, headers=_JSON)
        else:
            await self._by_api({**content, "channel": self.spec.channel_id})

    async def _by_api(self, content: Mapping[str, Any]) -> None:
        token = slack_token(self.spec)
        answer = await post(
            self.client,
            f"{(self.spec.api_url or API).rstrip('/')}/chat.postMessage",
            json.dumps(content).encode(),
            headers={**_JSON, "Authorization": f"Bearer {token}"},
            secrets=(token,),
        )
        refusal = _refusal(answer)
        if refusal in _PASSING:
            raise Unavailable(f"Slack cannot take the message now: {refusal}")
        if refusal:
            raise UserMistake(f"Slack refuses the message: {refusal}")


def _refusal(answer: bytes) -> str:
    """What Slack does not like; it says so with a status that means success."""
    try:
        said: dict[str, Any] = json.loads(answer)
        return "" if said["ok"] else str(said.get("error") or "without a reason")
    except (ValueError, KeyError, TypeError):
        return "the answer is not one of Slack's API"


def payload(message: Message, spec: SlackSpec, at: int) -> dict[str, Any]:
    """The message as Slack takes it, with one coloured attachment."""
    mentions = message.mentions
    fields = [
        *(_field(field.name, _value(field)) for field in message.fields),
        *_mentioned("Users", [_user(u) for u in (*mentions.users, *spec.mentioned_accounts)]),
        *_mentioned("Groups", [_group(g) for g in (*mentions.groups, *spec.mentioned_groups)]),
    ]
    attachment = {
        "title": message.title,
        "title_link": message.link,
        "text": cut(message.text, _MOST_TEXT),
        "fields": fields,
        "color": message.mood.value,
        "mrkdwn_in": ["text"],
        "ts": at,
    }
    return {"username": _USERNAME, "attachments": [attachment]}


def escape(text: str) -> str:
    """A text in which Slack finds no link and nobody to mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _field(name: str, value: str) -> dict[str, Any]:
    return {"title": name, "value": value, "short": True}


def _value(field: Field) -> str:
    if field.at:
        # Each reader sees it in the zone of their own.
        return f"<!date^{field.at}^{{date_num}} {{time_secs}}|{field.value}>"
    return f"<{field.link}|{field.value}>" if field.link else field.value


def _mentioned(whom: str, mentions: Sequence[str]) -> list[dict[str, Any]]:
    return [_field(f"Mention To {whom}", " ".join(dict.fromkeys(mentions)))] if mentions else []


def _user(id_: str) -> str:
    return f"<@{id_.removeprefix('@')}>"


def _group(id_: str) -> str:
    return id_ if SUBTEAM in id_ else f"<{SUBTEAM}{id_}>"
