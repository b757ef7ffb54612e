# SPDX-License-Identifier: Apache-2.0
"""JSON over HTTP: an address becomes a call of APIService, with its checks, codes and figures."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipecd.controlplane.api.rest.addresses import ADDRESSES, Address
from pipecd.controlplane.api.rest.description import openapi
from pipecd.controlplane.api.rest.request import request_of
from pipecd.controlplane.auth.http_headers import NO_STORE_HEADERS
from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.model.errors import PipecdError, Unauthenticated
from pipecd.wire.credentials import api_key
from pipecd.wire.server import RECEIVE_LIMIT
from pipecd.wire.status import INTERNAL, to_status
from pipecd.wire.table import RpcTable

PREFIX = "/api/v1/"

Verify = Callable[[str], Awaitable[ApiKeyCaller]]
_PATIENCE_SECONDS = 30.0
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
}


def create_rest(table: RpcTable[ApiKeyCaller], verify: Verify) -> Starlette:
    """The addresses over a table of APIService, and `openapi.json`, which describes them.

    `verify` checks a key before the request of a stranger is read; the table checks it again.
    """
    described = openapi()

    async def description(_request: Request) -> Response:
        return JSONResponse(described, headers=NO_STORE_HEADERS)

    root = PREFIX.rstrip("/")
    routes = [
        Route(f"{root}{one.path}", _Call(table, verify, one).answer, methods=[one.method])
        for one in ADDRESSES
    ]
    return Starlette(
        routes=[Route(f"{PREFIX}openapi.json", description, methods=["GET"]), *routes],
        exception_handlers={HTTPException: _by_status, Exception: _unexpected},
    )


class _Call:
    """One address."""

    def __init__(self, table: RpcTable[ApiKeyCaller], verify: Verify, address: Address) -> None:
        self._table, self._verify, self._address = table, verify, address
        self._answer = GetMessageClass(address.descriptor.output_type)

    async def answer(self, request: Request) -> Response:
        try:
            return await self._called(request)
        except PipecdError as e:
            code, words = to_status(e)
            return _refusal(code.name, words, _STATUSES.get(code, 500))

    async def _called(self, request: Request) -> Response:
        key = _key(request)
        await self._verify(key)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                body = await _body(request)
        except TimeoutError:
            return _refusal("DEADLINE_EXCEEDED", "the request did not arrive in time", 408)
        if body is None:
            words = f"the body is larger than the limit of {RECEIVE_LIMIT} bytes"
            return _refusal("RESOURCE_EXHAUSTED", words, 413)
        message = request_of(
            self._address, request.path_params, request.query_params.multi_items(), body
        )
        metadata = (("authorization", api_key(key)),)
        answered = await self._table.dispatch(
            self._address.rpc, message.SerializeToString(), metadata
        )
        told = json_format.MessageToDict(
            self._answer.FromString(answered), preserving_proto_field_name=True
        )
        return JSONResponse(told, headers=NO_STORE_HEADERS)


def _key(request: Request) -> str:
    """The API key; `Bearer` is how most programs send one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() not in ("bearer", "api-key") or not key.strip():
        raise Unauthenticated("missing credentials in authorization", hint="send Bearer <API key>")
    return key.strip()


async def _body(request: Request) -> bytes | None:
    """The whole body, or None when it is too large."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > RECEIVE_LIMIT:
                return None
    except ClientDisconnect:
        return b""
    return bytes(body)


def _refusal(code: str, words: str, status: int) -> JSONResponse:
    headers = (
        {**NO_STORE_HEADERS, "WWW-Authenticate": "Bearer"} if status == 401 else NO_STORE_HEADERS
    )
    return JSONResponse({"code": code, "message": words}, status, headers)


async def _by_status(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: "this address does not exist", 405: "this address takes another method"}
    return _refusal("NOT_FOUND", words.get(status, "that cannot be done"), status)


async def _unexpected(_request: Request, _error: Exception) -> Response:
    return _refusal("INTERNAL", INTERNAL, 500)
