# SPDX-License-Identifier: Apache-2.0
"""Serves a whole gRPC service with the methods of several small handler objects.

The services of the control plane, the service that piped offers to plugins and the plugins
themselves are such tables. Every call, also one by gRPC-Web, takes the same steps: authenticate,
authorize, decode, validate, call the handler and measure it, map errors, log.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.wire import validation
from pipecd.wire.credentials import Metadata
from pipecd.wire.peer import PEER
from pipecd.wire.status import INTERNAL, to_status

log = structlog.get_logger()

CallerT = TypeVar("CallerT")
Context = grpc.aio.ServicerContext[bytes, bytes]

# Old clients use the first prefix, which upstream's gateway rewrites; a table serves both.
FORMER_PREFIX, PREFIX = "pipe.api.service.", "grpc.service."

Method = Callable[[Any, Any], Awaitable[Message]]
StreamMethod = Callable[[Any, Any], AsyncIterator[Message]]
Respond = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True)
class Unary:
    """An RPC with one response."""

    name: str
    request_type: type[Message]
    response_type: type[Message]
    method: Method


@dataclass(frozen=True)
class Stream:
    """An RPC with a stream of responses."""

    name: str
    request_type: type[Message]
    method: StreamMethod


class RpcObserver(Protocol):
    """Observes the calls that reach a handler, for metrics and traces.

    Like upstream it does not see calls that fail authentication or validation: a wrong key must not
    look like an outage.
    """

    def registered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Called once for every RPC when the server starts."""
        ...

    def started(self, service: str, rpc: str, metadata: Metadata) -> None: ...

    def sent(self, service: str, rpc: str) -> None:
        """Called for every response message."""
        ...

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None: ...


