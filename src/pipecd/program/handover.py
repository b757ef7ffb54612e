# SPDX-License-Identifier: Apache-2.0
"""How the launcher and a piped that it starts agree on when that piped begins to work.

The piped inherits a socket. It reports in lines of JSON what it checks, that it is ready, and that
it runs; the launcher answers once with a line that says how to start. Both ignore what they do not
know, since the other one may be of a later version.
"""

import asyncio
import fcntl
import json
import os
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pipecd.model.errors import PipecdError, UserMistake

FLAG = "handover-fd"
"""The flag of piped with the file descriptor; a version without it cannot wait."""

_MAX_LINE, _MAX_ORDER = 1 << 20, 64
_SEND_SECONDS = 5.0
# Lower descriptors have a meaning for the shell that starts a program.
_FIRST_DESCRIPTOR = 10


class Phase(StrEnum):
    """How far a piped has come."""

    CHECKING = "checking"
    READY = "ready"
    RUNNING = "running"
    FAILED = "failed"


class StartOrder(StrEnum):
    """How a piped that is ready starts."""

    START = "start"
    """No other piped of this launcher runs."""
    TAKE_OVER = "take over"
    """The running one hands over its lease first; it uses the workspace until then."""


@dataclass(frozen=True)
class PipedReport:
    """A report of a piped to its launcher."""

    phase: Phase
    text: str = ""
    """What is checked, or why it failed."""
    has_lease: bool = False
    """Whether the control plane ensures that only one process works with the id of the piped."""
    usable: Sequence[str] = ()
    """The plugins that work, and their deploy targets as `plugin/target`."""
    unusable: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that do not, and why."""


class LauncherConnection:
    """The end of the piped."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError as e:
            raise UserMistake(
                f"--{FLAG}: {descriptor} is no open socket", hint="only the launcher sets this flag"
            ) from e
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)

    def report(self, report: PipedReport) -> None:
        """Sends a report; a launcher that has ended ends this process anyway."""
        self.send(json.dumps(asdict(report)).encode())

    def send(self, line: bytes) -> None:
        """Sends a line to the launcher, which reads it at once."""
        self._socket.settimeout(_SEND_SECONDS)
        try:
            self._socket.sendall(line + b"\n")
        except OSError:
            pass
        finally:
            self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def received_order(self) -> StartOrder | None:
        """Returns the order that the launcher has sent already; None if this piped has to wait."""
        try:
            return _parse_order(self._socket.recv(_MAX_ORDER))
        except BlockingIOError:
            return None

    async def wait_for_order(self) -> StartOrder:
        """Waits until the launcher says how to start."""
        loop = asyncio.get_running_loop()
        return _parse_order(await loop.sock_recv(self._socket, _MAX_ORDER))


class PipedConnection:
    """The end of the launcher; `descriptor` is for the piped until `close_descriptor`."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.descriptor = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        self._socket.setblocking(False)

    def close_descriptor(self) -> None:
        """Called when the piped has inherited its end, so that its exit ends the connection."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Ends the connection, also for who reads reports."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send_order(self, order: StartOrder) -> None:
        # It fails if the piped has just ended, which its exit tells.
        with suppress(OSError):
            self._socket.send(f"{order}\n".encode())

    async def reports(self) -> AsyncGenerator[PipedReport]:
        """Yields the reports of the piped until it ends."""
        reader, writer = await asyncio.open_connection(sock=self._socket.dup(), limit=_MAX_LINE)
        try:
            with suppress(OSError, ValueError):
                while line := await reader.readline():
                    if (report := _parse_report(line)) is not None:
                        yield report
        finally:
            writer.close()


def _parse_order(line: bytes) -> StartOrder:
    if not line:
        raise PipecdError("the launcher ended before it said that this piped may start")
    return StartOrder(line.decode().strip())


def _parse_report(line: bytes) -> PipedReport | None:
    """Returns the report; None if it is of a kind that this version does not know."""
    try:
        values: dict[str, Any] = json.loads(line)
        return PipedReport(
            phase=Phase(values["phase"]),
            text=str(values.get("text", "")),
            has_lease=bool(values.get("has_lease", False)),
            usable=tuple(map(str, values.get("usable", ()))),
            unusable={str(k): str(v) for k, v in values.get("unusable", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
