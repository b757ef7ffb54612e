# SPDX-License-Identifier: Apache-2.0
"""The standard health service, so that load balancers and piped know when a server is ready."""

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
Ready = Callable[[], Awaitable[bool]]

# How soon whoever watches hears that a server has become ready or has ceased to be.
LOOK_SECONDS = 1.0


class Health:
    """Whether a server takes calls; the empty name means all of it, others name one service.

    A server that is up may still lack what it needs to answer; `ready` tells.
    """

    NAME = "grpc.health.v1.Health"

    def __init__(self, services: Sequence[str], ready: Ready | None = None) -> None:
        self._services = frozenset(("", *services))
        self._ready = ready
        self._leaving = asyncio.Event()

    def rpcs(self) -> RpcTable[None]:
        """What a server adds to answer Check and Watch, to anybody."""
        service = cast("ServiceDescriptor", health_pb2.DESCRIPTOR.services_by_name["Health"])
        # Newer versions of the service know a List, which nobody needs here.
        others = frozenset(rpc.name for rpc in service.methods) - {"Check", "Watch"}
        streams = {"Watch": (Request, self._watch)}
        return RpcTable(service, [self], _anybody, not_yet=others, streams=streams)

    def leave(self) -> None:
        """Tells everyone who watches that the server is about to stop."""
        self._leaving.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, caller: None) -> Response:
        if request.service not in self._services:
            raise NotFound("unknown service")
        return await self._state()

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, caller: None
    ) -> AsyncIterator[Response]:
        if request.service not in self._services:
            yield Response(status=Response.SERVICE_UNKNOWN)
            await self._leaving.wait()
        told: Response | None = None
        while not self._leaving.is_set():
            state = await self._state()
            if state != told:
                yield state
                told = state
            with suppress(TimeoutError):
                # Without anything to ask, only the end is news.
                async with asyncio.timeout(LOOK_SECONDS if self._ready else None):
                    await self._leaving.wait()
        yield await self._state()

    async def _state(self) -> Response:
        serves = not self._leaving.is_set() and (self._ready is None or await self._ready())
        return Response(status=Response.SERVING if serves else Response.NOT_SERVING)


async def _anybody(metadata: Metadata) -> None:
    """Health is asked without credentials."""
