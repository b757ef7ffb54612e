# SPDX-License-Identifier: Apache-2.0
"""A whole gRPC service as a table of small parts.

The doors of the control plane, the service that piped offers to plugins and the plugins themselves
are such tables. Every call, also one that came by gRPC-Web, passes the same gate: authenticate,
admit, decode, validate, call the part and measure it, map errors, log.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.wire import validation
from pipecd.wire.credentials import Metadata
from pipecd.wire.status import INTERNAL, to_status

log = structlog.get_logger()

CallerT = TypeVar("CallerT")
Context = grpc.aio.ServicerContext[bytes, bytes]

# Gateways rewrite the first prefix to the second for old clients; a table answers both by itself.
FORMER_PREFIX, PREFIX = "pipe.api.service.", "grpc.service."

Method = Callable[[Any, Any], Awaitable[Message]]
StreamMethod = Callable[[Any, Any], AsyncIterator[Message]]


@dataclass(frozen=True)
class Unary:
    """An RPC with one answer."""

    name: str
    request_type: type[Message]
    response_type: type[Message]
    method: Method


@dataclass(frozen=True)
class Stream:
    """An RPC with many answers."""

    name: str
    request_type: type[Message]
    method: StreamMethod


class RpcObserver(Protocol):
    """Told about every call that reaches its part; what a metric is made of.

    What the gate refuses is not told, as with upstream, or a wrong key would look like an outage.
    """

    def offered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Told once for every RPC when the server starts."""
        ...

    def started(self, service: str, rpc: str, metadata: Metadata) -> None: ...

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

    async def call(
        self, rpc: str, request: Message, caller: CallerT, metadata: Metadata = ()
    ) -> Message:
        """Validates a decoded request and calls the RPC for a caller who is authenticated already.

        This is how REST calls the same handlers with the same rules, codes, logs and metrics. Every
        failure is a PipecdError.
        """
        with _Told(rpc):
            await self.admit(rpc, caller)
            validation.check(request)
            return await self._invoke(self._unary[rpc], request, caller, metadata)

    async def admit(self, rpc: str, caller: CallerT) -> None:
        """Refuses a caller who may not use this RPC at all, before the request is read.

        A plain table lets everybody in whom it knows.
        """

    def open_streams(self) -> int:
        """How many callers listen now."""
        return len(self._open_streams)

    def drain(self) -> None:
        """Ends the open streams, so that a stopping server does not wait for them."""
        now = asyncio.get_running_loop().time()
        for limit in self._open_streams:
            # One that is ending already is not to be told again.
            if limit.when() is None:
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
        with _Told(name):
            caller = await self._admitted(name, metadata)
            rpc = self._unary.get(name)
            if rpc is None:
                raise Unsupported(f"{self.service_name} does not offer {name}")
            message = _decoded(rpc, request)
            answer = await self._invoke(rpc, message, caller, metadata)
            return answer.SerializeToString()

    async def _invoke(
        self, rpc: Unary, request: Message, caller: CallerT, metadata: Metadata
    ) -> Message:
        with _Measured(self._observer, self.service_name, rpc.name, metadata) as measured:
            answer = await rpc.method(request, caller)
            if not isinstance(answer, rpc.response_type):
                raise TypeError(f"{rpc.name} answered {type(answer).__name__}")
            measured.sent()
            return answer

    async def _pour(self, stream: Stream, request: bytes, context: Context) -> None:
        with _Told(stream.name):
            metadata = _metadata(context)
            caller = await self._admitted(stream.name, metadata)
            message = _decoded(stream, request)
            with _Measured(self._observer, self.service_name, stream.name, metadata) as measured:
                async with self._endable():
                    await _write_all(stream.method(message, caller), context, measured.sent)

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


