# SPDX-License-Identifier: Apache-2.0
"""Plugins in processes of their own: started, probed, restarted with backoff, ended with piped."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import structlog

from pipecd.config.piped import PluginSpec
from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.pluginhost.plugin import PluginDied
from pipecd.program import die_with_parent, output
from pipecd.program.atomic_write import write_private
from pipecd.program.port import free_port
from pipecd.sdk.serving import (
    SOCKET_VARIABLE,
    entry_json,
    is_serving,
    local_channel,
    start_arguments,
)
from pipecd.wire.local_callers import is_own_listener
from pipecd.wire.server import UNIX, check_port_free

logger = structlog.get_logger()

_BACKOFF = Backoff(first=0.5, longest=60.0)
# A process that ran this long did not fail because of its configuration.
_STABLE_AFTER = 60.0
# How long a call waits for a process that is being restarted.
_RESTARTED_WITHIN = 30.0
# The connection breaks a moment before the exit of the process is noticed.
_EXIT_NOTICED_WITHIN = 2.0
_OUTPUT_TAIL_BYTES, _OUTPUT_TAIL_LINES, _LONGEST_LINE = 16 << 10, 10, 500
# Above this rate lines are dropped, so that a plugin cannot fill the disk with the log of piped.
_MAX_LINES_PER_SECOND = 500
_CHUNK, _THROTTLE = 64 << 10, 0.02
_DRAIN_OUTPUT, _LAST_OUTPUT = 1.0, 0.2
# The grace period of children that a dead plugin has left behind.
_ORPHAN_GRACE = 1.0
# How long a probe waits before it looks again whether the plugin listens on its socket.
_PROBE_SECONDS = 1.0


@dataclass(frozen=True)
class PluginTimeouts:
    """How long a plugin process may take to start, to answer a probe and to end, in seconds."""

    startup: float = 60.0
    probe_interval: float = 10.0
    # A call that blocks the plugin for a while is no reason to restart it at once.
    unresponsive: float = 120.0
    grace: float = 30.0


@dataclass(frozen=True)
class PluginFiles:
    """The files of a plugin in a directory that other users cannot enter.

    A program that is known to use our SDK reads its entry from `config` and listens on `socket`.
    Any other is started with upstream's arguments, and announces our SDK by listening on `socket`
    instead of its port.
    """

    socket: Path
    config: Path | None = None


@dataclass(frozen=True)
class PluginLaunch:
    """What to start: a command, to which arguments are added, and the address of piped for it."""

    spec: PluginSpec
    command: Sequence[str]
    piped: str
    files: PluginFiles | None = None
    hide: Callable[[str], str] = str
    """Masks secrets in the output of the process."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """The environment of the process; that of piped if None."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def uses_our_sdk(self) -> bool:
        """Whether the program is known to read its entry from a file and to need no port."""
        return self.files is not None and self.files.config is not None

    def write_files(self) -> None:
        """Writes the entry for a new process, and removes the socket of the last one."""
        if self.files is None:
            return
        self.files.socket.unlink(missing_ok=True)
        if self.files.config is not None:
            write_private(self.files.config, entry_json(self.spec).encode())

    def argv(self, port: int) -> list[str]:
        """Returns the command line, with the port that the plugin is to listen on if it needs one.

        Other users can read it: only upstream's programs, which know no other way, get their entry
        by it.
        """
        if self.files is not None and self.files.config is not None:
            address = ("--piped-plugin-service", self.piped)
            return [*self.command, "start", *address, "--config-file", str(self.files.config)]
        spec = self.spec.model_copy(update={"port": port})
        return [*self.command, *start_arguments(spec, piped=self.piped)]

    def variables(self) -> dict[str, str]:
        """Returns the environment of the process."""
        socket = {SOCKET_VARIABLE: str(self.files.socket)} if self.files is not None else {}
        return {**(os.environ if self.env is None else self.env), **socket}

    def address(self, port: int) -> str:
        """Returns where the process listens: on its socket once that exists, else on the port."""
        if self.files is not None and (self.uses_our_sdk or self.files.socket.exists()):
            return f"{UNIX}{self.files.socket}"
        return f"localhost:{port}"


