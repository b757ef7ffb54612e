# SPDX-License-Identifier: Apache-2.0
"""Opens gRPC channels that are connected and authorize every call."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# In seconds, like upstream's programs; pipectl waits 5.
CONNECT_TIMEOUT = 15.0
# A client that waits without a limit logs a warning after so many seconds.
_WARN_AFTER = 1.0
_HEALTH_CHECK_TIMEOUT = 0.5
# The lists of a large project exceed the default limit of gRPC.
RECEIVE_LIMIT = 10 * 1024 * 1024

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
) -> AsyncGenerator[grpc.aio.Channel, None]:
    """Connects, or raises Unavailable; every call carries the authorization, if there is one.

    A call with an authorization of its own keeps it; one that is a function is called before each
    call. Without a `connect_timeout` the channel retries until it is connected and logs a warning.
    Uses plain text if `insecure`, else TLS with the root certificates of the system or those of
    `cert_file`.
    """
    # No keepalive is set: upstream's server closes the connection of a client that pings more often
    # than every 5 minutes.
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", receive_limit),
        ("grpc.max_send_message_length", -1),
        # Reconnects to a restarted server within seconds; the default backs off to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 10_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    interceptors: list[grpc.aio.ClientInterceptor] = []
    if authorization:
        interceptors = [_AuthorizedCall(authorization), _AuthorizedStream(authorization)]
    if insecure:
        channel = grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    else:
        credentials = await asyncio.to_thread(_tls_credentials, cert_file)
        channel = grpc.aio.secure_channel(
            address, credentials, options=options, interceptors=interceptors
        )
    async with channel:
        await _connect(channel, address, insecure, connect_timeout)
        yield channel


def watch_wakeups(
    channel: grpc.aio.Channel,
) -> grpc.aio.UnaryStreamMultiCallable[WatchWakeupsRequest, Wakeup]:
    """Returns the RPC that streams wake-ups, which upstream's service does not have."""
    return channel.unary_stream(
        "/grpc.service.pipedservice.PipedService/WatchWakeups",
        request_serializer=WatchWakeupsRequest.SerializeToString,
        response_deserializer=Wakeup.FromString,
    )


async def _connect(
    channel: grpc.aio.Channel, address: str, insecure: bool, limit: float | None
) -> None:
    other = "TLS" if insecure else "plain text (--insecure)"
    hint = f"check the address and that the server runs, or whether it speaks {other}"
    try:
        async with asyncio.timeout(_WARN_AFTER if limit is None else limit):
            await channel.channel_ready()
    except TimeoutError as e:
        if limit is not None:
            raise Unavailable(f"cannot connect to {address} within {limit:g}s", hint=hint) from e
        error = Unavailable(await _connection_error(channel), hint=hint)
        log.warning("server unavailable, retrying", address=address, error=str(error))
        await channel.channel_ready()
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
        return grpc.ssl_channel_credentials(Path(cert_file).read_bytes())
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
