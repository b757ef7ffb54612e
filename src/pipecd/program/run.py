# SPDX-License-Identifier: Apache-2.0
"""Runs a program without a shell: streams its output by line, or captures it as bytes."""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipecd.model.errors import Unavailable
from pipecd.program import die_with_parent, group, limits, output

# Earlier output is only passed to `on_line`; the last part tells why a program failed.
_OUTPUT_LIMIT = 1024 * 1024
# A daemon that the program started may keep the pipe open, so waiting for its output has a limit.
_DRAIN_SECONDS = 1.0
_READ_SIZE = 256 * 1024

CAPTURE_LIMIT = 256 * 1024 * 1024
"""The most that a program may print when its output is captured."""


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
    stop: signal.Signals = signal.SIGTERM,
    outlives_us: bool = False,
) -> Finished:
    """Runs a program to its exit; cancelling or killing the caller ends the process group.

    A cancelled program gets `stop`, and SIGKILL after `grace` seconds. If it `outlives_us`, it runs
    to its exit also when the caller is killed.

    `env` is the whole environment, as for `subprocess`; without it the program inherits ours.
    Standard output and standard error are merged and decoded as UTF-8.
    """
    lines = output.Lines(on_line, keep=_OUTPUT_LIMIT)
    async with output.pipe() as (reader, writing, read_end):
        program = await die_with_parent.start(
            argv,
            cwd=cwd,
            env=env,
            output=writing.fileno(),
            output_reader=read_end if outlives_us else None,
        )
        writing.close()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(lines.read(reader))
                code = await program.wait()
                await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)
                reading.cancel()
        except BaseException:
            await program.end(grace=grace, stop=stop)
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
    memory: int | None = None,
    output_limit: int = CAPTURE_LIMIT,
) -> Captured:
    """Runs a program and returns its output; stops it after `at_most` seconds.

    A program whose group needs more than `memory` bytes or prints more than `output_limit` is
    killed, and LimitExceeded is raised.
    """
    pipe = asyncio.subprocess.PIPE
    process = await group.start(argv, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    watch = None
    if memory is not None:
        watch = asyncio.create_task(limits.kill_when_larger(process.pid, memory))
    try:
        async with asyncio.timeout(at_most):
            stdout, stderr = await _communicate(process, stdin, output_limit)
    except TimeoutError as e:
        await _end(process, grace=1)
        raise Unavailable(f"{argv[0]} did not finish within {at_most:g}s") from e
    except _OutputExceeded as e:
        await _end(process, grace=0)
        raise limits.LimitExceeded(
            f"{Path(argv[0]).name} exceeds {limits.output_text(output_limit)}"
        ) from e
    except BaseException:
        await _end(process, grace=1)
        raise
    finally:
        if watch is not None:
            watch.cancel()
    if memory is not None and watch is not None and watch.done() and not watch.cancelled():
        raise limits.LimitExceeded(
            f"{Path(argv[0]).name} needs more than {limits.memory_text(memory)}"
        )
    return Captured(await process.wait(), stdout, stderr)


class _OutputExceeded(Exception):
    """A program printed more than it may."""


async def _communicate(
    process: asyncio.subprocess.Process, stdin: bytes, limit: int
) -> tuple[bytes, bytes]:
    """Writes the input, and returns output and errors when the program has exited."""
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    feeding = asyncio.ensure_future(_feed(process.stdin, stdin))
    output = asyncio.ensure_future(_read(process.stdout, limit))
    errors = asyncio.ensure_future(_read(process.stderr, limit))
    try:
        _, stdout, stderr = await asyncio.gather(feeding, output, errors)
    except BaseException:
        for task in (feeding, output, errors):
            task.cancel()
        await asyncio.gather(feeding, output, errors, return_exceptions=True)
        raise
    await process.wait()
    return stdout, stderr


async def _end(process: asyncio.subprocess.Process, *, grace: float) -> None:
    """Ends a program and reads the rest of its output, because a full pipe would stay open."""
    await group.end(process, grace=grace)
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            for reader in (process.stdout, process.stderr):
                while reader is not None and await reader.read(_READ_SIZE):
                    pass


async def _feed(writer: asyncio.StreamWriter, content: bytes) -> None:
    # A program need not read its input.
    with suppress(BrokenPipeError, ConnectionResetError):
        writer.write(content)
        await writer.drain()
    writer.close()


async def _read(reader: asyncio.StreamReader, limit: int) -> bytes:
    parts, size = list[bytes](), 0
    while part := await reader.read(_READ_SIZE):
        size += len(part)
        if size > limit:
            raise _OutputExceeded
        parts.append(part)
    return b"".join(parts)
