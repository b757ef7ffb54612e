# SPDX-License-Identifier: Apache-2.0
"""A proxy that answers for hosts of the internet.

Some programs cannot be given the address of a server, but all use the proxy of `HTTPS_PROXY` and
trust the certificates of `SSL_CERT_FILE`.
"""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


@asynccontextmanager
async def https_proxy(port: int, certificate: tuple[str, str]) -> AsyncGenerator[str, None]:
    """Passes the HTTPS requests of its clients to a server on loopback; yields its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"CONNECT "), head
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await writer.drain()
            await writer.start_tls(context)
            back, forth = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, forth), _copy(back, writer))
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _copy(source: StreamReader, to: StreamWriter) -> None:
    try:
        while some := await source.read(65536):
            to.write(some)
            await to.drain()
    finally:
        to.close()
