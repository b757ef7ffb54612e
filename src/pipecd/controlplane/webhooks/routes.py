# SPDX-License-Identifier: Apache-2.0
"""The endpoint for webhooks of Git hosts, one path per project.

A delivery without a valid signature gets the same response whether the project exists or not. A
signed one is accepted; only administrators see which pipeds it woke.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.http_headers import NO_STORE_HEADERS
from pipecd.controlplane.usecases.webhooks import Webhooks
from pipecd.controlplane.webhooks.payload import UNSIGNED_PING, parse_payload
from pipecd.controlplane.webhooks.signature import (
    DELIVERY_ID,
    MAX_CLOCK_SKEW,
    STANDARD_SIGNATURE,
    has_signature,
    is_signed,
    may_be_signed,
)
from pipecd.model.clock import Now, utc_now
from pipecd.model.count import exceeds
from pipecd.model.errors import PipecdError, Unavailable, UserMistake

log = structlog.get_logger()

PREFIX = "/webhooks/"
MAX_BODY_BYTES = 8 * 1024 * 1024
BURST = 60
DELIVERIES_PER_SECOND = 10.0
_READ_TIMEOUT_SECONDS = 30.0
_RETRY_AFTER = {"Retry-After": "10"}


@dataclass
class _TokenBucket:
    """The tokens of a project at a time; each delivery takes one."""

    tokens: float
    updated_at: float


class RateLimiter:
    """Limits the deliveries of each project to a burst and a rate, with a token bucket."""

    def __init__(
        self,
        burst: int = BURST,
        per_second: float = DELIVERIES_PER_SECOND,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._buckets: dict[str, _TokenBucket] = {}

    def allow(self, project: str) -> bool:
        """Whether a delivery is within the limit; call it only after the signature was verified."""
        now = self._clock()
        bucket = self._buckets.setdefault(project, _TokenBucket(self._burst, now))
        refill = (now - bucket.updated_at) * self._per_second
        bucket.tokens = min(self._burst, bucket.tokens + refill)
        bucket.updated_at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def create_webhooks(
    webhooks: Webhooks, *, rate_limiter: RateLimiter | None = None, now: Now = utc_now
) -> Starlette:
    """The HTTP application for webhooks."""
    handler = WebhookHandler(webhooks, rate_limiter or RateLimiter(), now)
    return Starlette(
        routes=[Route(f"{PREFIX}{{project}}", handler.receive, methods=["POST"])],
        exception_handlers={HTTPException: _error_response, PipecdError: _error_response},
    )


class WebhookHandler:
    """Verifies deliveries of all Git hosts and reports their pushes."""

    def __init__(self, webhooks: Webhooks, rate_limiter: RateLimiter, now: Now) -> None:
        self._webhooks, self._rate_limiter, self._now = webhooks, rate_limiter, now
        # Verified for projects without a secret, so that the response takes as long.
        self._dummy_secret = secrets.token_hex()

    async def receive(self, request: Request) -> Response:
        project: str = request.path_params["project"]
        headers = dict(request.headers)
        if headers.get("x-event-key") == UNSIGNED_PING and not has_signature(headers):
            # Bitbucket Data Center tests connections without a signature.
            return _response("the URL is correct; the secret was not tested")
        project_secrets = await self._webhooks.secrets_of(project) or (self._dummy_secret,)
        # The body of a delivery that cannot be valid is not read.
        if not may_be_signed(headers, project_secrets, self._now()):
            raise HTTPException(401, "invalid signature")
        body = await _read_body(request)
        if not is_signed(headers, body, project_secrets, self._now()):
            raise HTTPException(401, "invalid signature")
        if not self._rate_limiter.allow(project):
            log.warning("webhook rate limit exceeded", project=project)
            raise HTTPException(429, "rate limit exceeded; pipeds poll for pushes anyway")
        payload = parse_payload(headers, body)
        if payload.push is None:
            return _response("pong" if "ping" in payload.event else "event ignored")
        if STANDARD_SIGNATURE in headers:
            # The timestamp rejects a replay after this time, so its id need not be stored longer.
            is_new = await self._webhooks.is_new(
                project, headers.get(DELIVERY_ID, ""), within=2 * MAX_CLOCK_SKEW
            )
            if not is_new:
                return _response("already delivered")
        await self._webhooks.pushed(project, payload.push, host=payload.host)
        return _response("accepted", 202)


async def _read_body(request: Request) -> bytes:
    too_large = HTTPException(413, f"the body exceeds {MAX_BODY_BYTES // 1024 // 1024} MiB")
    if exceeds(request.headers.get("content-length", ""), MAX_BODY_BYTES):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError as e:
        raise HTTPException(408, "the body did not arrive in time") from e
    except ClientDisconnect as e:
        raise HTTPException(400, "the body is incomplete") from e
    return bytes(body)


def _response(message: str, status: int = 200) -> Response:
    return JSONResponse({"message": message}, status, headers=NO_STORE_HEADERS)


async def _error_response(_request: Request, error: Exception) -> Response:
    match error:
        case HTTPException():
            response = _response(error.detail, error.status_code)
            response.headers.update(error.headers or {})
            if error.status_code == 429:
                response.headers.update(_RETRY_AFTER)
            elif error.status_code in (401, 408, 413):
                # What the client still sends is not read.
                response.headers["Connection"] = "close"
            return response
        case UserMistake():
            return _response(str(error), 422)
        case Unavailable():
            return _response("temporarily unavailable", 503)
        case _:
            raise error
