# SPDX-License-Identifier: Apache-2.0
"""Traces with OpenTelemetry: spans of RPCs, of store operations and of deployments.

This module needs the extra `tracing` and is imported only when there is something to trace.
Providers are passed on; no global one is set. The spans travel over the channel that the caller
provides, so that piped exports with its own connection and its current key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar

import grpc
import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pipecd.model.errors import NotFound, PipecdError, Unsupported
from pipecd.observe.operations import Ended, Headers
from pipecd.observe.version import build_version

log = structlog.get_logger()

MAX_QUEUED_SPANS = 4096
MAX_SPANS_PER_EXPORT = 512
FLUSH_SECONDS = 1.0
_EXPORT_TIMEOUT_SECONDS = 10.0
_LAST_EXPORT_TIMEOUT_SECONDS = 1.0
# Errors of the caller are no errors of the server.
_SERVER_ERRORS = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.DATA_LOSS,
    }
)

# Sends a serialised ExportTraceServiceRequest; called in the event loop.
Export = Callable[[bytes], Awaitable[object]]


class Tracing:
    """The tracer provider of one program; exports spans in batches from the background."""

    def __init__(self, resource: Mapping[str, str], export: Export) -> None:
        self._exporter = _ChannelExporter(export, asyncio.get_running_loop())
        self._ids = _TraceIds()
        self._tracers: dict[str, Tracer] = {}
        self._provider = TracerProvider(
            sampler=ParentBased(ALWAYS_ON),
            resource=Resource({"service.version": build_version(), **resource}),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=MAX_QUEUED_SPANS,
                schedule_delay_millis=FLUSH_SECONDS * 1000,
                max_export_batch_size=MAX_SPANS_PER_EXPORT,
            )
        )

    def start_span(
        self,
        name: str,
        *,
        scope: str = "pipecd",
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Span | Context | None = None,
        trace_id: int | None = None,
    ) -> Span:
        """Starts a span; without a parent it begins a trace, with the id `trace_id` if given.

        `scope` is the part of the program that records it.
        """
        self._ids.next_trace_id = trace_id
        if (tracer := self._tracers.get(scope)) is None:
            tracer = self._tracers[scope] = self._provider.get_tracer(scope, build_version())
        context = set_span_in_context(parent, Context()) if isinstance(parent, Span) else parent
        return tracer.start_span(name, context or Context(), kind)

    def end_span(self, span: Span, attributes: Mapping[str, str], failure: str = "") -> None:
        """Ends a span, as an error if there is a failure."""
        span.set_attributes(attributes)
        if failure:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end()

    async def shutdown(self) -> None:
        """Exports the queued spans, unless that takes longer than a moment, and stops."""
        self._exporter.hurry()
        await asyncio.to_thread(self._provider.shutdown)


class RpcTracer:
    """Traces the RPCs of a server and their store operations.

    An `RpcObserver` and an `OperationObserver`. A trace that the caller announces in the W3C header
    `traceparent` is continued, or left out when the caller does not sample it.
    """

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self._current: ContextVar[Span | None] = ContextVar("span", default=None)

    def registered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Spans need no preparation."""

    def started(self, service: str, rpc: str, metadata: Headers) -> None:
        headers = {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in metadata
            if name in ("traceparent", "tracestate")
        }
        parent = TraceContextTextMapPropagator().extract(headers, Context())
        span = self.tracing.start_span(f"{service}/{rpc}", kind=SpanKind.SERVER, parent=parent)
        self._current.set(span if span.is_recording() else None)

    def sent(self, service: str, rpc: str) -> None:
        """Responses are part of the span of their RPC."""

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None:
        span = self._current.get()
        self._current.set(None)
        if span is None:
            return
        number: int = code.value[0]
        attributes = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": rpc,
            "rpc.grpc.status_code": str(number),
        }
        self.tracing.end_span(span, attributes, code.name if code in _SERVER_ERRORS else "")

    def begun(self, store: str, operation: str) -> Ended:
        """Traces an operation within the span of its RPC; background work is not traced."""
        caller = self._current.get()
        if caller is None:
            return _ignore
        span = self.tracing.start_span(f"{store} {operation}", kind=SpanKind.CLIENT, parent=caller)

        def ended(error: BaseException | None) -> None:
            failed = error is not None and not isinstance(error, NotFound)
            attributes = {"pipecd.store": store, "pipecd.operation": operation}
            self.tracing.end_span(span, attributes, type(error).__name__ if failed else "")

        return ended


def _ignore(_error: BaseException | None) -> None:
    """The operation is not traced."""


class _TraceIds(RandomIdGenerator):
    """Random ids; the next trace can be given a known one."""

    next_trace_id: int | None = None

    def generate_trace_id(self) -> int:
        return self.next_trace_id or super().generate_trace_id()


class _ChannelExporter(SpanExporter):
    """Encodes spans as OTLP and sends them through the event loop; called in a thread."""

    def __init__(self, export: Export, loop: asyncio.AbstractEventLoop) -> None:
        self._export, self._loop = export, loop
        self._timeout = _EXPORT_TIMEOUT_SECONDS
        self._is_failing = False

    def hurry(self) -> None:
        """Shortens the timeout of the last exports; after a failure the rest is dropped."""
        self._timeout = _LAST_EXPORT_TIMEOUT_SECONDS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._is_failing and self._timeout == _LAST_EXPORT_TIMEOUT_SECONDS:
            return SpanExportResult.FAILURE
        try:
            sending = asyncio.run_coroutine_threadsafe(self._send(spans), self._loop)
            sending.result(self._timeout + 1)
        except (PipecdError, TimeoutError, RuntimeError) as e:
            if not self._is_failing:
                # Upstream's control planes may have no endpoint for traces.
                report = log.info if isinstance(e, Unsupported) else log.warning
                report("traces cannot be exported, dropping spans", error=str(e) or "timeout")
            self._is_failing = True
            return SpanExportResult.FAILURE
        self._is_failing = False
        return SpanExportResult.SUCCESS

    async def _send(self, spans: Sequence[ReadableSpan]) -> None:
        async with asyncio.timeout(self._timeout):
            await self._export(encode_spans(spans).SerializeToString())