class RpcTable(grpc.GenericRpcHandler, Generic[CallerT]):
    """Serves each RPC of a service with the method of the same name of one of the handlers.

    The constructor rejects missing, duplicate and unknown RPCs. Those in `unimplemented` answer
    UNIMPLEMENTED; `streams` are the streaming RPCs, including those of ours that the descriptor
    lacks. `extensions` are services of ours whose RPCs are served under the name of this one.
    """

    def __init__(
        self,
        service: ServiceDescriptor,
        handlers: Sequence[object],
        authenticate: Callable[[Metadata], Awaitable[CallerT]],
        *,
        unimplemented: frozenset[str] = frozenset(),
        extensions: Sequence[ServiceDescriptor] = (),
        streams: Mapping[str, tuple[type[Message], StreamMethod]] | None = None,
        observer: RpcObserver | None = None,
    ) -> None:
        self.service_name = service.full_name
        self.port = 0
        """The port that serves the table; 0 for a Unix socket or no server."""
        self._authenticate = authenticate
        self._unimplemented = unimplemented
        self._observer = observer
        self._on_authenticated: list[Callable[[str], None]] = []
        self._unary = unary_rpcs((service, *extensions), handlers, unimplemented)
        self._streams = stream_rpcs(service, streams or {})
        self._open_streams: set[asyncio.Timeout] = set()
        self._method_handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for prefix in self._service_names():
            for name in (*self._unary, *self._unimplemented):
                self._method_handlers[f"/{prefix}/{name}"] = grpc.unary_unary_rpc_method_handler(
                    self._serve_unary(name)
                )
            for name, stream in self._streams.items():
                self._method_handlers[f"/{prefix}/{name}"] = grpc.unary_stream_rpc_method_handler(
                    self._serve_stream(stream)
                )
        if observer is not None:
            for name in (*self._unary, *self._streams):
                observer.registered(self.service_name, name, streaming=name in self._streams)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Returns the handler of a call; without one gRPC answers UNIMPLEMENTED."""
        return self._method_handlers.get(handler_call_details.method)

    async def admit(self, method: str, metadata: Metadata) -> Respond:
        """Authenticates a call of gRPC-Web; what it returns handles the message, once it is read.

        `method` is a full path or the bare name. Every failure is a PipecdError.
        """
        name = method.rpartition("/")[2]
        is_ours = method in (name, *(f"/{service}/{name}" for service in self._service_names()))
        if not is_ours or name not in {*self._unary, *self._unimplemented}:
            raise Unsupported(f"{method} is not a method of {self.service_name}")
        with _LoggedCall(name):
            caller = await self._authenticated_caller(metadata)
            await self.authorize(name, caller)

        async def respond(request: bytes) -> bytes:
            with _LoggedCall(name):
                return await self._respond(name, request, caller, metadata)

        return respond

    async def call(
        self, rpc: str, request: Message, caller: CallerT, metadata: Metadata = ()
    ) -> Message:
        """Validates a decoded request and calls the RPC for a caller who is authenticated already.

        This is how REST calls the same handlers with the same rules, codes, logs and metrics. Every
        failure is a PipecdError.
        """
        with _LoggedCall(rpc):
            await self.authorize(rpc, caller)
            validation.check(request)
            return await self._invoke(self._unary[rpc], request, caller, metadata)

    async def respond(self, rpc: str, request: bytes, caller: CallerT) -> bytes:
        """Handles one call of a batch for a caller who is authenticated already.

        Every failure is a PipecdError.
        """
        with _LoggedCall(rpc):
            await self.authorize(rpc, caller)
            return await self._respond(rpc, request, caller, ())

    async def authorize(self, rpc: str, caller: CallerT) -> None:
        """Raises Denied for a caller who may not use this RPC, before the request is decoded.

        By default every authenticated caller may use every RPC.
        """

    def report_authenticated(self, to: Callable[[str], None]) -> None:
        """Has the peer of every authenticated call reported, which ends the limits of strangers."""
        self._on_authenticated.append(to)

    def open_streams(self) -> int:
        """Returns the number of open streams."""
        return len(self._open_streams)

    def drain(self) -> None:
        """Ends the open streams, so that a stopping server does not wait for them."""
        now = asyncio.get_running_loop().time()
        for limit in self._open_streams:
            # A timeout that has been scheduled cannot be scheduled again.
            if limit.when() is None:
                limit.reschedule(now)

    def _service_names(self) -> tuple[str, ...]:
        if self.service_name.startswith(PREFIX):
            return self.service_name, FORMER_PREFIX + self.service_name.removeprefix(PREFIX)
        return (self.service_name,)

    # gRPC inspects the handler at each call to see whether it is a coroutine function, which takes
    # longer for a partial or a method than for a plain function. Its stubs know only synchronous
    # handlers.

    def _serve_unary(self, name: str) -> Any:
        async def serve(request: bytes, context: Context) -> bytes:
            try:
                return await self._handle(name, request, call_metadata(context))
            except PipecdError as e:
                await context.abort(*to_status(e))

        return serve

    def _serve_stream(self, stream: Stream) -> Any:
        async def serve(request: bytes, context: Context) -> None:
            try:
                await self._stream_responses(stream, request, context)
            except PipecdError as e:
                await context.abort(*to_status(e))

        return serve

    async def _handle(self, name: str, request: bytes, metadata: Metadata) -> bytes:
        with _LoggedCall(name):
            caller = await self._authenticated_caller(metadata)
            await self.authorize(name, caller)
            return await self._respond(name, request, caller, metadata)

    async def _respond(
        self, name: str, request: bytes, caller: CallerT, metadata: Metadata
    ) -> bytes:
        rpc = self._unary.get(name)
        if rpc is None:
            raise Unsupported(f"{self.service_name} does not offer {name}")
        message = _decode(rpc, request)
        response = await self._invoke(rpc, message, caller, metadata)
        return response.SerializeToString()

    async def _authenticated_caller(self, metadata: Metadata) -> CallerT:
        caller = await self._authenticate(metadata)
        if metadata and metadata[-1][0] == PEER:
            for report in self._on_authenticated:
                report(str(metadata[-1][1]))
        return caller

    async def _invoke(
        self, rpc: Unary, request: Message, caller: CallerT, metadata: Metadata
    ) -> Message:
        with _ObservedCall(self._observer, self.service_name, rpc.name, metadata) as call:
            response = await rpc.method(request, caller)
            if not isinstance(response, rpc.response_type):
                raise TypeError(f"{rpc.name} returned {type(response).__name__}")
            call.sent()
            return response

    async def _stream_responses(self, stream: Stream, request: bytes, context: Context) -> None:
        with _LoggedCall(stream.name):
            metadata = call_metadata(context)
            caller = await self._authenticated_caller(metadata)
            await self.authorize(stream.name, caller)
            message = _decode(stream, request)
            with _ObservedCall(self._observer, self.service_name, stream.name, metadata) as call:
                # A stream method is an async generator; closing it at once lets it unsubscribe.
                responses = cast("AsyncGenerator[Message, None]", stream.method(message, caller))
                async with self._until_drained(), aclosing(responses):
                    async for response in responses:
                        await context.write(response.SerializeToString())
                        call.sent()

    @asynccontextmanager
    async def _until_drained(self) -> AsyncGenerator[None, None]:
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


class _LoggedCall:
    """Logs the error of a failed call and hides the details of a bug from the caller."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Does nothing: only failures are logged."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PipecdError):
            code, _ = to_status(error)
            log.info("call rejected", rpc=self._name, code=code.name, error=str(error))
        elif isinstance(error, Exception):
            log.error("call failed", rpc=self._name, exc_info=True)  # noqa: LOG014 It is handled here.
            raise PipecdError(INTERNAL) from error


