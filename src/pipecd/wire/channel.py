# SPDX-License-Identifier: Apache-2.0
"""Opens gRPC channels that are connected and authorize every call."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.connection_problem import find_problem

log: structlog.stdlib.BoundLogger = structlog.get_logger()

PIPED_SERVICE = "grpc.service.pipedservice.PipedService"
API_SERVICE = "grpc.service.apiservice.APIService"

# In seconds, like upstream's programs; pipectl waits 5.
CONNECT_TIMEOUT = 15.0
# A client that waits logs a warning after so many seconds.
_WARN_AFTER = 1.0
_NO_RESPONSE_HINT = "check the address and that the server runs"
_HEALTH_CHECK_TIMEOUT = 0.5
# The lists of a large project exceed the default limit of gRPC.
RECEIVE_LIMIT = 10 * 1024 * 1024

# The interval of heartbeats on the wake-up stream that our clients ask for.
HEARTBEAT_SECONDS = 4.0
# A message is late after the interval and so many seconds; after so many intervals the stream is
# dead, also if its connection works.
_LATE_HEARTBEAT = 1.0
_SILENT_HEARTBEATS = 2.0
_FIRST_WAKEUP_TIMEOUT = 10.0

ResponseT = TypeVar("ResponseT", bound=Message)

Authorization = str | Callable[[], str]


@asynccontextmanager
async def open_channel(
    address: str,
    *,
    authorization: Authorization,
    insecure: bool,
    cert_file: str = "",
    connect_timeout: float | None = CONNECT_TIMEOUT,
    receive_limit: int = RECEIVE_LIMIT,
    is_quiet: bool = False,
) -> AsyncGenerator[grpc.aio.Channel, None]:
    """Connects, or raises Unavailable; every call carries the authorization, if there is one.

    A call with an authorization of its own keeps it; one that is a function is called before each
    call. Without a `connect_timeout` the channel retries until it is connected. A delay is logged,
    unless the channel `is_quiet`.
    Uses plain text if `insecure`, else TLS with the root certificates of the system or those of
    `cert_file`.
    """
    create = await channel_factory(
        address,
        authorization=authorization,
        insecure=insecure,
        cert_file=cert_file,
        receive_limit=receive_limit,
    )
    async with create() as channel:
        await wait_until_connected(
            channel,
            address,
            insecure=insecure,
            cert_file=cert_file,
            limit=connect_timeout,
            is_quiet=is_quiet,
        )
        yield channel


async def channel_factory(
    address: str,
    *,
    authorization: Authorization,
    insecure: bool,
    cert_file: str = "",
    receive_limit: int = RECEIVE_LIMIT,
) -> Callable[[], grpc.aio.Channel]:
    """Returns what creates channels as `open_channel` describes, each with a connection of its own.

    They are not connected yet.
    """
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", receive_limit),
        ("grpc.max_send_message_length", -1),
        # Reconnects to a restarted server within seconds; the default backs off to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 3_000),
        # Despite its name, how long an attempt to connect may take at least.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.use_local_subchannel_pool", 1),
        # Upstream's server closes the connection of a client that pings more often than every 5
        # minutes.
        ("grpc.keepalive_time_ms", 330_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    interceptors: list[grpc.aio.ClientInterceptor] = []
    if authorization:
        interceptors = [_AuthorizedCall(authorization), _AuthorizedStream(authorization)]
    if insecure:
        return partial(
            grpc.aio.insecure_channel, address, options=options, interceptors=interceptors
        )
    credentials = await asyncio.to_thread(_tls_credentials, cert_file)
    return partial(
        grpc.aio.secure_channel, address, credentials, options=options, interceptors=interceptors
    )


def extension_rpc(
    channel: grpc.aio.Channel, service: str, name: str, response: type[ResponseT]
) -> grpc.aio.UnaryUnaryMultiCallable[Message, ResponseT]:
    """Returns an RPC of ours that is served beside those of a service of upstream."""
    return channel.unary_unary(
        f"/{service}/{name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=response.FromString,
    )


def watch_wakeups(
    channel: grpc.aio.Channel,
) -> grpc.aio.UnaryStreamMultiCallable[WatchWakeupsRequest, Wakeup]:
    """Returns the RPC that streams wake-ups, which upstream's service does not have."""
    return channel.unary_stream(
        f"/{PIPED_SERVICE}/WatchWakeups",
        request_serializer=WatchWakeupsRequest.SerializeToString,
        response_deserializer=Wakeup.FromString,
    )


