# SPDX-License-Identifier: Apache-2.0
"""Run one program well: no shell, its output line by line, nothing left behind when stopped."""

import asyncio
import codecs
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipecd.program import leash

_CHUNK = 64 * 1024
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
    lines = _Lines(on_line)
    async with _pipe() as (reader, writing):
        program = await leash.start(argv, cwd=cwd, env=env, output=writing.fileno())
        writing.close()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(_read(reader, lines))
                code = await program.wait()
                await asyncio.wait({reading}, timeout=_LINGER)
                reading.cancel()
        except BaseException:
            await program.end(grace=grace)
            raise
    lines.finish()
    return Finished(code, lines.last, lines.text())


@asynccontextmanager
async def _pipe() -> AsyncGenerator[tuple[asyncio.StreamReader, IO[bytes]]]:
    """A pipe of our own, because asyncio's wait() would wait for whoever holds its pipe."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reading, os.fdopen(write_end, "wb") as writing:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), reading
        )
        try:
            yield reader, writing
        finally:
            transport.close()


async def _read(reader: asyncio.StreamReader, lines: "_Lines") -> None:
    while chunk := await reader.read(_CHUNK):
        lines.feed(chunk)


class _Lines:
    """Cuts a stream of bytes into lines and keeps the end of it."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._kept: deque[str] = deque()
        self._size = 0
        self.last = ""

    def feed(self, chunk: bytes) -> None:
        *whole, self._partial = (self._partial + self._decoder.decode(chunk)).split("\n")
        for line in whole:
            self._line(line)
        while len(self._partial) > _CHUNK:
            piece, self._partial = self._partial[:_CHUNK], self._partial[_CHUNK:]
            self._line(piece)

    def finish(self) -> None:
        rest = self._partial + self._decoder.decode(b"", final=True)
        if rest:
            self._line(rest)

    def text(self) -> str:
        return "\n".join(self._kept)

    def _line(self, line: str) -> None:
        line = line.removesuffix("\r")
        if line.strip():
            self.last = line
        self._kept.append(line)
        self._size += len(line) + 1
        while self._size > _KEPT and len(self._kept) > 1:
            self._size -= len(self._kept.popleft()) + 1
        if self._on_line is not None:
            self._on_line(line)
