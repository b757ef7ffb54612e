# SPDX-License-Identifier: Apache-2.0
"""Opens a gRPC channel that is connected when it is handed out and says who is calling."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pipecd.model.errors import Unavailable, UserMistake

# Piped waits this long for the control plane, as upstream's does; pipectl asks for 5 s.
CONNECT_WITHIN = 15.0
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
    connect_within: float = CONNECT_WITHIN,
    receive_limit: int = RECEIVE_LIMIT,
) -> AsyncGenerator[grpc.aio.Channel, None]:
    """Connects, or raises Unavailable; every call then carries the authorization, if any.

    A call that brings an authorization of its own keeps it.

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
    channel: grpc.aio.Channel, address: str, insecure: bool, within: float
) -> None:
    try:
        async with asyncio.timeout(within):
            await channel.channel_ready()
    except TimeoutError as e:
        other = "TLS" if insecure else "plain text (--insecure)"
        raise Unavailable(
            f"cannot connect to {address} within {within:g}s",
            hint=f"check the address and that the server runs, or whether it speaks {other}",
        ) from e


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
