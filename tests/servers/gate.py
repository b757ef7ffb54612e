# SPDX-License-Identifier: Apache-2.0
"""A gate before the gRPC service of a control plane that refuses calls, or holds or loses answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from servers.batches import BATCH, each_call

Serve = Callable[[bytes, Any], Awaitable[bytes]]


class Trace(list[str]):
    """What happened, line by line; tests wait for a line."""

    def __init__(self) -> None:
        super().__init__()
        self._written = asyncio.Condition()

    async def write(self, line: str) -> None:
        self.append(line)
        async with self._written:
            self._written.notify_all()

    async def wait_for(self, line: str, *, within: float = 20) -> None:
        async with asyncio.timeout(within), self._written:
            await self._written.wait_for(lambda: line in self)


@dataclass
class RpcGate(grpc.GenericRpcHandler):
    """Counts the calls and passes them on, except those that a test names."""

    table: grpc.GenericRpcHandler
    calls: list[str] = field(default_factory=list[str])
    """Every call, also a refused one and one of a batch."""
    opens_batches: bool = True
    """Whether the calls of a batch are counted, refused and held one by one."""
    refusals: dict[str, grpc.StatusCode] = field(default_factory=dict[str, grpc.StatusCode])
    """The status codes of calls that are not passed on; `*` stands for every call."""
    refused: Trace = field(default_factory=Trace)
    lost_answers: set[str] = field(default_factory=set[str])
    """Calls that are carried out, but whose next answer does not arrive."""
    held_answers: set[str] = field(default_factory=set[str])
    """Calls that are carried out and never answered, until the caller is killed."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        self.calls.append(name)
        code = self.refusals.get(name) or self.refusals.get("*")
        if code is not None:
            return _handler(self._refuse(name, code))
        if name == BATCH and self.opens_batches:
            return each_call(self.service, handler_call_details)
        handler = self.table.service(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        if name in self.lost_answers:
            self.lost_answers.discard(name)
            return _handler(_lose_answer(handler.unary_unary))
        if name in self.held_answers:
            return _handler(self._hold_answer(name, handler.unary_unary))
        return handler

    def count(self, name: str) -> int:
        return self.calls.count(name)

    def close(self, *names: str) -> None:
        """Answers these calls, or all, as a control plane that is unavailable."""
        self.refusals |= dict.fromkeys(names or ("*",), grpc.StatusCode.UNAVAILABLE)

    def open(self) -> None:
        """Passes every call on again."""
        self.refusals.clear()

    def _refuse(self, name: str, code: grpc.StatusCode) -> Serve:
        async def refuse(request: bytes, context: Any) -> bytes:
            await self.refused.write(name)
            await context.abort(code, f"the gate says {code.name}")
            return b""

        return refuse

    def _hold_answer(self, name: str, serve: Serve) -> Serve:
        async def hold(request: bytes, context: Any) -> bytes:
            await serve(request, context)
            self.calls.append(f"{name} done")
            await asyncio.Event().wait()
            return b""

        return hold


def _lose_answer(serve: Serve) -> Serve:
    async def lose(request: bytes, context: Any) -> bytes:
        await serve(request, context)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return b""

    return lose


def _handler(serve: Serve) -> Any:
    return grpc.unary_unary_rpc_method_handler(serve)  # type: ignore[arg-type]
