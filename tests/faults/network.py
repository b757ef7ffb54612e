# SPDX-License-Identifier: Apache-2.0
"""The network between pipeds and control planes, which a test can cut, silence and delay.

`TcpProxy` carries bytes and knows nothing of gRPC; `RpcProxy` carries calls, so that single requests
and responses can be lost, repeated or sent late.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import grpc
import grpc.aio

from pipecd.proto.service.batch_pb2 import CallBatchRequest

_CHUNK = 65536
Metadata = tuple[tuple[str, str | bytes], ...]


class LinkState(Enum):
    """What happens to the bytes of a connection."""

    UP = auto()
    # Nothing arrives any more, and nobody is told: a firewall that forgot the connection.
    SILENT = auto()
    # Requests arrive, responses do not.
    HALF_OPEN = auto()


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    state: LinkState = LinkState.UP
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        self.ended.set()
        for writer in (self.client, self.server):
            with suppress(RuntimeError):
                writer.transport.abort()


@dataclass
class TcpProxy:
    """A port that forwards to one of several servers, as a load balancer does."""

    targets: Sequence[int]
    port: int = 0
    is_cut: bool = False
    delay: float = 0.0
    """The seconds that every piece of data takes, in each direction."""
    state_of_new: LinkState = LinkState.UP
    """What happens to the bytes of new connections."""
    links: set[_Link] = field(default_factory=set[_Link])
    accepted: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    """Chooses the server of a connection."""

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["TcpProxy", None]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for link in tuple(self.links):
                link.abort()

    def cut(self) -> None:
        """Resets all connections and every new one."""
        self.is_cut = True
        for link in tuple(self.links):
            link.abort()

    def heal(self) -> None:
        """Lets new connections work; those that were silenced stay silent."""
        self.is_cut, self.delay, self.state_of_new = False, 0.0, LinkState.UP

    def silence(self, state: LinkState = LinkState.SILENT) -> int:
        """Silences the existing connections; new ones work. Returns how many there are."""
        for link in self.links:
            link.state = state
        return len(self.links)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.is_cut:
            writer.transport.abort()
            return
        for target in self.chance.sample(list(self.targets), len(self.targets)):
            with suppress(OSError):
                upstream = await asyncio.open_connection("127.0.0.1", target)
                break
        else:
            writer.transport.abort()
            return
        link = _Link(writer, upstream[1], self.state_of_new)
        self.links.add(link)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry(link, reader, upstream[1], to_client=False))
                tasks.create_task(self._carry(link, upstream[0], writer, to_client=True))
        except asyncio.CancelledError:
            # The end of the proxy; asyncio prints a traceback for a handler that was cancelled.
            pass
        finally:
            self.links.discard(link)
            link.abort()

    async def _carry(
        self,
        link: _Link,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        to_client: bool,
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK):
                if link.state is LinkState.SILENT or (
                    link.state is LinkState.HALF_OPEN and to_client
                ):
                    await link.ended.wait()
                    return
                if self.delay:
                    await asyncio.sleep(self.delay)
                target.write(data)
                await target.drain()
        if link.state is LinkState.SILENT:
            # A silent connection does not even report its end.
            await link.ended.wait()
        link.abort()


def piped_of(metadata: Metadata) -> str:
    """The id of the piped that makes a call: its authorization is project, piped and key."""
    _, piped, *_ = str(dict(metadata).get("authorization", ",")).split(",")
    return piped


@dataclass(frozen=True)
class RecordedCall:
    """A request as it passed, so that it can be sent again."""

    name: str
    method: str
    request: bytes
    metadata: Metadata

    @property
    def rpcs(self) -> Set[str]:
        """The RPC that was called, and those that a batch carries."""
        if self.name != "CallBatch":
            return {self.name}
        return {self.name, *(each.rpc for each in CallBatchRequest.FromString(self.request).calls)}


@dataclass
class RpcProxy(grpc.GenericRpcHandler):
    """A gRPC server that forwards every call of pipeds to a control plane."""

    target: int
    port: int = 0
    losing: dict[str, int] = field(default_factory=dict[str, int])
    """How many of the next responses of each RPC are lost, although the call is carried out."""
    holding: set[str] = field(default_factory=set[str])
    """RPCs whose requests are held back; the caller gets UNAVAILABLE and `release` sends them."""
    held: list[RecordedCall] = field(default_factory=list[RecordedCall])
    recording: set[str] = field(default_factory=set[str])
    """RPCs whose requests are recorded; `*` stands for all of them."""
    recorded: list[RecordedCall] = field(default_factory=list[RecordedCall])
    delays: dict[str, float] = field(default_factory=dict[str, float])
    """How many seconds the requests of an RPC are delayed at most, so that they change their order."""
    doubling: set[str] = field(default_factory=set[str])
    """RPCs whose requests arrive twice, at the same moment."""
    at_call: dict[tuple[str, str], Callable[[str], bool]] = field(
        default_factory=dict[tuple[str, str], Callable[[str], bool]]
    )
    """What happens once, `before` the next call of an RPC, `during` it, or `after` it took effect.

    It gets the piped and returns whether it happened to it; a call `before` which it happens is lost.
    """
    on_response: Callable[[RecordedCall, bytes], None] | None = None
    """Gets every call that the control plane answered, with the answer."""
    unimplemented: set[str] = field(default_factory=set[str])
    """RPCs that are answered with UNIMPLEMENTED, as upstream's control plane does with ours."""
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    """Chooses how long a request is delayed."""
    effects: Counter[str] = field(default_factory=Counter[str])
    """How many requests were `held`, `delayed` and `doubled`, and how many responses `lost`."""
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict[str, grpc.aio.Channel])

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["RpcProxy", None]:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers([self])
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)
            for channel in self._channels.values():
                await channel.close()

    def _channel(self, metadata: Metadata) -> grpc.aio.Channel:
        """The connection of a piped, as if it had called the balancer itself."""
        piped = piped_of(metadata)
        if piped not in self._channels:
            options = [
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 500),
                # Channels to the same address share a connection otherwise.
                ("grpc.use_local_subchannel_pool", 1),
            ]
            self._channels[piped] = grpc.aio.insecure_channel(
                f"127.0.0.1:{self.target}", options=options
            )
        return self._channels[piped]

    async def send(self, call: RecordedCall) -> grpc.StatusCode:
        """Sends a recorded request to the control plane; returns what becomes of it."""
        try:
            await self._channel(call.metadata).unary_unary(call.method)(
                call.request, metadata=call.metadata, timeout=10
            )
        except grpc.aio.AioRpcError as e:
            return e.code()
        return grpc.StatusCode.OK

    async def release(self) -> list[tuple[RecordedCall, grpc.StatusCode]]:
        """Sends what was held back, in the order in which it came."""
        held, self.held = self.held, []
        self.holding.clear()
        return [(call, await self.send(call)) for call in held]

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if method.rpartition("/")[2] in self.unimplemented:
            return None
        metadata = tuple(
            (str(key), value)
            for key, value in handler_call_details.invocation_metadata
            if key not in ("user-agent",)
        )
        if method.endswith("/WatchWakeups"):
            return grpc.unary_stream_rpc_method_handler(self._stream(method, metadata))
        return grpc.unary_unary_rpc_method_handler(self._unary(method, metadata))

    def _unary(self, method: str, metadata: Metadata) -> Any:
        name = method.rpartition("/")[2]

        async def serve(request: bytes, context: Any) -> bytes:
            call = RecordedCall(name, method, request, metadata)
            # What is planned for an RPC happens to the request that carries it among others, too.
            names = call.rpcs
            if self.recording & {*names, "*"}:
                self.recorded.append(call)
            if names & self.holding:
                self.held.append(call)
                self.effects["held"] += 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the network lost the request")
            if most := max(self.delays.get(each, 0.0) for each in names):
                self.effects["delayed"] += 1
                await asyncio.sleep(self.chance.uniform(0, most))
            if self._reach(names, "before", metadata):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the piped died")
            try:
                sending = self._channel(metadata).unary_unary(method)(
                    request, metadata=metadata, timeout=context.time_remaining()
                )
                if names & self.doubling:
                    self.effects["doubled"] += 1
                    await self.send(call)
                self._reach(names, "during", metadata)
                response: bytes = await sending
            except grpc.aio.AioRpcError as e:
                await context.abort(e.code(), e.details() or "", e.trailing_metadata() or ())
                raise
            if self.on_response is not None:
                self.on_response(call, response)
            self._reach(names, "after", metadata)
            if losing := [each for each in names if self.losing.get(each, 0)]:
                for each in losing:
                    self.losing[each] -= 1
                self.effects["lost"] += 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the network lost the response")
            return response

        return serve

    def _reach(self, names: Set[str], when: str, metadata: Metadata) -> bool:
        """Does what was planned for one of these calls; returns whether something was."""
        for name in names:
            happens = self.at_call.get((name, when))
            if happens is not None and happens(piped_of(metadata)):
                del self.at_call[name, when]
                return True
        return False

    def heal(self) -> None:
        """Carries calls as they come; what is held back is left to `release`."""
        self.losing.clear()
        self.delays.clear()
        self.doubling.clear()
        self.at_call.clear()

    def _stream(self, method: str, metadata: Metadata) -> Any:
        async def serve(request: bytes, context: Any) -> AsyncIterator[bytes]:
            call = self._channel(metadata).unary_stream(method)(request, metadata=metadata)
            try:
                async for response in call:
                    yield response
            except grpc.aio.AioRpcError as e:
                await context.abort(e.code(), e.details() or "")
            finally:
                call.cancel()

        return serve
