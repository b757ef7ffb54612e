# SPDX-License-Identifier: Apache-2.0
"""Runs `pipecd server` as a process and reads its CPU time and memory."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.config.controlplane import DatastoreSpec

START_SECONDS = 60.0
PORTS = ("port", "piped-api", "web-api", "http", "api", "admin", "envoy-authz")
TICKS = os.sysconf("SC_CLK_TCK")
ENCRYPTION_KEY = b"k" * 64


@dataclass(frozen=True)
class ControlPlaneProcess:
    """A running control plane: its process, its ports by the name of their flag, its files."""

    process: "subprocess.Popen[bytes]"
    ports: dict[str, int]
    files: Path

    def address(self, port_name: str) -> str:
        return f"127.0.0.1:{self.ports[port_name]}"

    def cpu_seconds(self) -> float:
        """Returns its CPU time since the start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Returns its resident memory in MB."""
        return memory_of(self.process.pid)


def memory_of(pid: int) -> float:
    """Returns the resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def free_ports() -> dict[str, int]:
    """Returns a free port for each flag."""
    return {port_name: _free_port() for port_name in PORTS}


@contextmanager
def run_control_plane(
    datastore: DatastoreSpec, ports: dict[str, int] | None = None, *, files: Path | None = None
) -> Iterator[ControlPlaneProcess]:
    """Runs the control plane on this database until the block ends, on free ports or these.

    Without `files`, its filestore is a temporary directory; with them, nothing is collected.
    """
    with tempfile.TemporaryDirectory() as directory:
        ports = ports or free_ports()
        collects = files is None
        files = files or Path(directory) / "files"
        command = _command(Path(directory), datastore, ports, files, collects=collects)
        process = subprocess.Popen(command)
        try:
            _wait(process, ports)
            yield ControlPlaneProcess(process, ports, files)
        finally:
            process.terminate()
            process.wait(60)


def _command(
    directory: Path, datastore: DatastoreSpec, ports: dict[str, int], files: Path, *, collects: bool
) -> list[str]:
    config, key = directory / "control-plane.yaml", directory / "key"
    filestore = {"type": "LOCAL", "config": {"path": str(files)}}
    spec = {
        "address": "http://127.0.0.1",
        "stateKey": "bench",
        "datastore": datastore.model_dump(by_alias=True, exclude_defaults=True),
        "filestore": filestore,
        "insightCollector": {name: {"enabled": collects} for name in ("application", "deployment")},
    }
    document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "ControlPlane", "spec": spec}
    # JSON is YAML too.
    config.write_text(json.dumps(document))
    key.write_bytes(ENCRYPTION_KEY)
    flags = [
        f"--{port_name}{'' if port_name == 'port' else '-port'}={port}"
        for port_name, port in ports.items()
    ]
    paths = [f"--config-file={config}", f"--encryption-key-file={key}"]
    quiet = ["--host=127.0.0.1", "--log-level=warn", "--grace-period=1s", "--insecure-cookie"]
    return [sys.executable, "-m", "pipecd", "server", *paths, *quiet, *flags]


def _wait(process: "subprocess.Popen[bytes]", ports: dict[str, int]) -> None:
    end = time.monotonic() + START_SECONDS
    # The one port is opened last.
    while True:
        try:
            socket.create_connection(("127.0.0.1", ports["port"]), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the control plane does not start") from None
            time.sleep(0.02)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
