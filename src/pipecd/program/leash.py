# SPDX-License-Identifier: Apache-2.0
"""A program on a leash: when we are killed and can do nothing, it and its children end too.

A shell becomes the program. What it leaves behind in the group of the program reads from a pipe of
which only we hold the other end: a line lets it go home, the end of the pipe makes it kill the
group. Whoever starts after us therefore never finds our programs still at work.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipecd.program import group

# The watcher outlives a request to stop, as its program may, and holds no pipe of the program. It
# is a grandchild, since a program that waits for all its children must not wait for a stranger.
_WATCHED = (
    'exec 3<&0; ( trap "" HUP INT TERM; (exec >/dev/null 2>&1; read -r _ <&3 || kill -KILL 0) & ); '
    'exec "$@" 3<&- </dev/null'
)
# What shells add to the environment on their own.
_OF_THE_SHELL = ("PWD", "OLDPWD", "SHLVL")


@dataclass(frozen=True)
class Leashed:
    """A program that runs as the leader of a session of its own and has nothing to read."""

    process: asyncio.subprocess.Process
    _hand: IO[bytes]

    async def wait(self) -> int:
        """Waits for the program and lets what it left behind live on."""
        code = await self.process.wait()
        self._let_go()
        return code

    async def end(self, *, grace: float) -> None:
        """Asks the whole group to stop, waits, and kills what is left."""
        try:
            await group.end(self.process, grace=grace, on_exit=self._let_go)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if not self._hand.closed:
            # A program that killed its own group also killed the one who reads this.
            with suppress(OSError):
                self._hand.write(b"\n")
            self._hand.close()


async def start(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None, output: int
) -> Leashed:
    """Starts a program that cannot outlive us unless we let it; `output` takes all it writes."""
    await asyncio.to_thread(_check, argv[0], cwd, os.environ if env is None else env)
    added = [name for name in _OF_THE_SHELL if name not in (os.environ if env is None else env)]
    script = f"unset {' '.join(added)}; {_WATCHED}" if added else _WATCHED
    read_end, write_end = os.pipe()
    hand = os.fdopen(write_end, "wb", buffering=0)
    try:
        process = await group.start(
            ["/bin/sh", "-c", script, "sh", *argv],
            cwd=cwd,
            env=env,
            stdin=read_end,
            stdout=output,
            stderr=output,
        )
    except BaseException:
        hand.close()
        raise
    finally:
        os.close(read_end)
    return Leashed(process, hand)


def _check(program: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Tells a person what the shell would only print."""
    if not cwd.is_dir():
        raise group.no_directory(cwd)
    place = str(cwd / program) if "/" in program else program
    path = env.get("PATH", os.defpath)
    if shutil.which(place, path=path) is not None:
        return
    if shutil.which(place, mode=os.F_OK, path=path) is None:
        raise group.not_found(program)
    raise group.not_allowed(program)
