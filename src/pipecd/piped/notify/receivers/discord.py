# SPDX-License-Identifier: Apache-2.0
"""A channel of Discord, by its webhook."""

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx2

from pipecd.config.piped.credential import hook_url
from pipecd.config.piped.notification import DiscordSpec
from pipecd.piped.notify.message import Field, Message
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.receivers.post import JSON, post
from pipecd.piped.notify.wording import Wording, cut

_USERNAME = "PipeCD"
# Discord refuses what is longer.
_MOST_TITLE, _MOST_TEXT, _MOST_VALUE = 256, 4000, 1024
_MARKUP = re.compile(r"([\\`*_~|>#\[\]()<@])")


@dataclass(frozen=True)
class DiscordReceiver:
    """Writes to one channel."""

    spec: DiscordSpec
    wording: Wording
    client: httpx2.AsyncClient

    async def send(self, letter: Letter) -> None:
        message = self.wording.of(letter, escape)
        body = json.dumps(payload(message, self.spec, letter.told_at.isoformat())).encode()
        await post(self.client, hook_url(self.spec), body, headers=JSON)


def payload(message: Message, spec: DiscordSpec, at: str) -> dict[str, Any]:
    """The message as an embed; only those who are configured are mentioned, whatever it says."""
    embed: dict[str, Any] = {
        "title": cut(message.title, _MOST_TITLE),
        "description": cut(message.text, _MOST_TEXT),
        "color": int(message.mood.value.removeprefix("#"), 16),
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
    """A text in which Discord finds no markup."""
    return _MARKUP.sub(r"\\\1", text)


def _field(field: Field) -> dict[str, Any]:
    value = cut(field.value, _MOST_VALUE)
    if field.at:
        # Each reader sees it in the zone of their own.
        value = f"<t:{field.at}>"
    elif field.link and len(value) + len(field.link) < _MOST_VALUE:
        value = f"[{value}]({field.link})"
    return {"name": field.name, "value": value, "inline": True}
