# SPDX-License-Identifier: Apache-2.0
"""Sends notifications to a Microsoft Teams channel, by the webhook of a workflow or connector."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from pipecd.config.piped import hook_url
from pipecd.config.piped_notifications import TeamsSpec
from pipecd.model.errors import Unavailable
from pipecd.piped.notify.message import Field, Message, Severity, truncate
from pipecd.piped.notify.outbox import Delivery
from pipecd.piped.notify.receivers.post import JSON, post
from pipecd.piped.notify.template import MessageRenderer

# Teams refuses messages beyond 28 kB.
_MAX_TEXT = 6000
_MAX_VALUE = 500
_COLOURS = {
    Severity.INFO: "Default",
    Severity.SUCCESS: "Good",
    Severity.ERROR: "Attention",
    Severity.WARNING: "Warning",
}
_MARKUP = re.compile(r"([\\`*_\[\]#~])")
# Connectors report a rate limit in the body of a response with status 200.
_RATE_LIMITED = b"HTTP error 429"


@dataclass(frozen=True)
class TeamsReceiver:
    """Sends to one channel."""

    spec: TeamsSpec
    renderer: MessageRenderer
    client: httpx2.AsyncClient

    @classmethod
    def create(cls, spec: TeamsSpec, renderer: MessageRenderer, client: httpx2.AsyncClient) -> Self:
        """Raises if the webhook URL cannot be read."""
        hook_url(spec)
        return cls(spec, renderer, client)

    async def send(self, delivery: Delivery) -> None:
        message = self.renderer.render(delivery, escape)
        body = json.dumps(payload(message, self.spec.mentioned_users)).encode()
        response = await post(self.client, hook_url(self.spec), body, headers=JSON)
        if _RATE_LIMITED in response:
            raise Unavailable("Teams limits the rate of messages")


def payload(message: Message, mentioned: Sequence[str]) -> dict[str, Any]:
    """The message as an adaptive card."""
    title = {
        **_block(message.title),
        "weight": "Bolder",
        "size": "Medium",
        "color": _COLOURS[message.severity],
    }
    text = [_block(truncate(message.text, _MAX_TEXT))] if message.text else []
    facts = {"type": "FactSet", "facts": [_fact(field) for field in message.fields]}
    mentions = {user: f"<at>{user}</at>" for user in mentioned}
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [title, *text, facts, *([_block(" ".join(mentions.values()))] if mentions else [])],
        "msteams": {
            "width": "Full",
            "entities": [
                {"type": "mention", "text": at, "mentioned": {"id": user, "name": user}}
                for user, at in mentions.items()
            ],
        },
    }
    if message.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": message.link}]
    kind = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": kind, "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def escape(text: str) -> str:
    """Escapes a text so that it contains no markup and no mention for Teams."""
    return _MARKUP.sub(r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


def _block(text: str) -> dict[str, Any]:
    return {"type": "TextBlock", "text": text, "wrap": True}


def _fact(field: Field) -> dict[str, str]:
    value = truncate(field.value, _MAX_VALUE)
    return {"title": field.name, "value": f"[{value}]({field.link})" if field.link else value}
