# SPDX-License-Identifier: Apache-2.0
"""A channel of Microsoft Teams, by the webhook of a workflow or of a connector."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from pipecd.config.piped.credential import hook_url
from pipecd.config.piped.notification import TeamsSpec
from pipecd.model.errors import Unavailable
from pipecd.piped.notify.message import Field, Message, Mood
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.receivers.post import JSON, post
from pipecd.piped.notify.wording import Wording, cut

# Teams refuses messages beyond 28 kB.
_MOST_TEXT = 6000
_MOST_VALUE = 500
_COLOURS = {
    Mood.NEUTRAL: "Default",
    Mood.GOOD: "Good",
    Mood.BAD: "Attention",
    Mood.UNEASY: "Warning",
}
_MARKUP = re.compile(r"([\\`*_\[\]#~])")
# Connectors tell of too many messages in the text of a success.
_HELD_BACK = b"HTTP error 429"


@dataclass(frozen=True)
class TeamsReceiver:
    """Writes to one channel."""

    spec: TeamsSpec
    wording: Wording
    client: httpx2.AsyncClient

    async def send(self, letter: Letter) -> None:
        message = self.wording.of(letter, escape)
        body = json.dumps(payload(message, self.spec.mentioned_users)).encode()
        answer = await post(self.client, hook_url(self.spec), body, headers=JSON)
        if _HELD_BACK in answer:
            raise Unavailable("Teams takes no more messages for the moment")


def payload(message: Message, mentioned: Sequence[str]) -> dict[str, Any]:
    """The message as an adaptive card."""
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": _body(message, mentioned),
        "msteams": {"width": "Full", "entities": [_mention(user) for user in mentioned]},
    }
    if message.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": message.link}]
    kind = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": kind, "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def escape(text: str) -> str:
    """A text in which Teams finds no markup and nobody to mention."""
    return _MARKUP.sub(r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


def _body(message: Message, mentioned: Sequence[str]) -> list[dict[str, Any]]:
    title = {
        **_block(message.title),
        "weight": "Bolder",
        "size": "Medium",
        "color": _COLOURS[message.mood],
    }
    text = [_block(cut(message.text, _MOST_TEXT))] if message.text else []
    facts = {"type": "FactSet", "facts": [_fact(field) for field in message.fields]}
    people = [_block(" ".join(_at(user) for user in mentioned))] if mentioned else []
    return [title, *text, facts, *people]


def _block(text: str) -> dict[str, Any]:
    return {"type": "TextBlock", "text": text, "wrap": True}


def _fact(field: Field) -> dict[str, str]:
    value = cut(field.value, _MOST_VALUE)
    return {"title": field.name, "value": f"[{value}]({field.link})" if field.link else value}


def _mention(user: str) -> dict[str, Any]:
    return {"type": "mention", "text": _at(user), "mentioned": {"id": user, "name": user}}


def _at(user: str) -> str:
    return f"<at>{user}</at>"
