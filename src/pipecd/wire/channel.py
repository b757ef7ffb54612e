# SPDX-License-Identifier: Apache-2.0
"""Opens a gRPC channel that is connected when it is handed out and says who is calling."""

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

# Who cannot do without the server for longer ends, as upstream's programs do; pipectl asks for 5 s.
CONNECT_WITHIN = 15.0
# Who waits as long as it takes says so when the server has not answered after this time.
_TELL_AFTER = 1.0
# So long the reason is looked for, in seconds.
_ASK_WITHIN = 0.5
# What piped receives at most; the lists of a big project exceed the default of gRPC.
RECEIVE_LIMIT = 10 * 1024 * 1024

Authorization = str | Callable[[], str]


@asynccontextmanager
async def open_channel(
    address: str,
    *,
    authorization: Authorization,
    insecure: bool,
    cert_file: str = "",
    connect_within: float | None = CONNECT_WITHIN,
    receive_limit: int = RECEIVE_LIMIT,
) -> AsyncGenerator[grpc.aio.Channel, None]:
    """Connects, or raises Unavailable; every call then carries the authorization, if any.

    A call that brings an authorization of its own keeps it. Without a limit to `connect_within`
    it goes on trying, and the log says so.

    An authorization that may change is asked for before each call. Plain text only when
    `insecure`, else TLS with the roots of the system or those of `cert_file`.
    """
    options = _options(receive_limit)
    interceptors = _authorizing(authorization) if authorization else []
    if insecure:
        channel = grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    else:
        credentials = await asyncio.to_thread(_credentials, cert_file)
        channel = grpc.aio.secure_channel(
            address, credentials, options=options, interceptors=interceptors
        )
    async with channel:
        await _connected(channel, address, insecure, connect_within)
        yield channel


def watch_wakeups(
    channel: grpc.aio.Channel,
) -> grpc.aio.UnaryStreamMultiCallable[WatchWakeupsRequest, Wakeup]:
    """The call for wake-ups, which the service of upstream does not have."""
    return channel.unary_stream(
        "/grpc.service.pipedservice.PipedService/WatchWakeups",
        request_serializer=WatchWakeupsRequest.SerializeToString,
        response_deserializer=Wakeup.FromString,
    )


def _options(receive_limit: int) -> list[tuple[str, Any]]:
    # No keepalive is set: upstream's server cuts a client that pings oftener than every 5 minutes.
    return [
        ("grpc.max_receive_message_length", receive_limit),
        ("grpc.max_send_message_length", -1),
        # A restarted server is found again within seconds; the default backs off to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 10_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]


async def _connected(
    channel: grpc.aio.Channel, address: str, insecure: bool, within: float | None
) -> None:
    other = "TLS" if insecure else "plain text (--insecure)"
    hint = f"check the address and that the server runs, or whether it speaks {other}"
    try:
        async with asyncio.timeout(_TELL_AFTER if within is None else within):
            await channel.channel_ready()
    except TimeoutError as e:
        if within is not None:
            raise Unavailable(f"cannot connect to {address} within {within:g}s", hint=hint) from e
        error = Unavailable(await _reason(channel), hint=hint)
        log.warning("server cannot be reached, trying on", address=address, error=str(error))
        await channel.channel_ready()
        log.info("server reached", address=address)


async def _reason(channel: grpc.aio.Channel) -> str:
    """Why a channel is not connected, which only a call tells."""
    check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
        "/grpc.health.v1.Health/Check"
    )
    try:
        await check(b"", timeout=_ASK_WITHIN)
    except grpc.aio.AioRpcError as e:
        if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED and e.details():
            return str(e.details())
    return "no answer"


def _credentials(cert_file: str) -> grpc.ChannelCredentials:
    if not cert_file:
        return grpc.ssl_channel_credentials()
    try:
        return grpc.ssl_channel_credentials(Path(cert_file).read_bytes())
    except OSError as e:
        raise UserMistake(
            f"cannot read the certificate file {cert_file}: {e.strerror}", hint="check --cert-file"
        ) from e


def _authorizing(authorization: Authorization) -> list[grpc.aio.ClientInterceptor]:
    return [_AuthorizedCall(authorization), _AuthorizedStream(authorization)]


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
    """Adds the authorization to calls with one answer."""

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
    """Adds the authorization to calls with many answers."""

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