async def read_wakeups(
    call: grpc.aio.UnaryStreamCall[WatchWakeupsRequest, Wakeup],
    *,
    expect_response: Callable[[float], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> AsyncGenerator[Wakeup, None]:
    """Yields the wake-ups of a stream; raises Unavailable when its heartbeats stop.

    Each message is awaited in a block of `expect_response` with the seconds after which it is late.
    """
    responses, heartbeat, limit = aiter(call), 0.0, _FIRST_WAKEUP_TIMEOUT
    while True:
        # A server that sends no heartbeats may be silent for as long as nothing changes.
        is_expected = heartbeat or limit
        late = expect_response(heartbeat + _LATE_HEARTBEAT) if is_expected else nullcontext()
        try:
            async with asyncio.timeout(limit):
                with late:
                    wakeup = await anext(responses)
        except StopAsyncIteration:
            return
        except TimeoutError as e:
            raise Unavailable(f"the wake-up stream was silent for {limit:g}s") from e
        if wakeup.kind == Wakeup.CONNECTED:
            heartbeat = wakeup.heartbeat_seconds
            limit = _SILENT_HEARTBEATS * heartbeat or None
        yield wakeup


async def wait_until_connected(
    channel: grpc.aio.Channel,
    address: str,
    *,
    insecure: bool,
    cert_file: str,
    limit: float | None,
    is_quiet: bool = False,
) -> None:
    """Waits for the connection; raises Unavailable after `limit` seconds, if there is one.

    After a second it logs why there is no connection yet, unless it `is_quiet`.
    """
    started = asyncio.get_running_loop().time()

    async def problem() -> Unavailable:
        found = await find_problem(address, insecure=insecure, cert_file=cert_file)
        what = found.what if found else await _connection_error(channel)
        return Unavailable(what, hint=found.hint if found else _NO_RESPONSE_HINT)

    if limit is None or (limit > _WARN_AFTER and not is_quiet):
        with suppress(TimeoutError):
            async with asyncio.timeout(_WARN_AFTER):
                await channel.channel_ready()
            return
        error = await problem()
        log.warning("server unavailable, retrying", address=address, error=str(error))
    try:
        async with asyncio.timeout_at(None if limit is None else started + limit):
            await channel.channel_ready()
    except TimeoutError as e:
        error = await problem()
        message = f"cannot connect to {address} within {limit:g}s: {error.message}"
        raise Unavailable(message, hint=error.hint) from e
    if asyncio.get_running_loop().time() - started > _WARN_AFTER:
        log.info("connected to the server", address=address)


async def _connection_error(channel: grpc.aio.Channel) -> str:
    """Returns why a channel is not connected, which only a failed call reports."""
    check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
        "/grpc.health.v1.Health/Check"
    )
    try:
        await check(b"", timeout=_HEALTH_CHECK_TIMEOUT)
    except grpc.aio.AioRpcError as e:
        if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED and e.details():
            return str(e.details())
    return "no response"


def _tls_credentials(cert_file: str) -> grpc.ChannelCredentials:
    if not cert_file:
        return grpc.ssl_channel_credentials()
    try:
        content = Path(cert_file).read_bytes()
        # gRPC prints lines of its own about such a file, and only when it connects.
        certificates = content.decode("ascii", errors="ignore") or "none"
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
        return grpc.ssl_channel_credentials(content)
    except ssl.SSLError as e:
        raise UserMistake(
            f"{cert_file} is not a file of PEM certificates", hint="check --cert-file"
        ) from e
    except OSError as e:
        raise UserMistake(
            f"cannot read the certificate file {cert_file}: {e.strerror}", hint="check --cert-file"
        ) from e


def _with_authorization(
    details: grpc.aio.ClientCallDetails, authorization: Authorization
) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    if "authorization" not in metadata:
        value = authorization if isinstance(authorization, str) else authorization()
        metadata.add("authorization", value)
    return grpc.aio.ClientCallDetails(
        method=details.method,
        timeout=details.timeout,
        metadata=metadata,
        credentials=details.credentials,
        wait_for_ready=details.wait_for_ready,
    )


class _AuthorizedCall(grpc.aio.UnaryUnaryClientInterceptor):
    """Adds the authorization to unary calls."""

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[Any]],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        return await continuation(
            _with_authorization(client_call_details, self._authorization), request
        )


class _AuthorizedStream(grpc.aio.UnaryStreamClientInterceptor):
    """Adds the authorization to calls with a stream of responses."""

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization

    async def intercept_unary_stream(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[Any]],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        return await continuation(
            _with_authorization(client_call_details, self._authorization), request
        )