class PluginInstance:
    """One process of a plugin, from its start to its exit, and the connection to it."""

    def __init__(
        self, launch: PluginLaunch, timeouts: PluginTimeouts, on_ready: Callable[[], None]
    ) -> None:
        self._launch, self._timeouts, self._on_ready = launch, timeouts, on_ready
        self._output_log = _OutputLog(launch.name, launch.hide)
        self._lines = output.Lines(self._output_log, keep=_OUTPUT_TAIL_BYTES)
        self._channel: grpc.aio.Channel | None = None
        self._failure = ""
        self._exited = asyncio.Event()

    @property
    def was_ready(self) -> bool:
        """Whether it has ever answered a probe."""
        return self._channel is not None

    @property
    def is_ready(self) -> bool:
        """Whether it can be called."""
        return self.was_ready and not self._exited.is_set()

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise self.died()
        return self._channel

    @property
    def last_output(self) -> tuple[str, ...]:
        """The last lines that it has written, with secrets masked."""
        lines = [line for line in self._lines.text().split("\n") if line.strip()]
        tail = lines[-_OUTPUT_TAIL_LINES:]
        return tuple(self._launch.hide(line)[:_LONGEST_LINE] for line in tail)

    async def run(self) -> PipecdError:
        """Runs the process to its exit and returns what it means."""
        try:
            await self._run()
        except PipecdError as e:
            self._exit(f"could not be started: {e}")
            return e
        return self.died() if self.was_ready else self.startup_failure()

    def died(self) -> PluginDied:
        """Returns the error of a call to a process that exited."""
        failure = self._failure or "is being started and does not answer yet"
        return PluginDied(self._launch.name, failure, output=self.last_output)

    def startup_failure(self) -> UserMistake:
        """Returns the error of a process that exited before it was ready."""
        last = "\n".join(self.last_output)
        written = f"; its last output was:\n{last}" if last else " and wrote nothing"
        return UserMistake(
            f"plugin {self._launch.name} {self._failure} instead of starting{written}"
        )

    async def connection_lost(self, error: PipecdError) -> PipecdError:
        """Returns the exit of the process as the cause if it exits, else the error itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_NOTICED_WITHIN):
                await self._exited.wait()
        return self.died() if self._exited.is_set() else error

    def _exit(self, failure: str) -> None:
        self._failure = failure
        self._exited.set()

    async def _run(self) -> None:
        port = self._launch.spec.port
        if self._launch.uses_our_sdk:
            port = 0
        elif port:
            try:
                await check_port_free("localhost", port)
            except UserMistake as e:
                raise UserMistake(
                    f"plugin {self._launch.name} cannot start: {e.message}",
                    hint="set plugins[].port to another one, or leave it out to get any free port",
                ) from e
        else:
            port = free_port()
        await asyncio.to_thread(self._launch.write_files)
        async with output.pipe() as (reader, writing, _):
            process = await die_with_parent.start(
                self._launch.argv(port),
                cwd=Path("/"),
                env=self._launch.variables(),
                output=writing.fileno(),
            )
            writing.close()
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read_output(reader))
                grace = self._timeouts.grace
                try:
                    failure = await self._until_failed(process, port)
                    # The last lines are part of the reason.
                    await asyncio.wait({reading}, timeout=_LAST_OUTPUT)
                    self._exit(failure)
                    grace = _ORPHAN_GRACE
                finally:
                    await process.end(grace=grace)
                    await asyncio.wait({reading}, timeout=_DRAIN_OUTPUT)
                    reading.cancel()

    async def _read_output(self, reader: asyncio.StreamReader) -> None:
        """Reads what the process writes, and slows it down when it writes too much."""
        while chunk := await reader.read(_CHUNK):
            self._lines.feed(chunk)
            if self._output_log.is_throttled:
                await asyncio.sleep(_THROTTLE)

    async def _until_failed(self, process: die_with_parent.ChildProcess, port: int) -> str:
        """Returns how the process exited, or why it has to be ended."""
        async with asyncio.TaskGroup() as tasks:
            exited = tasks.create_task(process.wait())
            probing = tasks.create_task(self._probe(port))
            await asyncio.wait({exited, probing}, return_when=asyncio.FIRST_COMPLETED)
            failure = _describe_exit(exited.result()) if exited.done() else probing.result()
            exited.cancel()
            probing.cancel()
        return failure

    async def _probe(self, port: int) -> str:
        """Waits until the process is ready, then probes it; returns why it has to be ended."""
        startup, interval = self._timeouts.startup, self._timeouts.probe_interval
        async with AsyncExitStack() as opened:
            try:
                async with asyncio.timeout(startup):
                    channel, address = await self._until_serving(port, opened)
            except TimeoutError:
                where = f"port {port}" if port else "its socket"
                return f"did not answer on {where} within {startup:g}s"
            if not address.startswith(UNIX) and not await asyncio.to_thread(is_own_listener, port):
                return f"was not called, because port {port} belongs to a program of another user"
            logger.info("plugin started", plugin=self._launch.name, address=address)
            self._channel = channel
            self._on_ready()
            last = time.monotonic()
            while (silent := time.monotonic() - last) < self._timeouts.unresponsive:
                await asyncio.sleep(interval)
                if await is_serving(channel, interval):
                    last = time.monotonic()
                else:
                    logger.warning(
                        "plugin does not answer its health check", plugin=self._launch.name
                    )
            return f"stopped answering for {silent:.0f}s and was ended"

    async def _until_serving(
        self, port: int, opened: AsyncExitStack
    ) -> tuple[grpc.aio.Channel, str]:
        """Waits until the process answers, and returns the connection to it and its address."""
        channels: dict[str, grpc.aio.Channel] = {}
        while True:
            address = await asyncio.to_thread(self._launch.address, port)
            if address not in channels:
                channel = await opened.enter_async_context(local_channel(address))
                channels[address] = channel
            if await is_serving(channels[address], _PROBE_SECONDS):
                return channels[address], address
            # A plugin says itself that it listens, but not that it is ready.
            await asyncio.sleep(0.1)


class PluginSupervisor:
    """Restarts the process of a plugin whenever it exits."""

    def __init__(self, launch: PluginLaunch, timeouts: PluginTimeouts | None = None) -> None:
        self._launch, self._timeouts = launch, timeouts or PluginTimeouts()
        self._started: asyncio.Future[PipecdError | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._instance = self._new_instance()

    async def wait_until_ready(self) -> None:
        """Waits until the first process is ready; raises the error if it fails to start."""
        if (error := await asyncio.shield(self._started)) is not None:
            raise error

    async def run(self) -> None:
        """Runs until cancelled; a process that was never ready is not restarted."""
        failures = 0
        while True:
            started_at = time.monotonic()
            error = await self._instance.run()
            if not self._started.done():
                self._started.set_result(error)
                return
            failures = 1 if time.monotonic() - started_at > _STABLE_AFTER else failures + 1
            pause = _BACKOFF.after(failures)
            logger.error(
                "plugin died, restarting it",
                plugin=self._launch.name,
                error=str(error),
                retry_in=pause,
            )
            await asyncio.sleep(pause)
            self._instance = self._new_instance()

    async def connect(self) -> PluginInstance:
        """Returns the running process; waits for one that is being restarted."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESTARTED_WITHIN):
                # The instance is replaced without a notification.
                while not self._instance.is_ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if not self._instance.is_ready:
            raise self._instance.died()
        return self._instance

    def _new_instance(self) -> PluginInstance:
        return PluginInstance(self._launch, self._timeouts, self._ready)

    def _ready(self) -> None:
        if not self._started.done():
            self._started.set_result(None)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


class _OutputLog:
    """Copies the output of a plugin to the log of piped, up to a number of lines per second."""

    def __init__(self, plugin: str, hide: Callable[[str], str]) -> None:
        self._plugin, self._hide = plugin, hide
        self._second: int = 0
        self._count: int = 0

    @property
    def is_throttled(self) -> bool:
        return self._count > _MAX_LINES_PER_SECOND

    def __call__(self, line: str) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self.is_throttled:
                dropped = self._count - _MAX_LINES_PER_SECOND
                logger.warning(
                    "plugin writes too much, lines dropped", plugin=self._plugin, dropped=dropped
                )
            self._second, self._count = second, 0
        self._count += 1
        if not self.is_throttled:
            sys.stderr.write(f"{self._hide(line)}\n")
