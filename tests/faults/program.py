# SPDX-License-Identifier: Apache-2.0
"""One of our programs as a process that can be killed, stopped, started again, and given another time."""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from faults import shifted_clock

_LIBFAKETIME = (
    Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"),
    Path("/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"),
    Path("/usr/lib/faketime/libfaketime.so.1"),
)
SEEDED_BUGS = "PIPECD_FAULTS_SEEDED_BUGS"
"""Names the bugs that `shifted_clock` seeds into a program, see `seeded_bugs`."""


def libfaketime() -> Path | None:
    """The library that steps the clock of a process and its children, if this machine has it."""
    named = os.environ.get("PIPECD_LIBFAKETIME")
    paths = (Path(named),) if named else _LIBFAKETIME
    return next((path for path in paths if path.exists()), None)


@dataclass(frozen=True)
class Release:
    """Where programs come from; by default from this checkout.

    Those of an installed release run as they are, their clock stepped by libfaketime. Others run by
    `shifted_clock`, which can also seed a bug into them.
    """

    executables: Path | None = None
    """The directory of the programs of an installed release."""
    sources: Path | None = None
    """The directory with the package of another version, which runs with the dependencies of this one."""
    upstream_piped: Path | None = None
    """A piped of upstream, of the first or the second generation."""


CURRENT = Release()


@dataclass
class Program:
    """One of our programs, its clock and its log."""

    name: str
    directory: Path
    arguments: Sequence[str]
    process: asyncio.subprocess.Process | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    release: Release = CURRENT
    """What the next start runs."""
    starts: list[float] = field(default_factory=list[float])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who kills, stops or starts it, if several may."""

    @property
    def log_file(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def clock_file(self) -> Path:
        """Has the seconds by which its clock, and that of what it launches, is ahead."""
        return self.directory / f"{self.name}.clock"

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def step_clock(self, seconds: float) -> bool:
        """Sets how far the clock of this program is ahead of the real one; returns whether it steps.

        That of an installed release needs libfaketime for that, and upstream's piped has the real time.
        """
        file, offset = self.clock_file, f"{seconds:+g}"
        before = file.read_text() if file.exists() else ""
        new = file.with_suffix(".new")
        new.write_text(offset)
        new.replace(file)
        is_ours = self.release.upstream_piped is None
        is_stepped = self.release.executables is None or libfaketime() is not None
        return is_ours and is_stepped and before != offset

    async def start(self) -> None:
        if not self.clock_file.exists():
            self.step_clock(0)
        command, variables = self._command(self.clock_file)
        if setpriv := shutil.which("setpriv"):
            # It ends with the tests, also if those are killed.
            command = [setpriv, "--pdeathsig=KILL", *command]
        self.starts.append(time.time())
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[1],
                env={**os.environ, **variables, **self.environment},
                start_new_session=True,
            )

    def _command(self, clock: Path) -> tuple[list[str], dict[str, str]]:
        executables, sources = self.release.executables, self.release.sources
        if self.release.upstream_piped is not None:
            _, *arguments = self.arguments
            return [str(self.release.upstream_piped), *arguments], {}
        if executables is None:
            variables = {"PYTHONPATH": str(sources)} if sources else {}
            command = [sys.executable, str(shifted_clock.__file__), str(clock), *self.arguments]
            return command, variables
        program, *arguments = self.arguments
        variables: dict[str, str] = {}
        if library := libfaketime():
            variables = {
                "LD_PRELOAD": str(library),
                "FAKETIME_TIMESTAMP_FILE": str(clock),
                # Otherwise every look at the clock would read the file.
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return [str(executables / program), *arguments], variables

    def signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def kill(self) -> None:
        """Kills without warning."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> None:
        """Stops as an operator would; kills what does not end in time."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(40):
                await self.wait()
        except TimeoutError:
            await self.kill()

    async def wait(self) -> int | None:
        return await self.process.wait() if self.process is not None else None
