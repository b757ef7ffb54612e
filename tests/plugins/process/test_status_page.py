# SPDX-License-Identifier: Apache-2.0
"""The status page answers its own name only, and a limited number of clients at once."""

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipecd.plugins.process import status_page
from pipecd.plugins.process.applications import Supervisor
from pipecd.plugins.process.instance import StatusPage
from pipecd.plugins.process.state_file import SupervisorDirectory
from pipecd.plugins.process.status_page import serve_status
from servers.polling import eventually
from servers.server import free_ports

# More than the page serves at once.
MANY = 100


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    supervisor = Supervisor(SupervisorDirectory(tmp_path))
    [port] = free_ports(1)
    supervisor.status_page = StatusPage(port)
    async with serve_status(supervisor):
        yield port


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        with suppress(ConnectionRefusedError):
            return await asyncio.open_connection("127.0.0.1", port)
        return None

    return await eventually(opened, 10)


async def get_metrics(port: int, fields: str) -> int:
    """Returns the status of the answer, 0 if there is none."""
    reader, writer = await connect(port)
    try:
        writer.write(f"GET /metrics HTTP/1.1\r\n{fields}\r\n".encode())
        answer = await reader.read()
    except ConnectionResetError:
        return 0
    finally:
        writer.close()
    return int(answer.split()[1]) if answer else 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param("Host: 127.0.0.1:{port}\r\n", 200, id="its address"),
        pytest.param("host: LocalHost:{port}\r\n", 200, id="its name"),
        pytest.param("Host: localhost\r\n", 200, id="a name without a port"),
        pytest.param("", 200, id="no name, which no browser sends"),
        pytest.param("Host: attacker.example:{port}\r\n", 421, id="a name that leads to loopback"),
        pytest.param("Host: 127.0.0.1.attacker.example\r\n", 421, id="a name like the address"),
        pytest.param(
            "Host: localhost\r\nHost: attacker.example\r\n", 421, id="a second, other name"
        ),
    ],
)
async def test_a_request_for(fields: str, status: int, port: int) -> None:
    assert await get_metrics(port, fields.format(port=port)) == status


async def test_idle_connections_are_limited(port: int) -> None:
    idle = [await connect(port) for _ in range(MANY)]
    assert await get_metrics(port, "Host: localhost\r\n") == 0
    for _, writer in idle:
        writer.close()

    async def is_served() -> bool:
        return await get_metrics(port, "Host: localhost\r\n") == 200

    await eventually(is_served, 10)


async def test_a_client_that_does_not_read_is_cut_off(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_page, "_TIMEOUT", 0.1)
    monkeypatch.setattr(status_page, "metrics", lambda _: ["x" * 16_000_000])
    (await connect(port))[1].close()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        polled = select.poll()
        polled.register(client, 0)

        await eventually(lambda: any(event & select.POLLERR for _, event in polled.poll(0)), 10)
