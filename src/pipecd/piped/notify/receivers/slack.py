# SPDX-License-Identifier: Apache-2.0
"""Sends notifications to a Slack channel, by an incoming webhook or by the API."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from pipecd.config.piped import slack_token
from pipecd.config.piped_notifications import SUBTEAM, SlackSpec
from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.notify.message import Field, Message, truncate
from pipecd.piped.notify.outbox import Delivery
from pipecd.piped.notify.receivers.post import post
from pipecd.piped.notify.template import MessageRenderer

API = "https://slack.com/api"
_USERNAME = "PipeCD"
_MAX_TEXT = 8000
_JSON = {"Content-Type": "application/json; charset=utf-8"}
# Errors of Slack's API that a retry may overcome.
_TRANSIENT = frozenset(
    {"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable"}
    | {"request_timeout", "team_added_to_org"}
)


@dataclass(frozen=True)
class SlackReceiver:
    """Sends to one channel."""

    spec: SlackSpec
    renderer: MessageRenderer
    client: httpx2.AsyncClient

    @classmethod
    def create(cls, spec: SlackSpec, renderer: MessageRenderer, client: httpx2.AsyncClient) -> Self:
        """Raises if the token cannot be read."""
        slack_token(spec)
        return cls(spec, renderer, client)

    async def send(self, delivery: Delivery) -> None:
        message = self.renderer.render(delivery, escape)
        content = payload(message, self.spec, int(delivery.created_at.timestamp()))
        if self.spec.hook_url:
            body = json.dumps(content).encode()
            await post(self.client, self.spec.hook_url, body, headers=_JSON)
        else:
            await self._post_by_api({**content, "channel": self.spec.channel_id})

    async def _post_by_api(self, content: Mapping[str, Any]) -> None:
        token = slack_token(self.spec)
        response = await post(
            self.client,
            f"{(self.spec.api_url or API).rstrip('/')}/chat.postMessage",
            json.dumps(content).encode(),
            headers={**_JSON, "Authorization": f"Bearer {token}"},
            secrets=(token,),
        )
        # Slack's API reports errors in the body of a response with status 200.
        try:
            result: dict[str, Any] = json.loads(response)
            error = "" if result["ok"] else str(result.get("error") or "without a reason")
        except (ValueError, KeyError, TypeError):
            error = "the response is not one of Slack's API"
        if error in _TRANSIENT:
            raise Unavailable(f"Slack cannot accept the message now: {error}")
        if error:
            raise UserMistake(f"Slack rejected the message: {error}")


def payload(message: Message, spec: SlackSpec, at: int) -> dict[str, Any]:
    """The message in Slack's format, with one coloured attachment."""
    users = (*message.mentions.users, *spec.mentioned_accounts)
    groups = (*message.mentions.groups, *spec.mentioned_groups)
    mentions = {
        "Mention To Users": [f"<@{id_.removeprefix('@')}>" for id_ in users],
        "Mention To Groups": [id_ if SUBTEAM in id_ else f"<{SUBTEAM}{id_}>" for id_ in groups],
    }
    values = [(field.name, _value(field)) for field in message.fields]
    values += [(name, " ".join(dict.fromkeys(ids))) for name, ids in mentions.items() if ids]
    attachment = {
        "title": message.title,
        "title_link": message.link,
        "text": truncate(message.text, _MAX_TEXT),
        "fields": [{"title": name, "value": value, "short": True} for name, value in values],
        "color": message.severity.value,
        "mrkdwn_in": ["text"],
        "ts": at,
    }
    return {"username": _USERNAME, "attachments": [attachment]}


def escape(text: str) -> str:
    """Escapes a text so that it contains no link and no mention for Slack."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _value(field: Field) -> str:
    if field.at:
        # Slack shows it in the time zone of the reader.
        return f"<!date^{field.at}^{{date_num}} {{time_secs}}|{field.value}>"
    return f"<{field.link}|{field.value}>" if field.link else field.value