class _ObservedCall:
    """Reports the start, the responses and the end of a call to the observer."""

    __slots__ = ("_metadata", "_name", "_observer", "_service", "_started_at")

    def __init__(
        self, observer: RpcObserver | None, service: str, name: str, metadata: Metadata
    ) -> None:
        self._observer, self._service, self._name = observer, service, name
        self._metadata = metadata
        self._started_at = 0.0

    def __enter__(self) -> Self:
        if self._observer is not None:
            self._observer.started(self._service, self._name, self._metadata)
            self._started_at = time.perf_counter()
        return self

    def sent(self) -> None:
        if self._observer is not None:
            self._observer.sent(self._service, self._name)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._observer is None:
            return
        seconds = time.perf_counter() - self._started_at
        if error is None:
            code = grpc.StatusCode.OK
        elif isinstance(error, asyncio.CancelledError):
            code = grpc.StatusCode.CANCELLED
        else:
            code, _ = to_status(error)
        self._observer.observed(self._service, self._name, code, seconds)


def call_metadata(context: Context) -> Metadata:
    """The metadata of a call and, as `:peer`, where it comes from."""
    # gRPC's stubs declare another type than the tuple of pairs that it is.
    metadata = cast("Metadata", context.invocation_metadata() or ())
    return (*metadata, (PEER, context.peer()))


def _decode(rpc: Unary | Stream, request: bytes) -> Message:
    message = rpc.request_type()
    try:
        message.ParseFromString(request)
    except DecodeError as e:
        name = rpc.request_type.DESCRIPTOR.name
        raise UserMistake(f"invalid request: the bytes are not a {name} message") from e
    validation.check(message)
    return message


def unary_rpcs(
    services: Sequence[ServiceDescriptor], handlers: Sequence[object], unimplemented: frozenset[str]
) -> Mapping[str, Unary]:
    """Pairs every RPC of the descriptors with the one method that handles it."""
    methods: dict[str, list[Method]] = {}
    for handler in handlers:
        for name in dir(handler):
            # RPCs have names in upper camel case.
            if name[0].isupper() and callable(method := getattr(handler, name)):
                methods.setdefault(name, []).append(cast("Method", method))
    declared = {
        rpc.name: rpc for service in services for rpc in service.methods if not rpc.server_streaming
    }
    faults = [
        *(f"{n} is missing" for n in sorted(declared.keys() - methods.keys() - unimplemented)),
        *(f"{n} is not an RPC of the service" for n in sorted(methods.keys() - declared.keys())),
        *(f"{n} is in unimplemented but no RPC" for n in sorted(unimplemented - declared.keys())),
        *(f"{n} is in unimplemented and exists" for n in sorted(unimplemented & methods.keys())),
        *(f"{n} has two handlers" for n in sorted(methods) if len(methods[n]) > 1),
        *(
            f"{n} is not an async method"
            for n in sorted(methods)
            if not all(inspect.iscoroutinefunction(m) for m in methods[n])
        ),
    ]
    if faults:
        raise TypeError(f"{services[0].full_name}: {'; '.join(faults)}")
    return {
        name: Unary(
            name=name,
            request_type=GetMessageClass(declared[name].input_type),
            response_type=GetMessageClass(declared[name].output_type),
            method=candidates[0],
        )
        for name, candidates in methods.items()
    }


def stream_rpcs(
    service: ServiceDescriptor, streams: Mapping[str, tuple[type[Message], StreamMethod]]
) -> Mapping[str, Stream]:
    """Returns the streaming RPCs, those of the descriptor and our own."""
    for rpc in service.methods:
        if rpc.server_streaming and rpc.name not in streams:
            raise TypeError(f"{service.full_name}: {rpc.name} is missing in streams")
        if not rpc.server_streaming and rpc.name in streams:
            raise TypeError(f"{service.full_name}: {rpc.name} is a unary RPC")
    return {name: Stream(name, request, method) for name, (request, method) in streams.items()}
