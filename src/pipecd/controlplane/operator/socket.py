# SPDX-License-Identifier: Apache-2.0
"""The Unix socket by which commands of the operator reach a running server.

Only one process can open a SQLite database, so the server that has it open runs the operations of
`pipecd project` and `pipecd api-key`. The socket is beside the database, and only the user of the
server can connect. A request is one line of JSON; its response is JSON until the end of the stream.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from pipecd.controlplane.usecases.installation import Arguments, InstallationUseCases, Rows
from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    PipecdError,
    Unavailable,
    UserMistake,
)

log = structlog.get_logger()

_TIMEOUT_SECONDS = 30.0
_MAX_ADDRESS_BYTES = 100
_MAX_REQUEST_BYTES = 1024 * 1024
_ERRORS = {kind.__name__: kind for kind in (UserMistake, NotFound, AlreadyExists, Conflict)}


def socket_path(database: Path) -> Path:
    """The socket of the server that has this SQLite database open."""
    return database.with_name(f"{database.name}.sock")


@asynccontextmanager
async def operator_socket(path: Path, installation: InstallationUseCases) -> AsyncGenerator[None]:
    """Serves the operations until the block ends; the caller has the database locked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A request that exceeds the limit, which our client does not send, is a ValueError.
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                response = await _respond(await reader.readline(), installation)
                writer.write(json.dumps(response).encode())
                await writer.drain()
        writer.close()

    bound = await asyncio.to_thread(_bind, path)
    server = await asyncio.start_unix_server(serve, sock=bound, limit=_MAX_REQUEST_BYTES)
    try:
        yield
    finally:
        server.close()
        await asyncio.to_thread(path.unlink, missing_ok=True)


def _bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as address:
        bound.bind(address)
    # Nobody can connect before the socket listens, so the mode is set in time.
    path.chmod(0o600)
    return bound


async def _respond(line: bytes, installation: InstallationUseCases) -> dict[str, Any]:
    try:
        request = json.loads(line)
        rows = await installation.run(request["operation"], request["arguments"])
    except PipecdError as e:
        kind = next((name for name, kind in _ERRORS.items() if isinstance(e, kind)), "")
        return {"error": kind, "message": e.message, "hint": e.hint}
    except (ValueError, KeyError, TypeError) as e:
        log.warning("invalid request of an operator", error=str(e))
        return {"error": "UserMistake", "message": "invalid request", "hint": ""}
    return {"rows": rows}


async def run_on_server(path: Path, operation: str, arguments: Arguments) -> Rows | None:
    """Runs an operation on the server that has the database open; None if there is none."""
    request = json.dumps({"operation": operation, "arguments": arguments}).encode() + b"\n"
    if len(request) > _MAX_REQUEST_BYTES:
        raise UserMistake("the arguments are longer than 1 MiB", hint="shorten the longest of them")
    client = await asyncio.to_thread(_connect, path)
    if client is None:
        return None
    reader, writer = await asyncio.open_unix_connection(sock=client)
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            response = json.loads(await reader.read())
    except (OSError, TimeoutError, ValueError) as e:
        raise Unavailable("the running server did not answer", hint="see its log") from e
    finally:
        writer.close()
    if "rows" in response:
        return response["rows"]
    kind = _ERRORS.get(response["error"], Unavailable)
    raise kind(response["message"], hint=response["hint"])


def _connect(path: Path) -> socket.socket | None:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            client.connect(address)
    except OSError as e:
        client.close()
        if isinstance(e, FileNotFoundError | ConnectionRefusedError):
            return None
        raise UserMistake(
            f"cannot connect to the running server at {path}: {e.strerror}",
            hint="run this command as the user of the server",
        ) from e
    return client


@contextmanager
def _short(path: Path) -> Generator[str]:
    """An address of the socket that is short enough for the kernel."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        is_long = len(os.fsencode(path)) > _MAX_ADDRESS_BYTES
        yield f"/proc/self/fd/{directory}/{path.name}" if is_long else str(path)
    finally:
        os.close(directory)
