# SPDX-License-Identifier: Apache-2.0
"""Finds out why a control plane cannot be reached.

gRPC reports one state for all causes. So a connection that failed is tried once more, one layer
after the other: name, port, TLS, HTTP/2.
"""

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass

from pipecd.model.errors import UserMistake
from pipecd.wire.certificates import refused_certificate

_TIMEOUT_SECONDS = 3.0
_TLS_TIMEOUT_SECONDS = 1.0
_DEFAULT_PORT = 443
# What an HTTP/2 client sends first, with an empty frame of settings; a server answers with its own.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEAD_BYTES = 9
_FRAME_TYPE, _SETTINGS = 3, 4
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True)
class ConnectionProblem:
    """Why an address cannot be used; one that is permanent does not end by waiting."""

    what: str
    hint: str
    is_permanent: bool = True


async def find_problem(address: str, *, insecure: bool, cert_file: str) -> ConnectionProblem | None:
    """Connects to the address and returns what fails; None if nothing does.

    Behind a proxy, which gRPC uses by itself, a direct connection would say nothing; sockets in the
    file system and other schemes of gRPC are not tried.
    """
    if "/" in address or any(os.environ.get(name) for name in _PROXY_VARIABLES):
        return None
    host, port = split_address(address)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            if insecure:
                return await _plain_text_problem(address, host, port)
            return await _tls_problem(address, host, port, await _tls_context(cert_file))
    except OSError as e:
        return _network_problem(e, address)


def _network_problem(error: OSError, address: str) -> ConnectionProblem:
    host, port = split_address(address)
    match error:
        case TimeoutError():
            return ConnectionProblem(
                f"{address} does not answer",
                "check the address, and whether a firewall is between",
                is_permanent=False,
            )
        case socket.gaierror():
            return ConnectionProblem(
                f"the host {host} is unknown ({error.strerror})",
                "check the spelling of the address",
                is_permanent=error.errno == socket.EAI_NONAME,
            )
        case ConnectionRefusedError():
            return ConnectionProblem(
                f"nothing listens on port {port} of {host}: the connection was refused",
                "check the port, and that the control plane runs",
                is_permanent=False,
            )
        case _:
            what = f"cannot connect to {address}: {error.strerror or error}"
            return ConnectionProblem(what, "check the address", is_permanent=False)


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`; without a port it is that of HTTPS, as for gRPC."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        host, port = address, str(_DEFAULT_PORT)
    return host.strip("[]"), int(port)


async def _plain_text_problem(address: str, host: str, port: int) -> ConnectionProblem | None:
    answer = await _first_bytes(host, port, None)
    if _is_http2(answer):
        return None
    if not _is_http1(answer) and await _speaks_tls(host, port):
        return ConnectionProblem(f"{address} speaks TLS, not plain text", "leave out --insecure")
    return _no_grpc(address, answer)


async def _tls_problem(
    address: str, host: str, port: int, context: ssl.SSLContext
) -> ConnectionProblem | None:
    try:
        answer = await _first_bytes(host, port, context)
    except ssl.SSLCertVerificationError as e:
        return ConnectionProblem(*refused_certificate(e, address, host))
    except (ssl.SSLError, ConnectionResetError) as e:
        if _is_http2(await _first_bytes(host, port, None)):
            return ConnectionProblem(f"{address} speaks plain text, not TLS", "add --insecure")
        reason = e.reason if isinstance(e, ssl.SSLError) else "the connection was closed"
        return ConnectionProblem(
            f"{address} speaks no TLS ({reason})", "check the port, or add --insecure"
        )
    return None if _is_http2(answer) else _no_grpc(address, answer)


def _no_grpc(address: str, answer: bytes) -> ConnectionProblem:
    what = "a web server without gRPC answers" if _is_http1(answer) else "no gRPC answers"
    return ConnectionProblem(
        f"there is no PipeCD at {address}: {what}", "check the address and the port"
    )


async def _tls_context(cert_file: str) -> ssl.SSLContext:
    try:
        context = await asyncio.to_thread(ssl.create_default_context, cafile=cert_file or None)
    except OSError as e:
        raise UserMistake(
            f"{cert_file} is not a file of PEM certificates", hint="check --cert-file"
        ) from e
    # The file may contain the certificate of the server itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    return context


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        # A server of something else waits for what it expects instead of an answer.
        async with asyncio.timeout(_TLS_TIMEOUT_SECONDS):
            await _first_bytes(host, port, context)
    except OSError:
        return False
    return True


async def _connect(host: str, port: int) -> socket.socket:
    """Connects to the first address of the host that accepts.

    If none does, a refused connection is the error: asyncio would report several errors, such as
    those of both addresses of localhost, as one text.
    """
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as e:
            errors.append(e)
            continue
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
        except OSError as e:
            connection.close()
            errors.append(e)
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise next((e for e in errors if isinstance(e, ConnectionRefusedError)), errors[0])


async def _first_bytes(host: str, port: int, tls: ssl.SSLContext | None) -> bytes:
    """Sends the beginning of an HTTP/2 connection and returns what the server answers first."""
    connection = await _connect(host, port)
    try:
        reader, writer = await asyncio.open_connection(
            sock=connection, ssl=tls, server_hostname=host if tls else None
        )
    except BaseException:
        connection.close()
        raise
    try:
        writer.write(_PREFACE)
        return await reader.readexactly(_FRAME_HEAD_BYTES)
    except asyncio.IncompleteReadError as e:
        return e.partial
    except ConnectionResetError:
        return b""
    finally:
        # Without a farewell, for which a server that speaks something else would be waited for.
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


def _is_http2(answer: bytes) -> bool:
    return len(answer) == _FRAME_HEAD_BYTES and answer[_FRAME_TYPE] == _SETTINGS


def _is_http1(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/")
