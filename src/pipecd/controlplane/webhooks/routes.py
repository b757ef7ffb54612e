# SPDX-License-Identifier: Apache-2.0
"""The address where Git hosts tell of pushes.

Whoever cannot sign gets one and the same answer, whether the project exists or not. Whoever can
learns that the delivery was taken; what it led to is shown to administrators, not to senders.
"""

import asyncio
import secrets

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.http_headers import NO_STORE_HEADERS
from pipecd.controlplane.usecases.webhooks import Webhooks
from pipecd.controlplane.webhooks.allowance import Allowance
from pipecd.controlplane.webhooks.payload import UNSIGNED_PING, Message, read_message
from pipecd.controlplane.webhooks.signature import (
    DELIVERY,
    STANDARD,
    WINDOW,
    has_signature,
    is_signed,
)
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import PipecdError, Unavailable, UserMistake

log = structlog.get_logger()

PREFIX = "/webhooks/"
MOST_BYTES = 8 * 1024 * 1024
_READ_SECONDS = 30.0
_RETRY_AFTER = {"Retry-After": "10"}


def create_webhooks(
    webhooks: Webhooks, *, allowance: Allowance | None = None, now: Now = utc_now
) -> Starlette:
    """The door for Git hosts, one address for each project."""
    door = WebhookDoor(webhooks, allowance or Allowance(), now)
    return Starlette(
        routes=[Route(f"{PREFIX}{{project}}", door.receive, methods=["POST"])],
        exception_handlers={HTTPException: _refuse, PipecdError: _fail},
    )


class WebhookDoor:
    """Takes deliveries of every kind of host."""

    def __init__(self, webhooks: Webhooks, allowance: Allowance, now: Now) -> None:
        self._webhooks, self._allowance, self._now = webhooks, allowance, now
        # Checked in place of a secret where there is none, so that both take the same time.
        self._nobody = secrets.token_hex()

    async def receive(self, request: Request) -> Response:
        project: str = request.path_params["project"]
        headers = dict(request.headers)
        body = await _body(request)
        if headers.get("x-event-key") == UNSIGNED_PING and not has_signature(headers):
            # Bitbucket Data Center tests connections without a signature.
            return _answer("the address is right; the secret was not tested")
        known = await self._webhooks.secrets_of(project) or (self._nobody,)
        if not is_signed(headers, body, known, self._now()):
            raise HTTPException(401, "the signature does not fit")
        if not self._allowance.takes(project):
            log.warning("webhooks held back, there are too many", project=project)
            raise HTTPException(429, "too many deliveries; pushes are found without them")
        return await self._take(project, headers, read_message(headers, body))

    async def _take(self, project: str, headers: dict[str, str], message: Message) -> Response:
        if message.push is None:
            return _answer("pong" if "ping" in message.event else "nothing to do for this event")
        if STANDARD in headers:
            delivery = headers.get(DELIVERY, "")
            # A delivery is refused by its age after the window, so it is remembered as long.
            if not await self._webhooks.is_new(project, delivery, within=2 * WINDOW):
                return _answer("taken before")
        await self._webhooks.pushed(project, message.push, host=message.host)
        return _answer("taken", 202)


async def _body(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > MOST_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_READ_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    raise _too_large()
                parts.append(part)
    except TimeoutError as e:
        raise HTTPException(408, "the delivery took too long") from e
    except ClientDisconnect as e:
        raise HTTPException(400, "the delivery ended early") from e
    return b"".join(parts)


def _too_large() -> HTTPException:
    return HTTPException(413, f"a delivery may have {MOST_BYTES // 1024 // 1024} MiB")


def _answer(message: str, status: int = 200) -> Response:
    return JSONResponse({"message": message}, status, headers=NO_STORE_HEADERS)


async def _refuse(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    answer = _answer(error.detail, error.status_code)
    if error.status_code == 429:
        answer.headers.update(_RETRY_AFTER)
    return answer


async def _fail(_request: Request, error: Exception) -> Response:
    match error:
        case UserMistake():
            return _answer(str(error), 422)
        case Unavailable():
            return _answer("not available right now", 503)
        case _:
            raise error
