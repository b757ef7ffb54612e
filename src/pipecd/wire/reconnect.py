# SPDX-License-Identifier: Apache-2.0
"""A channel that replaces a connection that fell silent.

A firewall that forgot a connection, or a machine that lost its power, ends a connection without a
word: calls wait for their deadline, and the next ones wait on the same connection. HTTP/2 pings
would notice, but servers of gRPC in Go refuse more than one in 5 minutes. So a response that is
late starts a probe, which is a health check over the same connection. Any answer proves that the
connection works and that the call is only slow; without one the connection is replaced.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio
import structlog

from pipecd.model.backoff import Backoff
from pipecd.model.errors import Unavailable
from pipecd.wire.cancellation import watch_cancellation
from pipecd.wire.channel import Authorization, channel_factory, wait_until_connected

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# A response is late after so many seconds.
LATE_SECONDS = 1.0
# How long a probe may take, in seconds. It doubles if the connection was replaced just before, and
# no response was in time since: slow links and overloaded servers are not reconnected again and
# again.
_PROBE_TIMEOUT = Backoff(first=1.5, longest=30.0)
_CALM_SECONDS = 15.0
# Seconds between the probes while a response is late.
_PROBE_PAUSE = 1.0

MethodT = TypeVar("MethodT")
Metadata = Sequence[tuple[str, str | bytes]]


class ConnectionReplaced(Unavailable):
    """The connection was replaced while a call waited for its response."""


@asynccontextmanager
async def open_reconnecting_channel(
    address: str, *, authorization: Authorization, insecure: bool, cert_file: str = ""
) -> AsyncGenerator["ReconnectingChannel", None]:
    """Connects like `open_channel` without a timeout; replaces a connection that falls silent."""
    create = await channel_factory(
        address, authorization="", insecure=insecure, cert_file=cert_file
    )
    async with ReconnectingChannel(create, address, authorization) as channel:
        await wait_until_connected(
            channel, address, insecure=insecure, cert_file=cert_file, limit=None
        )
        monitor = asyncio.create_task(channel.monitor(), name=f"connection to {address}")
        try:
            yield channel
        finally:
            monitor.cancel()
            await asyncio.wait({monitor})


class ReconnectingChannel(grpc.aio.Channel):
    """A channel over one connection at a time; calls use the one that is current when they start.

    `monitor` runs as a task and watches the calls that are made in a block of `expect_response`.
    """

    def __init__(
        self,
        create: Callable[[], grpc.aio.Channel],
        address: str,
        authorization: Authorization = "",
    ) -> None:
        self._create, self._address, self._authorization = create, address, authorization
        self._current = create()
        self._late: set[object] = set()
        self._is_late = asyncio.Event()
        self._responded_at = self._replaced_at = float("-inf")
        self._replacements = 0

    @property
    def current(self) -> grpc.aio.Channel:
        return self._current

    @contextmanager
    def expect_response(self, within: float = LATE_SECONDS) -> Iterator[None]:
        """Probes the connection if the block takes longer than so many seconds.

        Raises ConnectionReplaced if the connection of the block was replaced.
        """
        channel, late, is_cancelled = self._current, object(), watch_cancellation()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(within, self._response_is_late, late)
        try:
            yield
            self._responded_at = loop.time()
            if late not in self._late:
                self._replacements = 0
        except (asyncio.CancelledError, grpc.aio.UsageError) as e:
            # Closing a channel cancels its calls, which is no cancellation of their tasks.
            if channel is self._current or is_cancelled():
                raise
            raise ConnectionReplaced("the connection fell silent and was replaced") from e
        finally:
            timer.cancel()
            self._late.discard(late)
            if not self._late:
                self._is_late.clear()

    def metadata(self, own: Metadata | None) -> Metadata:
        """Returns the metadata of a call with the authorization, unless it has one of its own.

        An interceptor would do the same at the cost of a task for every call.
        """
        metadata = tuple(own or ())
        if not self._authorization or any(key == "authorization" for key, _ in metadata):
            return metadata
        value = self._authorization
        return (*metadata, ("authorization", value if isinstance(value, str) else value()))

    async def monitor(self) -> None:
        """Probes the connection while a response is late; replaces it if the probe fails."""
        loop = asyncio.get_running_loop()
        while True:
            await self._is_late.wait()
            if loop.time() - self._replaced_at > _CALM_SECONDS:
                self._replacements = 0
            if await self._is_silent(_PROBE_TIMEOUT.after(self._replacements + 1)):
                log.warning("connection fell silent, reconnecting", address=self._address)
                self._replacements += 1
                self._replaced_at = loop.time()
                silent, self._current = self._current, self._create()
                await silent.close()
            await asyncio.sleep(_PROBE_PAUSE)

    async def _is_silent(self, deadline: float) -> bool:
        """Whether an established connection carries no response within so many seconds."""
        if self._current.get_state() is not grpc.ChannelConnectivity.READY:
            # gRPC is connecting already.
            return False
        started = asyncio.get_running_loop().time()
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._current.unary_unary(
            "/grpc.health.v1.Health/Check"
        )
        try:
            await check(b"", timeout=deadline)
        except grpc.aio.AioRpcError as e:
            is_timeout = e.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return is_timeout and self._responded_at < started
        return False

    def _response_is_late(self, late: object) -> None:
        self._late.add(late)
        self._is_late.set()

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool = False,
    ) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        return _UnaryUnary(
            self, lambda c: c.unary_unary(method, request_serializer, response_deserializer)
        )

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool = False,
    ) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        return _UnaryStream(
            self, lambda c: c.unary_stream(method, request_serializer, response_deserializer)
        )

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """Binds to the current connection: a stream of requests cannot be repeated.

        Services of ours have no such calls, so these carry no authorization.
        """
        return self._current.stream_unary(*arguments, **options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """Binds to the current connection, like `stream_unary`."""
        return self._current.stream_stream(*arguments, **options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        await self._current.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()


class _CurrentMethod(Generic[MethodT]):
    """A method of the channel that is current, bound anew after a replacement."""

    def __init__(
        self, channel: ReconnectingChannel, bind: Callable[[grpc.aio.Channel], MethodT]
    ) -> None:
        self._channel, self._bind = channel, bind
        self._bound_to, self._bound = channel.current, bind(channel.current)

    def current(self) -> MethodT:
        if self._bound_to is not self._channel.current:
            self._bound_to = self._channel.current
            self._bound = self._bind(self._bound_to)
        return self._bound


class _UnaryUnary(
    _CurrentMethod[grpc.aio.UnaryUnaryMultiCallable[Any, Any]],
    grpc.aio.UnaryUnaryMultiCallable[Any, Any],
):
    def __call__(self, request: Any, **options: Any) -> grpc.aio.UnaryUnaryCall[Any, Any]:
        metadata = self._channel.metadata(options.pop("metadata", None))
        return self.current()(request, metadata=metadata, **options)


class _UnaryStream(
    _CurrentMethod[grpc.aio.UnaryStreamMultiCallable[Any, Any]],
    grpc.aio.UnaryStreamMultiCallable[Any, Any],
):
    def __call__(self, request: Any, **options: Any) -> grpc.aio.UnaryStreamCall[Any, Any]:
        metadata = self._channel.metadata(options.pop("metadata", None))
        return self.current()(request, metadata=metadata, **options)
