# SPDX-License-Identifier: Apache-2.0
"""The traces that pipeds send to the address of the API, for a collector behind it.

Upstream's gateway routes them there. The bytes are handed on as they are, so neither side needs to
know their form.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from pipecd.controlplane.api.gateway.bearer import piped_of
from pipecd.controlplane.auth.credentials import Credentials
from pipecd.model.errors import PipecdError
from pipecd.observe.telemetry import OTLP_EXPORT_METHOD
from pipecd.wire.status import from_rpc_error, to_status

_WITHIN_SECONDS = 10.0

Context = grpc.aio.ServicerContext[bytes, bytes]
Export = Callable[[bytes], Awaitable[bytes]]


class TraceDoor(grpc.GenericRpcHandler):
    """Takes traces from pipeds that prove their key; without a collector they are dropped."""

    def __init__(self, credentials: Credentials, export: Export | None = None) -> None:
        self._credentials, self._export = credentials, export
        # The stubs of gRPC do not know that a method may be asynchronous.
        serve: Any = self._serve
        self._method: Any = grpc.unary_unary_rpc_method_handler(serve)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        return self._method if handler_call_details.method == OTLP_EXPORT_METHOD else None

    async def _serve(self, request: bytes, context: Context) -> bytes:
        try:
            await piped_of(_authorization(context), self._credentials)
            # An empty answer says that everything was taken.
            return await self._export(request) if self._export else b""
        except PipecdError as e:
            await context.abort(*to_status(e))


class Collector:
    """An OpenTelemetry collector that speaks OTLP over gRPC without TLS."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call: Any = channel.unary_unary(OTLP_EXPORT_METHOD)

    @classmethod
    @asynccontextmanager
    async def at(cls, address: str) -> AsyncGenerator["Collector", None]:
        """Connects when there is something to send; the collector may come up later."""
        async with grpc.aio.insecure_channel(address) as channel:
            yield cls(channel)

    async def export(self, request: bytes) -> bytes:
        try:
            return await self._call(request, timeout=_WITHIN_SECONDS)
        except grpc.aio.AioRpcError as e:
            raise from_rpc_error(e) from e


def _authorization(context: Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None
