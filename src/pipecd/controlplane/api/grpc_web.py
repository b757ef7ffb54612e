# SPDX-License-Identifier: Apache-2.0
"""WebService for browsers: gRPC-Web in binary mode over HTTP/1.1.

Upstream leaves this translation to an Envoy gateway.
"""

import asyncio

import grpc
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from pipecd.controlplane.auth.http_headers import NO_STORE_HEADERS
from pipecd.controlplane.auth.request_origin import is_cross_site
from pipecd.controlplane.auth.subject import User
from pipecd.model.count import exceeds
from pipecd.model.errors import Denied, PipecdError
from pipecd.wire.frames import HEADER_BYTES, data_frame, only_message, trailer_frame
from pipecd.wire.server import RECEIVE_LIMIT
from pipecd.wire.status import to_status
from pipecd.wire.table import FORMER_PREFIX, PREFIX, RpcTable

CONTENT_TYPE = "application/grpc-web+proto"
_CONTENT_TYPES = (CONTENT_TYPE, "application/grpc-web")
_READ_TIMEOUT_SECONDS = 30.0


class GrpcWeb:
    """An ASGI application that serves `POST /<service>/<method>` with the RPCs of a table."""

    def __init__(self, table: RpcTable[User]) -> None:
        self._table = table

    def prefixes(self) -> tuple[str, ...]:
        """The path prefixes it serves: the service's name and its former one."""
        name = self._table.service_name.removeprefix(PREFIX)
        return tuple(f"/{prefix}{name}/" for prefix in (PREFIX, FORMER_PREFIX))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = await self._respond(scope, receive)
        response.headers.update(NO_STORE_HEADERS)
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        headers = Headers(scope=scope)
        if scope["method"] != "POST":
            return PlainTextResponse("This endpoint accepts gRPC-Web only.", 405, {"Allow": "POST"})
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in _CONTENT_TYPES:
            return PlainTextResponse(f"The content type must be {CONTENT_TYPE}.", 415)
        try:
            return await self._call(headers, scope["path"], receive)
        except TimeoutError:
            return PlainTextResponse("The request did not arrive in time.", 408)
        except HTTPException as e:
            return PlainTextResponse(e.detail, e.status_code, e.headers)
        except PipecdError as e:
            return _error_response(*to_status(e))

    async def _call(self, headers: Headers, path: str, receive: Receive) -> Response:
        # The session is a cookie, which a browser also sends for pages of other sites.
        if is_cross_site(headers):
            raise Denied("cross-site request")
        # The message of a caller without a session is not read.
        respond = await self._table.admit(path, headers.items())
        async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
            body = await _read_body(headers, receive)
        if body is None:
            return _error_response(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the message is larger than the limit of {RECEIVE_LIMIT} bytes",
            )
        frames = data_frame(await respond(only_message(body))) + trailer_frame(grpc.StatusCode.OK)
        return Response(frames, media_type=CONTENT_TYPE)


async def _read_body(headers: Headers, receive: Receive) -> bytes | None:
    """The whole body, or None if it is too large."""
    limit = RECEIVE_LIMIT + HEADER_BYTES
    if exceeds(headers.get("content-length", ""), limit):
        return None
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _error_response(code: grpc.StatusCode, message: str) -> Response:
    return Response(trailer_frame(code, message), media_type=CONTENT_TYPE)
