# SPDX-License-Identifier: Apache-2.0
"""Runs a program without a shell: streams its output by line, or captures it as bytes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipecd.model.errors import Unavailable
from pipecd.program import die_with_parent, group, output

# Earlier output is only passed to `on_line`; the last part tells why a program failed.
_OUTPUT_LIMIT = 1024 * 1024
# A daemon that the program started may keep the pipe open, so waiting for its output has a limit.
_DRAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Finished:
    """The exit code (negative for a signal), the last line and the last part of the output."""

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
    """Runs a program to its exit; cancelling or killing the caller ends the process group.

    `env` is the whole environment, as for `subprocess`; without it the program inherits ours.
    Standard output and standard error are merged and decoded as UTF-8.
    """
    lines = output.Lines(on_line, keep=_OUTPUT_LIMIT)
    async with output.pipe() as (reader, writing):
        program = await die_with_parent.start(argv, cwd=cwd, env=env, output=writing.fileno())
        writing.close()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(lines.read(reader))
                code = await program.wait()
                await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)
                reading.cancel()
        except BaseException:
            await program.end(grace=grace)
            raise
    lines.finish()
    return Finished(code, lines.last, lines.text())


@dataclass(frozen=True)
class Captured:
    """The exit code and the output of a program."""

    code: int
    stdout: bytes
    stderr: bytes


async def capture(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    at_most: float = 60,
) -> Captured:
    """Runs a program and returns its output; stops it after `at_most` seconds."""
    pipe = asyncio.subprocess.PIPE
    process = await group.start(argv, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(at_most):
            stdout, stderr = await process.communicate(stdin)
    except TimeoutError as e:
        await group.end(process, grace=1)
        raise Unavailable(f"{argv[0]} did not finish within {at_most:g}s") from e
    except BaseException:
        await group.end(process, grace=1)
        raise
    # `communicate` returns after the program has exited.
    code = process.returncode if process.returncode is not None else await process.wait()
    return Captured(code, stdout, stderr)
