# SPDX-License-Identifier: Apache-2.0
"""Reports to the service manager that started a program."""

import os
import socket
from pathlib import Path

import pytest

from pipecd.program.service_manager import report_ready


@pytest.mark.parametrize("kind", ["a file", "an abstract name"])
def test_a_service_manager_is_told_that_the_process_serves(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "notify") if kind == "a file" else f"@pipecd-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        report_ready()
        manager.settimeout(5)
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "/no/such/socket"])
def test_without_a_service_manager_the_program_goes_on(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    report_ready()
