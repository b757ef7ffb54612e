# SPDX-License-Identifier: Apache-2.0
"""The standard health service, so that load balancers and piped know when a server is ready."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from pipecd.model.errors import NotFound
from pipecd.wire.credentials import Metadata
from pipecd.wire.table import RpcTable

Request = health_pb2.HealthCheckRequest
Response = health_pb2.HealthCheckResponse


class Health:
    """Whether a server takes calls; the empty name means all of it, others name one service."""

    NAME = "grpc.health.v1.Health"

    def __init__(self, services: Sequence[str]) -> None:
        self._services = frozenset(("", *services))
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
        return self._state()

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, caller: None
    ) -> AsyncIterator[Response]:
        if request.service not in self._services:
            yield Response(status=Response.SERVICE_UNKNOWN)
        else:
            yield self._state()
        await self._leaving.wait()
        yield self._state()

    def _state(self) -> Response:
        leaving = self._leaving.is_set()
        return Response(status=Response.NOT_SERVING if leaving else Response.SERVING)


async def _anybody(metadata: Metadata) -> None:
    """Health is asked without credentials."""
