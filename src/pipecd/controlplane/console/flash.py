# SPDX-License-Identifier: Apache-2.0
"""A message that a form leaves for the page it redirects to, in a signed cookie.

It is not in the URL: a link must not be able to make a page claim something, nor a bookmark to
repeat it.
"""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from pipecd.controlplane.console.status_badge import Badge, Tone

FLASH_COOKIE = "flash"
# How long a page shows that something succeeded or was refused, in seconds.
SHOWN_SUCCESS, SHOWN_REFUSAL = 60, 600
# So many bytes of text fit into a cookie of at most 4096.
_MAX_TEXT_BYTES = 2000
_MAX_COOKIE = 4000


@dataclass(frozen=True)
class Flash:
    """A sentence about what a form did, or why it was refused."""

    text: str
    is_refusal: bool = False

    @property
    def badge(self) -> Badge:
        if self.is_refusal:
            return Badge(Tone.BAD, "warn", "refused")
        return Badge(Tone.OK, "check", "done")

    @property
    def seconds(self) -> int:
        return SHOWN_REFUSAL if self.is_refusal else SHOWN_SUCCESS


def encode_flash(flash: Flash, path: str, session_token: str) -> str:
    """The value of the cookie for the page at `path`."""
    text = flash.text.encode()[:_MAX_TEXT_BYTES].decode(errors="ignore")
    fields = json.dumps([path, text, flash.is_refusal], ensure_ascii=False)
    content = urlsafe_b64encode(fields.encode()).decode()
    return f"{content}.{_signature(content, session_token)}"


def decode_flash(value: str, path: str, session_token: str) -> Flash | None:
    """The message for the page at `path`; None if there is none, or not one of this session."""
    content, _, signature = value.partition(".")
    if len(value) > _MAX_COOKIE or not hmac.compare_digest(
        signature.encode(), _signature(content, session_token).encode()
    ):
        return None
    to_path, text, is_refusal = json.loads(urlsafe_b64decode(content))
    return Flash(text, is_refusal) if to_path == path else None


def _signature(content: str, session_token: str) -> str:
    return hmac.digest(session_token.encode(), f"flash {content}".encode(), "sha256").hex()
