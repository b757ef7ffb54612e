# SPDX-License-Identifier: Apache-2.0
"""What is said with every answer, and how large a question may be."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipecd.controlplane.auth.http_headers import PAGE_HEADERS

MOST_BODY_BYTES = 1024 * 1024
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    )
)


class BodyTooLarge(Exception):
    """A form of more than the allowed size."""


class SafeAnswers:
    """Adds the security headers and refuses large forms."""

    def __init__(self, app: ASGIApp, *, secure: bool) -> None:
        self._app, self._secure = app, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced(scope) > MOST_BODY_BYTES:
            await PlainTextResponse("The form is too large.", 413)(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST_BODY_BYTES:
                raise BodyTooLarge
            return message

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                dress(MutableHeaders(scope=message), secure=self._secure)
            await send(message)

        try:
            await self._app(scope, counted, dressed)
        except BodyTooLarge:
            await PlainTextResponse("The form is too large.", 413)(scope, receive, send)


def dress(headers: MutableHeaders, *, secure: bool) -> None:
    """Adds what every answer says about itself."""
    headers.update({**PAGE_HEADERS, "Content-Security-Policy": POLICY})
    headers.setdefault("Cache-Control", "no-store")
    if secure:
        headers["Strict-Transport-Security"] = "max-age=31536000"


def _announced(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() else 0
