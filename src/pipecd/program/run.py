# SPDX-License-Identifier: Apache-2.0
"""Run one program well: no shell, its output line by line, nothing left behind when stopped."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipecd.program import die_with_parent, output

# More output than this is only seen through `on_line`; its end tells why a program failed.
_KEPT = 1024 * 1024
# A program may leave a daemon behind that keeps the pipe open; its lines are not waited for.
_LINGER = 1.0


@dataclass(frozen=True)
class Finished:
    """How a program ended: exit code (negative for a signal), last line, the end of its output."""

    code: int
    last_line: str
    output: str


async def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    grace: float = 10,
) -> Finished:
    """Runs a program to its end; a cancelled or killed caller takes the process group with it.

    `env` is the whole environment, as for `subprocess`; without it the program inherits ours.
    Standard output and standard error arrive in one order, decoded as UTF-8.
    """
    lines = output.Lines(on_line, keep=_KEPT)
    async with output.pipe() as (reader, writing):
        program = await die_with_parent.start(argv, cwd=cwd, env=env, output=writing.fileno())
        writing.close()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(lines.read(reader))
                code = await program.wait()
                await asyncio.wait({reading}, timeout=_LINGER)
                reading.cancel()
        except BaseException:
            await program.end(grace=grace)
            raise
    lines.finish()
    return Finished(code, lines.last, lines.text())
