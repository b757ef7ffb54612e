# SPDX-License-Identifier: Apache-2.0
"""Runs a gRPC server with health checks, optional TLS and reflection, and a graceful stop."""

import asyncio
import errno
import importlib
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pipecd.model.errors import UserMistake
from pipecd.wire.health import Health, ReadinessCheck
from pipecd.wire.table import RpcTable

# The default of gRPC in Go, which upstream's control plane uses.
RECEIVE_LIMIT = 4 * 1024 * 1024
UNIX = "unix:"
# How long running calls may take to finish when the server stops.
GRACE = 30.0

# Calls that have arrived and wait for the event loop.
MAX_PENDING_CALLS = 20_000


@dataclass(frozen=True)
class TlsFiles:
    """The certificate chain and the private key of a server, both PEM."""

    cert_file: str
    key_file: str


@dataclass(frozen=True)
class ServerOptions:
    """Whether a server offers reflection, and the readiness check of its health service."""

    reflection: bool = False
    ready: ReadinessCheck | None = None


_DEFAULT_OPTIONS = ServerOptions()


@asynccontextmanager
async def grpc_server(
    handlers: Sequence[grpc.GenericRpcHandler],
    *,
    host: str,
    port: int,
    tls: TlsFiles | None = None,
    grace: float = GRACE,
    options: ServerOptions = _DEFAULT_OPTIONS,
) -> AsyncGenerator[int, None]:
    """Serves until the block ends and yields the bound port; port 0 takes any free one.

    A host `unix:<path>` is a socket in the file system; its port is ignored.
    """
    credentials = await asyncio.to_thread(_read_tls, tls) if tls else None
    if not host.startswith(UNIX):
        await check_port_free(host, port)
    # Without SO_REUSEPORT a second server on the port fails instead of taking half of the calls.
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", RECEIVE_LIMIT),
            ("grpc.max_send_message_length", -1),
            # Ends the streams of clients that vanished without closing their connection. A piped
            # that waits for the lease of such a client waits until then.
            ("grpc.keepalive_time_ms", 5_000),
            ("grpc.keepalive_timeout_ms", 3_000),
            ("grpc.http2.max_pings_without_data", 0),
            # What a client may hold without a call, and in calls that wait for their messages.
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_idle_ms", 600_000),
            ("grpc.max_concurrent_streams", 1_000),
            # Thousands of pipeds reconnect at once; gRPC would cancel calls at random above 1,000.
            ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
        ]
    )
    tables: list[RpcTable[Any]] = [h for h in handlers if isinstance(h, RpcTable)]
    health = Health([table.service_name for table in tables], options.ready)
    server.add_generic_rpc_handlers((*handlers, health.rpcs()))
    if options.reflection:
        names = [*(table.service_name for table in tables), health.NAME]
        try:
            module = importlib.import_module("pipecd.wire.reflection")
        except ModuleNotFoundError as e:
            raise UserMistake(
                "gRPC reflection needs the package grpcio-reflection",
                hint="install the extra reflection of pipecd or leave out --enable-grpc-reflection",
            ) from e
        server.add_generic_rpc_handlers((module.reflection(names),))
    address = _address(host, port)
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as e:
        raise cannot_listen(host, port, OSError(0, str(e))) from e
    for table in tables:
        table.port = 0 if host.startswith(UNIX) else bound
    await server.start()
    try:
        yield bound
    finally:
        health.stop()
        stopping = asyncio.ensure_future(server.stop(grace))
        while not stopping.done():
            # A stream that was accepted just now may open after the first pass.
            for table in tables:
                table.drain()
            await asyncio.wait({stopping}, timeout=0.05)
        await stopping


async def check_port_free(host: str, port: int) -> None:
    """Raises `UserMistake` unless the port is free at every address of the host.

    gRPC succeeds when it can bind one of several addresses, so that "localhost" would listen on ::1
    only while another program listens on 127.0.0.1.
    """
    loop = asyncio.get_running_loop()
    try:
        candidates = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as e:
        raise UserMistake(
            f"cannot listen on {_address(host, port)}: unknown host ({e.strerror})",
            hint="use the name or address of this machine, or leave the host empty",
        ) from e
    # One bindable address suffices: a name may have an address that the machine lacks.
    missing: OSError | None = None
    usable = 0
    for family, kind, protocol, _, address in candidates:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                probe.listen(1)
                usable += 1
        except OSError as e:
            if e.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise cannot_listen(host, port, e) from e
            missing = e
    if not usable and missing is not None:
        raise cannot_listen(host, port, missing) from missing


def cannot_listen(host: str, port: int, error: OSError, *, flag: str = "") -> UserMistake:
    """Why a server cannot listen, and what to do; `flag` is the one that sets the port."""
    address, choose = _address(host, port), f" with {flag}" if flag else ""
    if error.errno == errno.EADDRINUSE:
        return UserMistake(
            f"port {port} is in use by another program, cannot listen on {address}",
            hint=f"stop that program or choose another port{choose}",
        )
    if error.errno == errno.EACCES:
        return UserMistake(
            f"port {port} needs privileges that this process does not have",
            hint=f"choose a port above 1023{choose}",
        )
    # asyncio describes errors in words of its own; addresses have codes that are not of the system.
    code = error.errno or 0
    why = os.strerror(code) if code > 0 else error.strerror
    return UserMistake(
        f"cannot listen on {address}: {why}",
        hint=f"choose another host of this machine or another port{choose}",
    )


def _address(host: str, port: int) -> str:
    if host.startswith(UNIX):
        return host
    if ":" in host:
        return f"[{host}]:{port}"
    return f"{host or '0.0.0.0'}:{port}"  # noqa: S104 An empty host means every interface.


def _read_tls(tls: TlsFiles) -> grpc.ServerCredentials:
    try:
        chain, key = Path(tls.cert_file).read_bytes(), Path(tls.key_file).read_bytes()
    except OSError as e:
        raise UserMistake(
            f"cannot read the TLS file {e.filename}: {e.strerror}",
            hint="check --cert-file and --key-file",
        ) from e
    return grpc.ssl_server_credentials([(key, chain)])
