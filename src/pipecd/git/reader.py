# SPDX-License-Identifier: Apache-2.0
"""A git program that stays and answers questions about objects, so that each costs no new one."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipecd.model.errors import PipecdError, Unavailable
from pipecd.program import group

# Nobody asks for a while, and the program ends.
_IDLE_SECONDS = 30.0
_ANSWER_SECONDS = 120.0
# What a program says on its way out.
_KEPT_MESSAGE = 4096


@dataclass(frozen=True)
class Told:
    """One answer: the line that git wrote, and the content if there was one."""

    words: tuple[bytes, ...]
    content: bytes = b""


class Reader:
    """`git cat-file` in one of its batch modes, started when needed and ended when idle."""

    def __init__(
        self, directory: Path, arguments: Iterable[str], variables: Callable[[], Mapping[str, str]]
    ) -> None:
        self._directory, self._arguments = directory, tuple(arguments)
        self._variables = variables
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, names: Iterable[bytes]) -> list[Told]:
        """The answer to each name, in their order; no name may contain a line break."""
        asked = list(names)
        if not asked:
            return []
        async with self._lock:
            process = await self._started()
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    told = await self._converse(process, asked)
            except (EOFError, OSError, ValueError, TimeoutError) as e:
                raise await self._failed(process) from e
            except BaseException:
                # The rest of the answers would be taken for those to the next question.
                await self._end()
                raise
            self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._rest)
            return told

    async def close(self) -> None:
        """Ends the program; the next question starts another one."""
        async with self._lock:
            await self._end()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._idle is not None:
            self._idle.cancel()
        if self._process is None or self._process.returncode is not None:
            self._process = await self._start()
        return self._process

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await group.start(
            ["git", "cat-file", *self._arguments],
            cwd=self._directory,
            env=self._variables(),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )

    async def _converse(
        self, process: asyncio.subprocess.Process, names: list[bytes]
    ) -> list[Told]:
        if process.stdin is None or process.stdout is None:
            raise EOFError
        # Not waited for: git does not read on before its answers are read.
        process.stdin.write(b"".join(name + b"\n" for name in names))
        with_content = "--batch" in self._arguments
        return [await _answer(process.stdout, with_content) for _ in names]

    async def _failed(self, process: asyncio.subprocess.Process) -> PipecdError:
        said = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                said = await process.stderr.read(_KEPT_MESSAGE) if process.stderr else b""
        await self._end()
        told = said.decode("utf-8", "replace").strip() or "it ended without a word"
        return Unavailable(f"git cannot read {self._directory}: {told}")

    def _rest(self) -> None:
        # Its input ends and so does the program; a question that comes now starts another one.
        if self._process is not None and not self._lock.locked() and self._process.stdin:
            self._process.stdin.close()
            self._process = None

    async def _end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._process is not None:
            process, self._process = self._process, None
            await group.end(process, grace=1)
            if process.stdout is not None:
                # Only its end closes the pipe, and the loop may be gone a moment later.
                await process.stdout.read()


async def _answer(reader: asyncio.StreamReader, with_content: bool) -> Told:
    words = tuple((await _line(reader)).split(b" "))
    if len(words) == 2 and words[0] in (b"symlink", b"dangling", b"loop", b"notdir"):
        # What a broken link names follows, as long as the second word says.
        return Told(words, (await reader.readexactly(int(words[1]) + 1))[:-1])
    if with_content and len(words) == 3 and words[2].isdigit():
        return Told(words, (await reader.readexactly(int(words[2]) + 1))[:-1])
    return Told(words)


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line[:-1]
