# SPDX-License-Identifier: Apache-2.0
"""The duties of upstream's Envoy gateway: `ext_authz` checks, and traces of pipeds.

Pipeds send traces to the address of the API. They are forwarded unparsed to the collector.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from pipecd.controlplane.auth.credentials import Credentials, Source
from pipecd.controlplane.auth.request_origin import call_source, lockout_source
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.model.address import Networks
from pipecd.model.errors import Denied, PipecdError, Unauthenticated
from pipecd.observe.telemetry import OTLP_EXPORT_METHOD
from pipecd.proto.gateway import authz_pb2 as pb
from pipecd.wire.credentials import Metadata, PipedToken
from pipecd.wire.status import from_rpc_error, to_status
from pipecd.wire.table import RpcTable, call_metadata

_SCHEME = "Bearer "


async def authenticate_bearer(
    header: str | None, credentials: Credentials, source: Source
) -> PipedCaller:
    """The piped of an `authorization` header; only a missing header is Unauthenticated."""
    if not header:
        raise Unauthenticated("missing authorization header")
    if not header.startswith(_SCHEME):
        raise Denied("invalid authorization header")
    parts = header.removeprefix(_SCHEME).strip().split(",")
    if len(parts) != 3 or not all(parts):
        raise Denied("malformed piped token")
    try:
        return await credentials.piped(PipedToken(*parts), source)
    except Unauthenticated as e:
        raise Denied(e.message) from e


SERVICE = pb.DESCRIPTOR.services_by_name["Authorization"]


class AuthorizationRpcs:
    """The `Check` RPC; a denied request is an OK response with the denial in it."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def Check(self, request: pb.CheckRequest, _caller: None) -> pb.CheckResponse:
        headers = request.attributes.request.http.headers
        # Envoy appends the address of its client.
        client = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        try:
            await authenticate_bearer(
                headers.get("authorization"), self._credentials, lambda: lockout_source(client)
            )
        except PipecdError as e:
            return _check_response(*to_status(e))
        return _check_response(grpc.StatusCode.OK, "OK")


def authz_table(cases: UseCases) -> RpcTable[None]:
    """Envoy's authorization service; Envoy itself sends no credentials."""

    async def allow_any(_metadata: Metadata) -> None:
        """Accepts any caller."""

    return RpcTable(SERVICE, [AuthorizationRpcs(cases.credentials)], allow_any)


def _check_response(code: grpc.StatusCode, message: str) -> pb.CheckResponse:
    number: int = code.value[0]
    return pb.CheckResponse(status=pb.CheckResponse.Status(code=number, message=message))


_TIMEOUT_SECONDS = 10.0

Context = grpc.aio.ServicerContext[bytes, bytes]
Export = Callable[[bytes], Awaitable[bytes]]


class TraceForwarder(grpc.GenericRpcHandler):
    """Receives traces of authenticated pipeds; without a collector they are dropped."""

    def __init__(
        self, credentials: Credentials, export: Export | None = None, proxies: Networks = ()
    ) -> None:
        self._credentials, self._export, self._proxies = credentials, export, proxies
        # The type stubs of gRPC do not allow an asynchronous handler here.
        serve: Any = self._serve
        self._method: Any = grpc.unary_unary_rpc_method_handler(serve)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        return self._method if handler_call_details.method == OTLP_EXPORT_METHOD else None

    async def _serve(self, request: bytes, context: Context) -> bytes:
        metadata = call_metadata(context)
        header = next((value for name, value in metadata if name == "authorization"), None)
        if isinstance(header, bytes):
            header = header.decode("latin-1")
        try:
            await authenticate_bearer(
                header, self._credentials, lambda: call_source(metadata, self._proxies)
            )
            # An empty response means that all spans were accepted.
            return await self._export(request) if self._export else b""
        except PipecdError as e:
            await context.abort(*to_status(e))


class TraceCollector:
    """An OpenTelemetry collector, reached by OTLP over gRPC without TLS."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call: Any = channel.unary_unary(OTLP_EXPORT_METHOD)

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str) -> AsyncGenerator["TraceCollector", None]:
        """A client that connects with its first request; the collector may start later."""
        async with grpc.aio.insecure_channel(address) as channel:
            yield cls(channel)

    async def export(self, request: bytes) -> bytes:
        try:
            return await self._call(request, timeout=_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as e:
            raise from_rpc_error(e) from e
