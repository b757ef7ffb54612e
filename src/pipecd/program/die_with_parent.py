# SPDX-License-Identifier: Apache-2.0
"""Child processes that die with their parent, also when the parent is killed by SIGKILL.

A shell starts a watcher in the process group of the program and then execs the program. The
watcher reads from a pipe whose other end only we hold: a line tells it to exit, the end of the
pipe makes it kill the whole group. A successor of a killed process therefore never meets programs
that its predecessor left running.

A program whose work must not be cut off outlives its parent instead: the watcher then reads and
discards the rest of its output, since writing to a pipe that nobody reads would end the program.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipecd.program import group

# The watcher ignores SIGTERM, as its program may, and holds no pipe of the program. It is a
# grandchild, since a program that waits for all its children must not wait for the watcher.
_WATCHED = (
    'exec 3<&0; ( trap "" HUP INT TERM; (exec >/dev/null 2>&1; read -r _ <&3 || kill -KILL 0) & ); '
    'exec "$@" 3<&- </dev/null'
)
# The standard error is the end of the pipe to read the output from. The path opens it once more,
# because our own descriptor does not block.
_OUTLIVING = (
    'exec 3<&0 4<&2 2>&1; ( trap "" HUP INT TERM; '
    "(exec >/dev/null 2>&1; read -r _ <&3 || exec cat </dev/fd/4) & ); "
    'exec "$@" 3<&- 4<&- </dev/null'
)
# Variables that a shell adds to the environment on its own.
_SHELL_VARIABLES = ("PWD", "OLDPWD", "SHLVL")


@dataclass(frozen=True)
class ChildProcess:
    """A program that leads a session of its own and has an empty standard input."""

    process: asyncio.subprocess.Process
    _watcher_pipe: IO[bytes]

    async def wait(self) -> int:
        """Waits for the program to exit; processes that it left in the background live on."""
        code = await self.process.wait()
        self._dismiss_watcher()
        return code

    async def end(self, *, grace: float, stop: signal.Signals = signal.SIGTERM) -> None:
        """Sends `stop` to the whole group, waits up to `grace` seconds, then sends SIGKILL."""
        try:
            await group.end(self.process, grace=grace, stop=stop, on_exit=self._dismiss_watcher)
        finally:
            self._dismiss_watcher()

    def _dismiss_watcher(self) -> None:
        if not self._watcher_pipe.closed:
            # A program that killed its own group killed the watcher, too.
            with suppress(OSError):
                self._watcher_pipe.write(b"\n")
            self._watcher_pipe.close()


async def start(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None,
    output: int,
    output_reader: int | None = None,
    descriptors: Sequence[int] = (),
) -> ChildProcess:
    """Starts a program that dies with us; `output` receives its standard output and error.

    With `output_reader`, the other end of the pipe `output`, the program outlives us. It also
    inherits the `descriptors`, which must be greater than 9.
    """
    await asyncio.to_thread(_check, argv[0], cwd, os.environ if env is None else env)
    added = [name for name in _SHELL_VARIABLES if name not in (os.environ if env is None else env)]
    watched = _WATCHED if output_reader is None else _OUTLIVING
    script = f"unset {' '.join(added)}; {watched}" if added else watched
    read_end, write_end = os.pipe()
    watcher_pipe = os.fdopen(write_end, "wb", buffering=0)
    try:
        process = await group.start(
            ["/bin/sh", "-c", script, "sh", *argv],
            cwd=cwd,
            env=env,
            stdin=read_end,
            stdout=output,
            stderr=output if output_reader is None else output_reader,
            descriptors=descriptors,
        )
    except BaseException:
        watcher_pipe.close()
        raise
    finally:
        os.close(read_end)
    return ChildProcess(process, watcher_pipe)


def _check(program: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Raises a readable error for what the shell would only print."""
    if not cwd.is_dir():
        raise group.no_directory(cwd)
    location = str(cwd / program) if "/" in program else program
    path = env.get("PATH", os.defpath)
    if shutil.which(location, path=path) is not None:
        return
    if shutil.which(location, mode=os.F_OK, path=path) is None:
        raise group.not_found(program)
    raise group.not_allowed(program)
