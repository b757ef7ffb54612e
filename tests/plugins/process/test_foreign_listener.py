# SPDX-License-Identifier: Apache-2.0
"""A program of another user on the port of an instance gets no requests."""

import os
import socket
import sys

import pytest

from pipecd.plugins.process.foreign_listener import foreign_listener, listening_users
from pipecd.sdk import StageStatus
from plugins.process.testbed import SERVICE, Service

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 10 1
   1: 00000000:4E21 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 11 1
   2: 0200007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 12 1
   3: 0100007F:4E20 0100007F:D000 01 00000000:00000000 00:00000000 00000000  1004        0 13 1
   4: 00000000000000000000000000000000:4E20 00000000000000000000000000000000:0000 0A 0:0 00:0 0  1005 0 14 1
   5: 0000000000000000FFFF00000100007F:4E20 00000000000000000000000000000000:0000 0A 0:0 00:0 0  1006 0 15 1
   6: 00000000000000000000000001000000:4E20 00000000000000000000000000000000:0000 0A 0:0 00:0 0  1007 0 16 1
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is of such a machine")
@pytest.mark.parametrize(
    ("port", "users"), [(20000, {1001, 1005, 1006}), (20001, {1002}), (20002, set[int]())]
)
def test_who_listens_at_loopback(port: int, users: set[int]) -> None:
    assert listening_users(TABLE.splitlines(), port) == users


def test_our_own_listener_is_not_foreign() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert foreign_listener(port, os.getpid(), "") is None
        assert foreign_listener(port, os.getpid(), "removed-since") is None
    assert foreign_listener(port, os.getpid(), "") is None, "nobody listens"


def as_child(preparation: str) -> str:
    """Returns a program whose child process serves after a preparation, for a while."""
    modules = "os, signal, socket, threading, time"
    return (
        f"import {modules}\nif os.fork():\n    time.sleep(600)\n"
        f"signal.alarm(60)\n{preparation}\n{SERVICE}"
    )


@as_root
async def test_a_program_of_another_user_is_never_healthy(service: Service) -> None:
    stranger = as_child(f"os.setsid(); os.setuid({NOBODY})")
    health = {"path": "/healthz", "interval": "200ms", "timeout": "2s"}
    bench = service.commit("one", {"server.py": stranger}, healthCheck=health)
    result = await bench.run("PROCESS_SYNC")
    assert result.status is StageStatus.FAILURE
    assert f"belongs to a program of another user, {NOBODY}" in result.message
    assert (await service.get())[0] == 503


@as_root
async def test_a_program_may_become_another_user_itself(service: Service) -> None:
    dropping = as_child(f"os.setuid({NOBODY})")
    result = await service.commit("one", {"server.py": dropping}).run("PROCESS_SYNC")
    assert result.status is StageStatus.SUCCESS, result.message
    assert await service.get() == (200, "one")
