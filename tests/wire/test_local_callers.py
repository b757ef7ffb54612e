# SPDX-License-Identifier: Apache-2.0
"""The owners of the ends of connections on loopback."""

import os
import socket

import pytest

from pipecd.wire import local_callers
from pipecd.wire.local_callers import (
    Connection,
    LocalRpcTable,
    is_own_listener,
    parse_connections,
    read_connections,
)

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)


def row(local: str, remote: str, state: str, user: int) -> str:
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 1 1\n"


@pytest.mark.parametrize(
    ("line", "connection"),
    [
        pytest.param(
            row("0100007F:1F90", "0100007F:C350", "01", 1000),
            Connection(("127.0.0.1", 8080), ("127.0.0.1", 50000), "01", 1000),
            id="IPv4",
        ),
        pytest.param(
            row("00000000000000000000000001000000:1F90", "0" * 32 + ":0000", "0A", 0),
            Connection(("::1", 8080), ("::", 0), "0A", 0),
            id="IPv6",
        ),
        pytest.param(
            row("0000000000000000FFFF00000100007F:C350", "0" * 32 + ":1F90", "01", 7),
            Connection(("127.0.0.1", 50000), ("::", 8080), "01", 7),
            id="IPv4 in IPv6",
        ),
    ],
)
def test_the_table_of_the_kernel(line: str, connection: Connection) -> None:
    assert list(parse_connections([HEAD, line])) == [connection]


def test_the_owner_of_a_connection_of_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            local = client.getsockname()
            found = [c for c in read_connections() if c.local == local]
            assert found == [Connection(local, ("127.0.0.1", port), "01", os.geteuid())]
        assert is_own_listener(port)


PEER = "ipv4:127.0.0.1:50000"
CLIENT, SERVER = ("127.0.0.1", 50000), ("127.0.0.1", 9087)


@pytest.mark.parametrize(
    ("connections", "is_own"),
    [
        pytest.param([Connection(CLIENT, SERVER, "01", 1000)], True, id="a process of this user"),
        pytest.param([Connection(CLIENT, SERVER, "01", 1001)], False, id="one of another user"),
        pytest.param([Connection(CLIENT, SERVER, "06", 1000)], False, id="one that has ended"),
        pytest.param([], False, id="a connection that is gone"),
        pytest.param(
            [
                Connection(CLIENT, SERVER, "01", 1001),
                Connection(CLIENT, ("127.0.0.1", 443), "01", 1000),
            ],
            False,
            id="the same port with another destination",
        ),
        pytest.param(
            [Connection(("127.0.0.2", 50000), SERVER, "01", 1000)], False, id="another address"
        ),
    ],
)
@pytest.mark.parametrize("is_listed", [True, False])
def test_callers_of_a_port(
    connections: list[Connection],
    is_own: bool,
    is_listed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of loopback is trusted where the kernel does not list the socket that listens."""
    listener = [Connection(SERVER, ("0.0.0.0", 0), "0A", 1000)] if is_listed else []
    monkeypatch.setattr(local_callers, "read_connections", lambda: listener + connections)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    table = object.__new__(LocalRpcTable)
    table.port = 9087
    assert table._is_own(PEER) is (is_own or not is_listed)
