# SPDX-License-Identifier: Apache-2.0
"""An OpenTelemetry collector that stores the spans it receives."""

import asyncio
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipecd.observe.telemetry import OTLP_EXPORT_METHOD


class TraceCollector(grpc.GenericRpcHandler):
    """Takes traces as a collector of OpenTelemetry does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        # The attributes of the resource and the scope of each span, by its id.
        self.resources: dict[bytes, dict[str, str]] = {}
        self.scopes: dict[bytes, str] = {}
        self.arrived = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != OTLP_EXPORT_METHOD:
            return None
        serve: Any = self._serve
        return grpc.unary_unary_rpc_method_handler(serve)

    async def _serve(self, request: bytes, _context: Any) -> bytes:
        for whole in ExportTraceServiceRequest.FromString(request).resource_spans:
            about = {a.key: a.value.string_value for a in whole.resource.attributes}
            self.services.add(about["service.name"])
            for batch in whole.scope_spans:
                self.spans += batch.spans
                for span in batch.spans:
                    self.resources[span.span_id] = about
                    self.scopes[span.span_id] = batch.scope.name
        self.arrived.set()
        return b""

    async def named(self, name: str) -> Span:
        """The first span of that name, once it has arrived."""
        async with asyncio.timeout(10):
            while True:
                for span in self.spans:
                    if span.name == name:
                        return span
                self.arrived.clear()
                await self.arrived.wait()
