# SPDX-License-Identifier: Apache-2.0
"""Base class of the servers that tests run against: a directory, a port, start and stop."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipecd.program.port import free_port
from servers.load import patient

START_SECONDS = 40


class Server(ABC):
    """A server program that can be stopped, started again and made to hang."""

    user = ""

    def __init__(self) -> None:
        self.program = self.find_program()
        self.directory = Path(tempfile.mkdtemp(prefix="pipecd-test-"))
        self.data = self.directory / "data"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self.user and os.getuid() == 0:
            shutil.chown(self.directory, self.user, pwd.getpwnam(self.user).pw_gid)
        self.prepare()
        self.start()

    @abstractmethod
    def find_program(self) -> str: ...

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def is_up(self) -> bool: ...

    def prepare(self) -> None:
        """Creates what the first start needs."""
        self.data.mkdir()

    def start(self) -> None:
        log = self.directory / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self.as_unprivileged_user(self.command()),
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,
            )
        end = time.monotonic() + patient(START_SECONDS)
        while not self.is_up():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.program} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kills the server and keeps its data."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Signals the server and all its descendants, which may have left its process group."""
        if self._process is not None:
            for process in (self._process.pid, *children(self._process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def as_unprivileged_user(self, command: Sequence[str]) -> Sequence[str]:
        """Wraps the command so that it does not run as root and dies with the tests."""
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            return command
        change: list[str] = []
        if self.user and os.getuid() == 0:
            change = [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return [setpriv, *change, "--pdeathsig=KILL", *command]

    def answers(self, port: int = 0) -> bool:
        """Returns whether something listens on the port, by default the main one."""
        place = ("127.0.0.1", port or self.port)
        with suppress(OSError), socket.create_connection(place, timeout=1):
            return True
        return False


def children(parent: int) -> list[int]:
    """Returns the descendants of a process; threads and processes that end meanwhile have none."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, task.read_text().split()):
                found += [child, *children(child)]
    return found


def is_running(pid: int) -> bool:
    """Returns whether a process is alive; a zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def free_ports(count: int) -> list[int]:
    """Returns distinct free ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
