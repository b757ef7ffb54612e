# SPDX-License-Identifier: Apache-2.0
"""The standard gRPC health service, for load balancers and piped."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import cast

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from pipecd.model.errors import NotFound
from pipecd.wire.credentials import Metadata
from pipecd.wire.table import RpcTable

Request = health_pb2.HealthCheckRequest
Response = health_pb2.HealthCheckResponse
ReadinessCheck = Callable[[], Awaitable[bool]]

# How often Watch polls the readiness check, in seconds.
POLL_SECONDS = 1.0


class Health:
    """Reports whether a server takes calls; the empty service name means the whole server.

    A server is ready when it is up and the check `ready`, if there is one, succeeds.
    """

    NAME = "grpc.health.v1.Health"

    def __init__(self, services: Sequence[str], ready: ReadinessCheck | None = None) -> None:
        self._services = frozenset(("", *services))
        self._ready = ready
        self._stopping = asyncio.Event()

    def rpcs(self) -> RpcTable[None]:
        """Returns the handlers of Check and Watch, which need no credentials."""
        service = cast("ServiceDescriptor", health_pb2.DESCRIPTOR.services_by_name["Health"])

        async def allow_any(metadata: Metadata) -> None:
            del metadata

        # Newer versions of the service have a List, which no client of ours uses.
        others = frozenset(rpc.name for rpc in service.methods) - {"Check", "Watch"}
        streams = {"Watch": (Request, self._watch)}
        return RpcTable(service, [self], allow_any, unimplemented=others, streams=streams)

    def stop(self) -> None:
        """Reports NOT_SERVING to every watcher, before the server stops."""
        self._stopping.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, caller: None) -> Response:
        if request.service not in self._services:
            raise NotFound("unknown service")
        return await self._state()

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, caller: None
    ) -> AsyncIterator[Response]:
        if request.service not in self._services:
            yield Response(status=Response.SERVICE_UNKNOWN)
            await self._stopping.wait()
        reported: Response | None = None
        while not self._stopping.is_set():
            state = await self._state()
            if state != reported:
                yield state
                reported = state
            with suppress(TimeoutError):
                # Without a readiness check the state changes only when the server stops.
                async with asyncio.timeout(POLL_SECONDS if self._ready else None):
                    await self._stopping.wait()
        yield await self._state()

    async def _state(self) -> Response:
        is_serving = not self._stopping.is_set() and (self._ready is None or await self._ready())
        return Response(status=Response.SERVING if is_serving else Response.NOT_SERVING)
