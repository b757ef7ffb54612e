# SPDX-License-Identifier: Apache-2.0
"""Traces of calls, in the form that collectors of OpenTelemetry take.

A call is a span, and what it asks of the stores are spans within it. Spans are sent in batches from
the background: tracing never holds up or fails a call.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

import grpc
import structlog

from pipecd.model.errors import NotFound, PipecdError
from pipecd.observe.version import build_version
from pipecd.observe.watch import Ended
from pipecd.proto.gateway import otlp_pb2 as pb

log = structlog.get_logger()

MOST_WAITING = 4096
MOST_AT_ONCE = 512
FLUSH_SECONDS = 1.0

Export = Callable[[bytes], Awaitable[object]]

# What the caller did wrong is no error of ours.
_OUR_ERRORS = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.DATA_LOSS,
    }
)


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


class Tracer:
    """Records spans of calls and stores; an `RpcObserver` and a `Watcher`."""

    def __init__(self, service: str, export: Export) -> None:
        self._resource = pb.Resource(
            attributes=_attributes({"service.name": service, "service.version": build_version()})
        )
        self._export = export
        self._current: ContextVar[Span | None] = ContextVar("span", default=None)
        self._waiting: deque[pb.Span] = deque(maxlen=MOST_WAITING)
        self._enough = asyncio.Event()
        self._is_away = False

    def offered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Nothing to record before a call."""

    def started(self, service: str, rpc: str) -> None:
        self._current.set(Span(f"{service}/{rpc}", secrets.token_bytes(16)))

    def sent(self, service: str, rpc: str) -> None:
        """Answers are part of the call."""

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None:
        span = self._current.get()
        self._current.set(None)
        if span is None:
            return
        number: int = code.value[0]
        about = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": rpc,
            "rpc.grpc.status_code": str(number),
        }
        self._keep(span.ended(pb.Span.SERVER, about, code.name if code in _OUR_ERRORS else ""))

    def begun(self, part: str, operation: str) -> Ended:
        """Work for a call is a part of its trace; what nobody called for is left out."""
        caller = self._current.get()
        if caller is None:
            return _unseen
        span = Span(f"{part} {operation}", caller.trace_id, caller.id)

        def ended(error: BaseException | None) -> None:
            failure = _failure(error)
            about = {"pipecd.store": part, "pipecd.operation": operation}
            self._keep(span.ended(pb.Span.CLIENT, about, failure))

        return ended

    async def run(self) -> None:
        """Sends what was recorded, again and again, and what is left at the end."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self._enough.wait()
                await self.flush()
        finally:
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
                    log.warning("traces not sent, dropping them", error=str(e))
                self._is_away = True
                return
            self._is_away = False

    def _request(self, spans: Sequence[pb.Span]) -> pb.ExportTraceServiceRequest:
        scope = pb.InstrumentationScope(name="pipecd", version=build_version())
        batch = pb.ScopeSpans(scope=scope, spans=spans)
        whole = pb.ResourceSpans(resource=self._resource, scope_spans=[batch])
        return pb.ExportTraceServiceRequest(resource_spans=[whole])

    def _keep(self, span: pb.Span) -> None:
        self._waiting.append(span)
        if len(self._waiting) >= MOST_AT_ONCE:
            self._enough.set()


def _unseen(_error: BaseException | None) -> None:
    """Nobody looks."""


def _failure(error: BaseException | None) -> str:
    if error is None or isinstance(error, NotFound):
        return ""
    return type(error).__name__


def _attributes(values: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=pb.Value(string_value=v)) for key, v in values.items()]