class _Told:
    """Logs a call that failed, and hides what we did not expect from the caller."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Nothing to tell yet."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PipecdError):
            code, _ = to_status(error)
            log.info("call refused", rpc=self._name, code=code.name, error=str(error))
        elif isinstance(error, Exception):
            log.error("call failed", rpc=self._name, exc_info=True)  # noqa: LOG014 It is handled here.
            raise PipecdError(INTERNAL) from error


class _Measured:
    """Tells an observer how a call goes."""

    __slots__ = ("_began", "_metadata", "_name", "_observer", "_service")

    def __init__(
        self, observer: RpcObserver | None, service: str, name: str, metadata: Metadata
    ) -> None:
        self._observer, self._service, self._name = observer, service, name
        self._metadata = metadata
        self._began = 0.0

    def __enter__(self) -> Self:
        if self._observer is not None:
            self._observer.started(self._service, self._name, self._metadata)
            self._began = time.perf_counter()
        return self

    def sent(self) -> None:
        if self._observer is not None:
            self._observer.sent(self._service, self._name)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._observer is not None:
            seconds = time.perf_counter() - self._began
            self._observer.observed(self._service, self._name, _code_of(error), seconds)


def _code_of(error: BaseException | None) -> grpc.StatusCode:
    if error is None:
        return grpc.StatusCode.OK
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED
    return to_status(error)[0]


async def _write_all(
    answers: AsyncIterator[Message], context: Context, sent: Callable[[], None]
) -> None:
    # A stream method is an async generator; closing it at once lets it unsubscribe.
    async with aclosing(cast("AsyncGenerator[Message, None]", answers)):
        async for answer in answers:
            await context.write(answer.SerializeToString())
            sent()


def _metadata(context: Context) -> Metadata:
    # It is a tuple of pairs, whatever its declaration says.
    return cast("Metadata", context.invocation_metadata() or ())


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


def unary_rpcs(
    service: ServiceDescriptor, parts: Sequence[object], not_yet: frozenset[str]
) -> Mapping[str, Unary]:
    """Pairs every RPC of the descriptor with the one method that answers it."""
    methods = _methods_of(parts)
    declared = {rpc.name: rpc for rpc in service.methods if not rpc.server_streaming}
    faults = [
        *(f"{n} is missing" for n in sorted(declared.keys() - methods.keys() - not_yet)),
        *(f"{n} is not an RPC of the service" for n in sorted(methods.keys() - declared.keys())),
        *(f"{n} is in not_yet and is no RPC" for n in sorted(not_yet - declared.keys())),
        *(f"{n} is in not_yet and exists" for n in sorted(not_yet & methods.keys())),
        *(f"{n} is answered twice" for n in sorted(methods) if len(methods[n]) > 1),
        *(
            f"{n} is not an async method"
            for n in sorted(methods)
            if not all(inspect.iscoroutinefunction(m) for m in methods[n])
        ),
    ]
    if faults:
        raise TypeError(f"{service.full_name}: {'; '.join(faults)}")
    return {
        name: Unary(
            name=name,
            request_type=GetMessageClass(declared[name].input_type),
            response_type=GetMessageClass(declared[name].output_type),
            method=found[0],
        )
        for name, found in methods.items()
    }


def stream_rpcs(
    service: ServiceDescriptor, streams: Mapping[str, tuple[type[Message], StreamMethod]]
) -> Mapping[str, Stream]:
    """The streaming methods, those of the descriptor and those beside it."""
    for rpc in service.methods:
        if rpc.server_streaming and rpc.name not in streams:
            raise TypeError(f"{service.full_name}: {rpc.name} is missing in streams")
        if not rpc.server_streaming and rpc.name in streams:
            raise TypeError(f"{service.full_name}: {rpc.name} is an RPC with one answer")
    return {name: Stream(name, request, method) for name, (request, method) in streams.items()}


def _methods_of(parts: Sequence[object]) -> dict[str, list[Method]]:
    """The methods named like RPCs, that is in upper camel case."""
    found: dict[str, list[Method]] = {}
    for part in parts:
        for name in dir(part):
            if name[0].isupper() and callable(method := getattr(part, name)):
                found.setdefault(name, []).append(cast("Method", method))
    return found
