# SPDX-License-Identifier: Apache-2.0
"""A port is still free when a program that has just been started listens on it."""

import random
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipecd.program import port
from pipecd.program.port import free_port


def test_a_program_can_listen_on_it() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_it_is_not_an_ephemeral_port() -> None:
    first = int(port._EPHEMERAL_RANGE.read_text().split()[0])
    assert all(free_port() < first for _ in range(100))


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as busy:
        other = free_port()
        choices = iter((busy.getsockname()[1], other))

        class FixedChoices:
            def choice(self, ports: Sequence[int]) -> int:
                return next(choices)

        monkeypatch.setattr(random, "SystemRandom", FixedChoices)
        assert free_port() == other


@pytest.mark.parametrize(
    "ephemeral",
    [
        pytest.param("1024\t65535\n", id="when all ports are ephemeral"),
        pytest.param(None, id="when the system has no such file"),
    ],
)
def test_there_is_always_a_free_port(
    ephemeral: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    range_file = tmp_path / "range"
    if ephemeral is not None:
        range_file.write_text(ephemeral)
    monkeypatch.setattr(port, "_EPHEMERAL_RANGE", range_file)
    with socket.create_server(("127.0.0.1", free_port())):
        pass
