# SPDX-License-Identifier: Apache-2.0
"""Spans on their way to a collector of OpenTelemetry.

They are sent in batches from the background: tracing never holds up or fails what is traced.
"""

import asyncio
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from pipecd.model.errors import PipecdError, Unsupported
from pipecd.observe.version import build_version
from pipecd.proto.gateway import otlp_pb2 as pb

log = structlog.get_logger()

# Where collectors, and control planes in front of them, take spans.
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MOST_WAITING = 4096
MOST_AT_ONCE = 512
FLUSH_SECONDS = 1.0

Export = Callable[[bytes], Awaitable[object]]


@dataclass
class Span:
    """A piece of work that goes on."""

    name: str
    trace_id: bytes
    parent: bytes = b""
    id: bytes = field(default_factory=lambda: secrets.token_bytes(8))
    started: int = field(default_factory=time.time_ns)

    def ended(
        self, kind: "pb.Span.Kind.ValueType", attributes: Mapping[str, str], failure: str = ""
    ) -> pb.Span:
        span = pb.Span(
            trace_id=self.trace_id,
            span_id=self.id,
            parent_span_id=self.parent,
            name=self.name,
            kind=kind,
            start_time_unix_nano=self.started,
            end_time_unix_nano=time.time_ns(),
            attributes=_attributes(attributes),
        )
        if failure:
            span.status.code, span.status.message = pb.Span.Status.ERROR, failure
        return span


class Spans:
    """The spans of one program that were not sent yet; the oldest give way when there are many."""

    def __init__(self, resource: Mapping[str, str], export: Export) -> None:
        about = {"service.version": build_version(), **resource}
        self._resource = pb.Resource(attributes=_attributes(about))
        self._export = export
        self._waiting: deque[tuple[str, pb.Span]] = deque(maxlen=MOST_WAITING)
        self._enough = asyncio.Event()
        self._is_away = False

    def add(self, span: pb.Span, *, scope: str = "pipecd") -> None:
        """Takes a span that has ended; `scope` is the part of the program that it is of."""
        self._waiting.append((scope, span))
        if len(self._waiting) >= MOST_AT_ONCE:
            self._enough.set()

    async def run(self) -> None:
        """Sends what was recorded, again and again."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._enough.wait()
            await self.flush()

    async def end(self) -> None:
        """Sends what is left, if that does not take long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.flush()

    async def flush(self) -> None:
        self._enough.clear()
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
            try:
                await self._export(self._request(some).SerializeToString())
            except PipecdError as e:
                if not self._is_away:
                    # That a server has no place for traces is nothing to worry about.
                    tell = log.info if isinstance(e, Unsupported) else log.warning
                    tell("traces not sent, dropping them", error=str(e))
                self._is_away = True
                return
            self._is_away = False

    def _request(self, some: Sequence[tuple[str, pb.Span]]) -> pb.ExportTraceServiceRequest:
        by_scope: defaultdict[str, list[pb.Span]] = defaultdict(list)
        for scope, span in some:
            by_scope[scope].append(span)
        batches = [
            pb.ScopeSpans(
                scope=pb.InstrumentationScope(name=name, version=build_version()), spans=spans
            )
            for name, spans in by_scope.items()
        ]
        whole = pb.ResourceSpans(resource=self._resource, scope_spans=batches)
        return pb.ExportTraceServiceRequest(resource_spans=[whole])


def _attributes(values: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=pb.Value(string_value=v)) for key, v in values.items()]
