# SPDX-License-Identifier: Apache-2.0
"""One life of a plugin program: started, awaited, watched, and ended with piped."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc.aio
import structlog

from pipecd.config.piped.plugin import PluginSpec
from pipecd.model.errors import UserMistake
from pipecd.program import die_with_parent, output
from pipecd.program.port import free_port
from pipecd.sdk.serving.launch import answers, loopback_channel, start_arguments
from pipecd.wire.server import refuse_busy

logger = structlog.get_logger()

_KEPT_BYTES, _LAST_LINES, _LONGEST_LINE = 16 << 10, 10, 500
# More than this says nothing new, and a plugin must not fill the disk with the log of piped.
_LINES_A_SECOND = 500
_CHUNK, _BREATH = 64 << 10, 0.02
_DRAIN, _LAST_WORDS = 1.0, 0.2
# What a dead plugin has left running gets no time to finish.
_GRACE_OF_THE_DEAD = 1.0


@dataclass(frozen=True)
class Patience:
    """How long a plugin program may take, in seconds: to begin, to answer, to end."""

    ready: float = 60.0
    look_every: float = 10.0
    # An author's call that blocks its program is no reason to take the program away at once.
    hung: float = 120.0
    grace: float = 30.0


class Relatives(Protocol):
    """Who wants to know of a program's life, as soon as there is something to know."""

    def born(self, channel: grpc.aio.Channel) -> None: ...

    def died(self, how: str) -> None: ...


@dataclass(frozen=True)
class Launch:
    """What to start: a command, to which the arguments of upstream are added."""

    spec: PluginSpec
    command: Sequence[str]
    service_port: int
    hide: Callable[[str], str] = str
    """Takes the secrets out of what the program writes."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """What it finds in its environment, that of piped when not told."""

    @property
    def name(self) -> str:
        """The name of the plugin."""
        return self.spec.name

    def argv(self, port: int) -> list[str]:
        """The command line, with the port that the plugin is to listen on."""
        spec = self.spec.model_copy(update={"port": port})
        return [*self.command, *start_arguments(spec, service_port=self.service_port)]


class PluginProgram:
    """A plugin program from its start to its end."""

    def __init__(self, launch: Launch, patience: Patience) -> None:
        self._launch, self._patience = launch, patience
        self._echo = _Echo(launch.name, launch.hide)
        self._lines = output.Lines(self._echo, keep=_KEPT_BYTES)

    @property
    def last_output(self) -> tuple[str, ...]:
        """The last lines it has written."""
        lines = [line for line in self._lines.text().split("\n") if line.strip()]
        return tuple(self._launch.hide(line)[:_LONGEST_LINE] for line in lines[-_LAST_LINES:])

    async def run(self, relatives: Relatives) -> None:
        """Runs the program to its end, which is a death unless it was cancelled."""
        port = await self._port()
        async with output.pipe() as (reader, writing):
            program = await die_with_parent.start(
                self._launch.argv(port),
                cwd=Path("/"),
                env=self._launch.env,
                output=writing.fileno(),
            )
            writing.close()
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._listen(reader))
                grace = self._patience.grace
                try:
                    how = await self._until_over(program, self._watch(port, relatives))
                    # Its last words are part of the reason.
                    await asyncio.wait({reading}, timeout=_LAST_WORDS)
                    relatives.died(how)
                    grace = _GRACE_OF_THE_DEAD
                finally:
                    await program.end(grace=grace)
                    await asyncio.wait({reading}, timeout=_DRAIN)
                    reading.cancel()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Reads what the program writes; who writes too much is made to wait."""
        while chunk := await reader.read(_CHUNK):
            self._lines.feed(chunk)
            if self._echo.is_too_much:
                await asyncio.sleep(_BREATH)

    async def _port(self) -> int:
        """The port of the configuration if it is free, else any free one."""
        port = self._launch.spec.port
        if not port:
            return free_port()
        try:
            await refuse_busy("localhost", port)
        except UserMistake as e:
            raise UserMistake(
                f"plugin {self._launch.name} cannot start: {e.message}",
                hint="set plugins[].port to another one, or leave it out to get any free port",
            ) from e
        return port

    async def _until_over(
        self, program: die_with_parent.ChildProcess, watch: Coroutine[Any, Any, str]
    ) -> str:
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(program.wait())
            watched = tasks.create_task(watch)
            await asyncio.wait({ended, watched}, return_when=asyncio.FIRST_COMPLETED)
            how = _ending(ended.result()) if ended.done() else watched.result()
            ended.cancel()
            watched.cancel()
        return how

    async def _watch(self, port: int, relatives: Relatives) -> str:
        """Waits for the first answer and looks after the program; says what is wrong with it."""
        within = self._patience.ready
        async with loopback_channel(port) as channel:
            try:
                async with asyncio.timeout(within):
                    # A server says by itself that it is there, and not that it is ready.
                    while not await answers(channel, within):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            except TimeoutError:
                return f"did not answer on port {port} within {within:g}s"
            logger.info("plugin started", plugin=self._launch.name, port=port)
            relatives.born(channel)
            last = time.monotonic()
            while (silent := time.monotonic() - last) < self._patience.hung:
                await asyncio.sleep(self._patience.look_every)
                if await answers(channel, self._patience.look_every):
                    last = time.monotonic()
                else:
                    logger.warning("a plugin does not answer", plugin=self._launch.name)
            return f"stopped answering for {silent:.0f}s and was ended"


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


class _Echo:
    """Repeats the lines of a plugin in the log of piped, as many as anyone can read."""

    def __init__(self, plugin: str, hide: Callable[[str], str]) -> None:
        self._plugin, self._hide = plugin, hide
        self._second: int = 0
        self._count: int = 0

    @property
    def is_too_much(self) -> bool:
        """Whether nobody could read any more of it."""
        return self._count > _LINES_A_SECOND

    def __call__(self, line: str) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self.is_too_much:
                left_out = self._count - _LINES_A_SECOND
                logger.warning("a plugin writes too much", plugin=self._plugin, left_out=left_out)
            self._second, self._count = second, 0
        self._count += 1
        if not self.is_too_much:
            sys.stderr.write(f"{self._hide(line)}\n")
