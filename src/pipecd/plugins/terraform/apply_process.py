# SPDX-License-Identifier: Apache-2.0
"""The processes of this machine that apply something, read from /proc."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

RUN_VARIABLE = "PIPECD_APPLY_RUN"
"""The variable in the environment of an apply by which piped knows it again."""
_PROC = Path("/proc")


@dataclass(frozen=True)
class ApplyProcess:
    """A process of Terraform or OpenTofu; `run` is "" for one that no piped has started.

    One that `is_ending` was killed, and keeps its files and their locks until its last thread has
    ended. The system does not tell its command and its run any more.
    """

    pid: int
    started_at: datetime
    run: str
    is_ending: bool = False

    def interrupt(self) -> None:
        """Lets running operations end, and begins no more."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends it with everything that it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # An apply of piped leads a process group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def running_applies() -> tuple[ApplyProcess, ...] | None:
    """Returns every apply that runs on this machine; None if the system does not tell."""
    try:
        booted_at = _booted_at()
        paths = [path for path in _PROC.iterdir() if path.name.isdigit()]
    except (OSError, ValueError):
        return None
    return tuple(_applies(paths, booted_at))


def process_names(processes: Iterable[ApplyProcess]) -> str:
    """Returns the processes as a log shows them."""
    pids = [str(process.pid) for process in processes]
    return f"{'process' if len(pids) == 1 else 'processes'} {', '.join(pids)}"


def _booted_at() -> float:
    lines = (_PROC / "stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def _applies(paths: Iterable[Path], booted_at: float) -> Iterator[ApplyProcess]:
    ticks = os.sysconf("SC_CLK_TCK")
    for path in paths:
        # A process may end while it is read.
        with suppress(OSError, ValueError, IndexError):
            command = (path / "cmdline").read_bytes()
            program, *arguments = command.split(b"\0")
            if command and (not _is_tool(os.fsdecode(program)) or b"apply" not in arguments):
                continue
            # The name of a program, in parentheses, may contain anything.
            head, _, tail = (path / "stat").read_text().rpartition(")")
            state, *fields = tail.split()
            is_ending = not command or state == "Z"
            if is_ending and not (_is_tool(head.partition("(")[2]) and _has_threads(path, state)):
                continue
            started_at = datetime.fromtimestamp(booted_at + int(fields[18]) / ticks, UTC)
            yield ApplyProcess(int(path.name), started_at, _run(path), is_ending)


def _is_tool(program: str) -> bool:
    return Path(program).name.startswith(("terraform", "tofu"))


def _has_threads(path: Path, state: str) -> bool:
    """Reports whether a thread of a process runs whose first thread is in this state."""
    return state != "Z" or len(list((path / "task").iterdir())) > 1


def _run(path: Path) -> str:
    """Returns the run that a process belongs to; the environment of others cannot be read."""
    with suppress(OSError):
        for variable in (path / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == RUN_VARIABLE.encode():
                return os.fsdecode(value)
    return ""
