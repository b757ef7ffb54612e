# SPDX-License-Identifier: Apache-2.0
"""The HTTP application of the REST API.

A request is authenticated, parsed into the message of its RPC, and handled by the same table as
gRPC: with the same validation rules, error codes, logs and metrics.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.api.rest.routes import ROUTES, RestRoute
from pipecd.controlplane.auth.credentials import Source
from pipecd.controlplane.auth.http_headers import NO_STORE_HEADERS
from pipecd.controlplane.auth.request_origin import client_address, lockout_source
from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.model.address import Networks
from pipecd.model.errors import PipecdError, Unauthenticated, UserMistake
from pipecd.wire.server import RECEIVE_LIMIT
from pipecd.wire.status import INTERNAL, to_status
from pipecd.wire.table import RpcTable
from pipecd.wire.validation import is_map

PREFIX = "/api/v1/"

Authenticate = Callable[[str, Source], Awaitable[ApiKeyCaller]]

_READ_TIMEOUT_SECONDS = 30.0
_HTTP_STATUS = {
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
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False, "": False}
# Deeper than any request message, and well below the recursion limit of the parser.
_MAX_DEPTH = 20


def create_rest(
    table: RpcTable[ApiKeyCaller], authenticate: Authenticate, proxies: Networks = ()
) -> Starlette:
    """The REST routes over the table of APIService; `authenticate` checks an API key.

    The `X-Forwarded-For` header is trusted from `proxies` only.
    """
    document = openapi_document()

    async def show_openapi(_request: Request) -> Response:
        return JSONResponse(document, headers=NO_STORE_HEADERS)

    root = PREFIX.rstrip("/")
    routes = [
        Route(
            f"{root}{route.path}",
            _Handler(table, authenticate, proxies, route).handle,
            methods=[route.method],
        )
        for route in ROUTES
    ]
    return Starlette(
        routes=[Route(f"{PREFIX}openapi.json", show_openapi, methods=["GET"]), *routes],
        exception_handlers={HTTPException: _handle_error, Exception: _handle_error},
    )


class _Handler:
    """Handles the requests of one route."""

    def __init__(
        self,
        table: RpcTable[ApiKeyCaller],
        authenticate: Authenticate,
        proxies: Networks,
        route: RestRoute,
    ) -> None:
        self._table, self._authenticate, self._route = table, authenticate, route
        self._proxies = proxies

    async def handle(self, request: Request) -> Response:
        try:
            # The body of an unauthenticated request is not read.
            caller = await self._authenticate(
                _api_key(request), lambda: _source(request, self._proxies)
            )
            try:
                async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
                    body = await _read_body(request)
            except TimeoutError:
                return _error_response(
                    "DEADLINE_EXCEEDED", "the request did not arrive in time", 408
                )
            if body is None:
                message = f"the body is larger than the limit of {RECEIVE_LIMIT} bytes"
                return _error_response("RESOURCE_EXHAUSTED", message, 413)
            query = request.query_params.multi_items()
            parsed = parse_request(self._route, request.path_params, query, body)
            response = await self._table.call(
                self._route.rpc, parsed, caller, request.headers.items()
            )
        except PipecdError as e:
            code, message = to_status(e)
            return _error_response(code.name, message, _HTTP_STATUS.get(code, 500))
        content = json_format.MessageToDict(response, preserving_proto_field_name=True)
        return JSONResponse(content, headers=NO_STORE_HEADERS)


def parse_request(
    route: RestRoute, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: bytes
) -> Message:
    """The message of the RPC; a field in the path wins over the same field in the body."""
    content: dict[str, Any] = {}
    if route.has_body and body.strip():
        try:
            parsed: Any = json.loads(body)
        except (ValueError, RecursionError) as e:
            raise UserMistake("invalid request: the body is not JSON") from e
        if not isinstance(parsed, dict):
            raise UserMistake("invalid request: the body is not an object")
        content = cast("dict[str, Any]", parsed)
    content |= _parse_query(route, query)
    message = GetMessageClass(route.descriptor.input_type)()
    for name in route.path_fields:
        content.pop(name, None)
        content.pop(message.DESCRIPTOR.fields_by_name[name].json_name, None)
    content |= {name: path[name] for name in route.path_fields}
    try:
        json_format.ParseDict(content, message, max_recursion_depth=_MAX_DEPTH)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as e:
        reason = str(e).partition("\n")[0][:300]
        raise UserMistake(f"invalid request: {reason}") from e
    return message


def _parse_query(route: RestRoute, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    fields = route.descriptor.input_type.fields_by_name
    for name, value in query:
        field = fields.get(name)
        if field is None or name in route.path_fields:
            raise UserMistake(f"invalid request: {name!r} is not a parameter of this path")
        if is_map(field):
            key, colon, rest = value.partition(":")
            if not colon:
                raise UserMistake(f"invalid request: write {name} as key:value")
            parameters.setdefault(name, {})[key] = rest
        elif field.is_repeated:
            parameters.setdefault(name, []).append(_parse_parameter(field, value))
        else:
            parameters[name] = _parse_parameter(field, value)
    return parameters


def _parse_parameter(field: Any, value: str) -> Any:
    try:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return _BOOLEANS[value.lower()]
            case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
                return int(value)
            case _:
                return value
    except (ValueError, KeyError) as e:
        raise UserMistake(f"invalid request: {value[:100]!r} is not a valid {field.name}") from e


def _api_key(request: Request) -> str:
    """The API key of the request; most clients send it as `Bearer`, upstream's as `API-KEY`."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() not in ("bearer", "api-key") or not key.strip():
        raise Unauthenticated("missing credentials in authorization", hint="send Bearer <API key>")
    return key.strip()


def _source(request: Request, proxies: Networks) -> str:
    peer = request.client.host if request.client else ""
    return lockout_source(client_address(peer, request.headers.get("x-forwarded-for", ""), proxies))


async def _read_body(request: Request) -> bytes | None:
    """The whole body, or None if it is too large."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > RECEIVE_LIMIT:
                return None
    except ClientDisconnect:
        return b""
    return bytes(body)


def _error_response(code: str, message: str, status: int) -> JSONResponse:
    challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(
        {"code": code, "message": message}, status, {**NO_STORE_HEADERS, **challenge}
    )


async def _handle_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _error_response("INTERNAL", INTERNAL, 500)
    messages = {404: "this path does not exist", 405: "this path does not support the method"}
    message = messages.get(error.status_code, error.detail)
    return _error_response("NOT_FOUND", message, error.status_code)
