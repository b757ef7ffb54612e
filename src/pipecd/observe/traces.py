# SPDX-License-Identifier: Apache-2.0
"""Traces of calls: a call is a span, and what it asks of the stores are spans within it.

A caller that traces says so in the header `traceparent` of W3C; its trace is continued.
"""

import re
import secrets
from contextvars import ContextVar
from typing import NamedTuple

import grpc

from pipecd.model.errors import NotFound
from pipecd.observe.spans import Export, Span, Spans
from pipecd.observe.watch import Ended, Headers
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


_TRACEPARENT = re.compile(
    "(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    "-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
FIRST_VERSION, SAMPLED = "00", 1


class Tracer:
    """Records spans of calls and stores; an `RpcObserver` and a `Watcher`."""

    def __init__(self, service: str, export: Export) -> None:
        self._spans = Spans({"service.name": service}, export)
        self._current: ContextVar[Span | None] = ContextVar("span", default=None)

    def offered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Nothing to record before a call."""

    def started(self, service: str, rpc: str, metadata: Headers) -> None:
        came_from = _caller(metadata)
        if came_from is None:
            self._current.set(Span(f"{service}/{rpc}", secrets.token_bytes(16)))
        elif came_from.is_wanted:
            self._current.set(Span(f"{service}/{rpc}", came_from.trace_id, came_from.span_id))

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


class _Caller(NamedTuple):
    """The span of whoever called, and whether its trace is to be kept."""

    trace_id: bytes
    span_id: bytes
    is_wanted: bool


def _caller(headers: Headers) -> _Caller | None:
    """What the caller says about its trace; nothing if it does not, or not in order."""
    found = next((value for name, value in headers if name == "traceparent"), "")
    text = found if isinstance(found, str) else found.decode("latin-1")
    parts = _TRACEPARENT.fullmatch(text)
    # Only a later version may say more after what this one says.
    if parts is None or (parts["more"] and parts["version"] == FIRST_VERSION):
        return None
    trace_id, span_id = bytes.fromhex(parts["trace"]), bytes.fromhex(parts["span"])
    if not any(trace_id) or not any(span_id):
        return None
    return _Caller(trace_id, span_id, bool(int(parts["flags"], 16) & SAMPLED))


def _unseen(_error: BaseException | None) -> None:
    """Nobody looks."""


def _failure(error: BaseException | None) -> str:
    if error is None or isinstance(error, NotFound):
        return ""
    return type(error).__name__
