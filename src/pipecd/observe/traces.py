# SPDX-License-Identifier: Apache-2.0
"""Traces of calls: a call is a span, and what it asks of the stores are spans within it."""

import secrets
from contextvars import ContextVar

import grpc

from pipecd.model.errors import NotFound
from pipecd.observe.spans import Export, Span, Spans
from pipecd.observe.watch import Ended
from pipecd.proto.gateway import otlp_pb2 as pb

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


class Tracer:
    """Records spans of calls and stores; an `RpcObserver` and a `Watcher`."""

    def __init__(self, service: str, export: Export) -> None:
        self._spans = Spans({"service.name": service}, export)
        self._current: ContextVar[Span | None] = ContextVar("span", default=None)

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
        self._spans.add(span.ended(pb.Span.SERVER, about, code.name if code in _OUR_ERRORS else ""))

    def begun(self, part: str, operation: str) -> Ended:
        """Work for a call is a part of its trace; what nobody called for is left out."""
        caller = self._current.get()
        if caller is None:
            return _unseen
        span = Span(f"{part} {operation}", caller.trace_id, caller.id)

        def ended(error: BaseException | None) -> None:
            failure = _failure(error)
            about = {"pipecd.store": part, "pipecd.operation": operation}
            self._spans.add(span.ended(pb.Span.CLIENT, about, failure))

        return ended

    async def run(self) -> None:
        """Sends what was recorded, again and again, and what is left at the end."""
        try:
            await self._spans.run()
        finally:
            await self._spans.end()


def _unseen(_error: BaseException | None) -> None:
    """Nobody looks."""


def _failure(error: BaseException | None) -> str:
    if error is None or isinstance(error, NotFound):
        return ""
    return type(error).__name__
