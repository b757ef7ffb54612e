# SPDX-License-Identifier: Apache-2.0
"""A whole gRPC service as a table of small parts.

The doors of the control plane, the service that piped offers to plugins and the plugins themselves
are such tables. Every call, also one that came by gRPC-Web, passes the same gate: authenticate,
admit, decode, validate, call the part and measure it, map errors, log.
"""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.wire import validation
from pipecd.wire.credentials import Metadata
from pipecd.wire.roster import Stream, StreamMethod, Unary, stream_rpcs, unary_rpcs
from pipecd.wire.status import INTERNAL, to_status

log = structlog.get_logger()

CallerT = TypeVar("CallerT")
Context = grpc.aio.ServicerContext[bytes, bytes]

# Gateways rewrite the first prefix to the second for old clients; a table answers both by itself.
FORMER_PREFIX, PREFIX = "pipe.api.service.", "grpc.service."


class RpcObserver(Protocol):
    """Told about every call that reaches its part; what a metric is made of.

    What the gate refuses is not told, as with upstream, or a wrong key would look like an outage.
    """

    def offered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Told once for every RPC when the server starts."""
        ...

    def started(self, service: str, rpc: str) -> None: ...

    def sent(self, service: str, rpc: str) -> None:
        """One message of an answer is on its way."""
        ...

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None: ...


class RpcTable(grpc.GenericRpcHandler, Generic[CallerT]):
    """Serves the RPCs of a service with the methods of the same name found on the parts.

    A missing, doubled or unknown RPC is refused here, at start. Those in `not_yet` answer
    UNIMPLEMENTED; `streams` are the methods that answer many times, also ones of our own that the
    descriptor does not know.
    """

    def __init__(
        self,
        service: ServiceDescriptor,
        parts: Sequence[object],
        authenticate: Callable[[Metadata], Awaitable[CallerT]],
        *,
        not_yet: frozenset[str] = frozenset(),
        streams: Mapping[str, tuple[type[Message], StreamMethod]] | None = None,
        observer: RpcObserver | None = None,
    ) -> None:
        self.service_name = service.full_name
        self._authenticate = authenticate
        self._not_yet = not_yet
        self._observer = observer
        self._unary = unary_rpcs(service, parts, not_yet)
        self._streams = stream_rpcs(service, streams or {})
        self._open_streams: set[asyncio.Timeout] = set()
        self._handlers = self._handlers_by_path()
        if observer is not None:
            for name in (*self._unary, *self._streams):
                observer.offered(self.service_name, name, streaming=name in self._streams)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Finds the method of a call; nothing means that gRPC answers UNIMPLEMENTED."""
        return self._handlers.get(handler_call_details.method)

    async def dispatch(self, method: str, request: bytes, metadata: Metadata) -> bytes:
        """Answers one call that came by another way; `method` is a full path or the bare name.

        Every failure is a PipecdError.
        """
        name = method.rpartition("/")[2]
        ours = method in (name, *(f"/{service}/{name}" for service in self._names()))
        if not ours or name not in {*self._unary, *self._not_yet}:
            raise Unsupported(f"{method} is not a method of {self.service_name}")
        return await self._answer(name, request, metadata)

    async def admit(self, rpc: str, caller: CallerT) -> None:
        """Refuses a caller who may not use this RPC at all, before the request is read.

        A plain table lets everybody in whom it knows.
        """

    def drain(self) -> None:
        """Ends the open streams, so that a stopping server does not wait for them."""
        now = asyncio.get_running_loop().time()
        for limit in self._open_streams:
            limit.reschedule(now)

    def _names(self) -> tuple[str, ...]:
        if self.service_name.startswith(PREFIX):
            return self.service_name, FORMER_PREFIX + self.service_name.removeprefix(PREFIX)
        return (self.service_name,)

    def _handlers_by_path(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        by_name: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(self._unary_behavior(name))
            for name in (*self._unary, *self._not_yet)
        }
        for name, stream in self._streams.items():
            by_name[name] = grpc.unary_stream_rpc_method_handler(self._stream_behavior(stream))
        return {
            f"/{service}/{name}": handler
            for service in self._names()
            for name, handler in by_name.items()
        }

    def _unary_behavior(self, name: str) -> Any:
        async def serve(request: bytes, context: Context) -> bytes:
            try:
                return await self._answer(name, request, _metadata(context))
            except PipecdError as e:
                await context.abort(*to_status(e))

        return serve

    def _stream_behavior(self, stream: Stream) -> Any:
        async def serve(request: bytes, context: Context) -> None:
            try:
                await self._pour(stream, request, context)
            except PipecdError as e:
                await context.abort(*to_status(e))

        return serve

    async def _answer(self, name: str, request: bytes, metadata: Metadata) -> bytes:
        async with self._told(name):
            caller = await self._admitted(name, metadata)
            rpc = self._unary.get(name)
            if rpc is None:
                raise Unsupported(f"{self.service_name} does not offer {name}")
            message = _decoded(rpc, request)
            with self._measured(name) as sent:
                answer = await rpc.method(message, caller)
                if not isinstance(answer, rpc.response_type):
                    raise TypeError(f"{name} answered {type(answer).__name__}")
                sent()
                return answer.SerializeToString()

    async def _pour(self, stream: Stream, request: bytes, context: Context) -> None:
        async with self._told(stream.name):
            caller = await self._admitted(stream.name, _metadata(context))
            message = _decoded(stream, request)
            with self._measured(stream.name) as sent:
                async with self._endable():
                    await _write_all(stream.method(message, caller), context, sent)

    async def _admitted(self, name: str, metadata: Metadata) -> CallerT:
        caller = await self._authenticate(metadata)
        await self.admit(name, caller)
        return caller

    @asynccontextmanager
    async def _endable(self) -> AsyncGenerator[None, None]:
        """Lets `drain` end the block."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._open_streams.add(limit)
                yield
        except TimeoutError:
            if limit.expired():
                raise Unavailable("the server is going away") from None
            raise
        finally:
            self._open_streams.discard(limit)

    @asynccontextmanager
    async def _told(self, name: str) -> AsyncGenerator[None, None]:
        """Logs a call that failed, and hides what we did not expect from the caller."""
        try:
            yield
        except PipecdError as e:
            code, text = to_status(e)
            log.info("call refused", rpc=name, code=code.name, error=text)
            raise
        except Exception as e:
            log.exception("call failed", rpc=name)
            raise PipecdError(INTERNAL) from e

    @contextmanager
    def _measured(self, name: str) -> Generator[Callable[[], None], None, None]:
        observer, service = self._observer, self.service_name
        if observer is None:
            yield _untold
            return
        observer.started(service, name)
        started = time.perf_counter()
        code = grpc.StatusCode.OK
        try:
            yield lambda: observer.sent(service, name)
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as e:
            code, _ = to_status(e)
            raise
        finally:
            observer.observed(service, name, code, time.perf_counter() - started)


def _untold() -> None:
    """Nobody counts."""


async def _write_all(
    answers: AsyncIterator[Message], context: Context, sent: Callable[[], None]
) -> None:
    # A stream method is an async generator; closing it at once lets it unsubscribe.
    async with aclosing(cast("AsyncGenerator[Message, None]", answers)):
        async for answer in answers:
            await context.write(answer.SerializeToString())
            sent()


def _metadata(context: Context) -> Metadata:
    return tuple((key, value) for key, value in context.invocation_metadata() or ())


def _decoded(rpc: Unary | Stream, request: bytes) -> Message:
    message = rpc.request_type()
    try:
        message.ParseFromString(request)
    except DecodeError as e:
        _refuse_undecodable(rpc, e)
    validation.check(message)
    return message


def _refuse_undecodable(rpc: Unary | Stream, cause: DecodeError) -> NoReturn:
    name = rpc.request_type.DESCRIPTOR.name
    raise UserMistake(f"invalid request: the bytes are not a {name} message") from cause
