# SPDX-License-Identifier: Apache-2.0
"""Reads the output of a program line by line and keeps the last part of it."""

import asyncio
import codecs
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import IO

_CHUNK = 64 * 1024


@asynccontextmanager
async def pipe() -> AsyncGenerator[tuple[asyncio.StreamReader, IO[bytes], int]]:
    """Opens a pipe; asyncio's own one makes wait() wait for every process that holds it.

    Yields its reader, the end to write to, and the descriptor that the reader reads from.
    """
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reading, os.fdopen(write_end, "wb") as writing:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), reading
        )
        try:
            yield reader, writing, read_end
        finally:
            transport.close()


class Lines:
    """Splits a stream of bytes into lines and keeps the last `keep` characters."""

    def __init__(self, on_line: Callable[[str], None] | None, *, keep: int) -> None:
        self._on_line, self._keep = on_line, keep
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._kept: deque[str] = deque()
        self._size = 0
        self.last = ""

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Reads until the other end is closed."""
        while chunk := await reader.read(_CHUNK):
            self.feed(chunk)

    def feed(self, chunk: bytes) -> None:
        """Adds bytes, which may end within a line or a character."""
        *whole, self._partial = (self._partial + self._decoder.decode(chunk)).split("\n")
        for line in whole:
            self._line(line)
        while len(self._partial) > _CHUNK:
            piece, self._partial = self._partial[:_CHUNK], self._partial[_CHUNK:]
            self._line(piece)

    def finish(self) -> None:
        """Adds the rest as the last line."""
        rest = self._partial + self._decoder.decode(b"", final=True)
        if rest:
            self._line(rest)

    def text(self) -> str:
        """Returns the last part of the output."""
        return "\n".join(self._kept)

    def _line(self, line: str) -> None:
        line = line.removesuffix("\r")
        if line.strip():
            self.last = line
        self._kept.append(line)
        self._size += len(line) + 1
        while self._size > self._keep and len(self._kept) > 1:
            self._size -= len(self._kept.popleft()) + 1
        if self._on_line is not None:
            self._on_line(line)
