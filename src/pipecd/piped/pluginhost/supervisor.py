# SPDX-License-Identifier: Apache-2.0
"""Keeps the program of a plugin running: one life after another, with a pause between them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import grpc.aio
import structlog

from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.pluginhost.plugin import PluginDied
from pipecd.piped.pluginhost.process import Launch, Patience, PluginProgram
from pipecd.piped.pluginhost.remote import RemotePlugin

logger = structlog.get_logger()

_BACKOFF = Backoff(first=0.5, longest=60.0)
# Who has lived this long did not die of its settings.
_LONG_LIFE = 60.0
# A call may wait for a program that is being started again.
_BACK_WITHIN = 30.0
# The connection breaks a moment before the program is known to be over.
_NOTICED_WITHIN = 2.0


class PluginSupervisor:
    """Starts the program of a plugin again whenever it ends; calls go to the one that runs."""

    def __init__(self, launch: Launch, patience: Patience | None = None) -> None:
        self._launch, self._patience = launch, patience or Patience()
        self._first: asyncio.Future[PipecdError | None] = asyncio.get_running_loop().create_future()
        self._life = self._new_life()
        self.plugin = RemotePlugin(launch.name, self._connected)

    async def ready(self) -> None:
        """Waits for the first answer; raises what was wrong if there will be none."""
        if (error := await asyncio.shield(self._first)) is not None:
            raise error

    async def run(self) -> None:
        """Runs until cancelled; a program that never answered is not started again."""
        deaths = 0
        while True:
            began = time.monotonic()
            error = await self._live()
            if not self._first.done():
                self._first.set_result(error)
                return
            deaths = 1 if time.monotonic() - began > _LONG_LIFE else deaths + 1
            pause = _BACKOFF.after(deaths)
            logger.error("a plugin died", plugin=self._launch.name, how=str(error), again_in=pause)
            await asyncio.sleep(pause)
            self._life = self._new_life()

    async def _live(self) -> PipecdError:
        life = self._life
        try:
            await life.program.run(life)
        except PipecdError as e:
            life.died(f"could not be started: {e}")
            return e
        return life.death() if life.was_born else life.stillbirth()

    def _new_life(self) -> "_Life":
        program = PluginProgram(self._launch, self._patience)
        return _Life(self._launch.name, program, self._announce)

    def _announce(self) -> None:
        if not self._first.done():
            self._first.set_result(None)

    async def _connected(self) -> "_Life":
        """The program that runs; one that is on its way is waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_BACK_WITHIN):
                # A new life takes the place of the old one without telling anybody.
                while not self._life.is_alive:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if not self._life.is_alive:
            raise self._life.death()
        return self._life


class _Life:
    """The program that runs now, or ran last, and the way to it."""

    def __init__(self, name: str, program: PluginProgram, on_born: Callable[[], None]) -> None:
        self._name, self.program, self._on_born = name, program, on_born
        self._channel: grpc.aio.Channel | None = None
        self._how = ""
        self._over = asyncio.Event()

    @property
    def was_born(self) -> bool:
        """Whether it has ever answered."""
        return self._channel is not None

    @property
    def is_alive(self) -> bool:
        """Whether it can be called."""
        return self.was_born and not self._over.is_set()

    @property
    def channel(self) -> grpc.aio.Channel:
        """The way to it."""
        if self._channel is None:
            raise self.death()
        return self._channel

    def born(self, channel: grpc.aio.Channel) -> None:
        """It answers."""
        self._channel = channel
        self._on_born()

    def died(self, how: str) -> None:
        """It will not answer any more."""
        self._how = how
        self._over.set()

    async def lost(self, error: PipecdError) -> PipecdError:
        """A broken connection is a death, if the program turns out to be over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTICED_WITHIN):
                await self._over.wait()
        return self.death() if self._over.is_set() else error

    def death(self) -> PluginDied:
        """The end as those see it who were waiting for an answer."""
        how = self._how or "is being started and does not answer yet"
        return PluginDied(self._name, how, output=self.program.last_output)

    def stillbirth(self) -> UserMistake:
        """The end before the first answer, which is a matter of settings."""
        last = "\n".join(self.program.last_output)
        said = f"; its last output was:\n{last}" if last else " and wrote nothing"
        return UserMistake(f"plugin {self._name} {self._how} instead of starting{said}")
