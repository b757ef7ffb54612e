# SPDX-License-Identifier: Apache-2.0
"""Sends notifications to a Discord channel, by its webhook."""

import json
import re
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from pipecd.config.piped import hook_url
from pipecd.config.piped_notifications import DiscordSpec
from pipecd.piped.notify.message import Field, Message, truncate
from pipecd.piped.notify.outbox import Delivery
from pipecd.piped.notify.receivers.post import JSON, post
from pipecd.piped.notify.template import MessageRenderer

_USERNAME = "PipeCD"
# The limits of Discord.
_MAX_TITLE, _MAX_TEXT, _MAX_VALUE = 256, 4000, 1024
_MARKUP = re.compile(r"([\\`*_~|>#\[\]()<@])")


@dataclass(frozen=True)
class DiscordReceiver:
    """Sends to one channel."""

    spec: DiscordSpec
    renderer: MessageRenderer
    client: httpx2.AsyncClient

    @classmethod
    def create(
        cls, spec: DiscordSpec, renderer: MessageRenderer, client: httpx2.AsyncClient
    ) -> Self:
        """Raises if the webhook URL cannot be read."""
        hook_url(spec)
        return cls(spec, renderer, client)

    async def send(self, delivery: Delivery) -> None:
        message = self.renderer.render(delivery, escape)
        body = json.dumps(payload(message, self.spec, delivery.created_at.isoformat())).encode()
        await post(self.client, hook_url(self.spec), body, headers=JSON)


def payload(message: Message, spec: DiscordSpec, at: str) -> dict[str, Any]:
    """The message as an embed; only configured users and roles are mentioned."""
    embed: dict[str, Any] = {
        "title": truncate(message.title, _MAX_TITLE),
        "description": truncate(message.text, _MAX_TEXT),
        "color": int(message.severity.value.removeprefix("#"), 16),
        "fields": [_field(field) for field in message.fields],
        "timestamp": at,
    }
    if message.link:
        embed["url"] = message.link
    mentions = [
        *(f"<@{user}>" for user in spec.mentioned_users),
        *(f"<@&{role}>" for role in spec.mentioned_roles),
    ]
    return {
        "username": _USERNAME,
        "content": " ".join(mentions),
        "embeds": [embed],
        "allowed_mentions": {
            "parse": [],
            "users": list(spec.mentioned_users),
            "roles": list(spec.mentioned_roles),
        },
    }


def escape(text: str) -> str:
    """Escapes a text so that it contains no markup for Discord."""
    return _MARKUP.sub(r"\\\1", text)


def _field(field: Field) -> dict[str, Any]:
    value = truncate(field.value, _MAX_VALUE)
    if field.at:
        # Discord shows it in the time zone of the reader.
        value = f"<t:{field.at}>"
    elif field.link and len(value) + len(field.link) < _MAX_VALUE:
        value = f"[{value}]({field.link})"
    return {"name": field.name, "value": value, "inline": True}
