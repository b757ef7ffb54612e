# SPDX-License-Identifier: Apache-2.0
"""A port is still free when a program that has just been started listens on it."""

import random
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipecd.program import port
from pipecd.program.port import free_port


def test_it_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_it_is_none_that_the_system_gives_to_others() -> None:
    first = int(port._GIVEN_AWAY.read_text().split()[0])
    assert all(free_port() < first for _ in range(100))


def test_one_that_is_in_use_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as busy:
        other = free_port()
        turns = iter((busy.getsockname()[1], other))

        class Turns:
            def choice(self, ports: Sequence[int]) -> int:
                return next(turns)

        monkeypatch.setattr(random, "SystemRandom", Turns)
        assert free_port() == other


@pytest.mark.parametrize(
    "given_away",
    [
        pytest.param("1024\t65535\n", id="when the system gives all ports to others"),
        pytest.param(None, id="when the system does not tell"),
    ],
)
def test_there_is_always_one(
    given_away: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "range"
    if given_away is not None:
        told.write_text(given_away)
    monkeypatch.setattr(port, "_GIVEN_AWAY", told)
    with socket.create_server(("127.0.0.1", free_port())):
        pass
