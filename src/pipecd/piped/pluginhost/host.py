# SPDX-License-Identifier: Apache-2.0
"""Starts the plugins of a piped and stops them with it."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from pipecd.config.piped import BUILTIN, PluginSpec
from pipecd.config.unusable import Unusable
from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.piped.pluginhost.callbacks import Callbacks, LiveStateChanges
from pipecd.piped.pluginhost.local import LocalPlugin, builtin_plugins, third_party_plugins
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.process import (
    PluginFiles,
    PluginLaunch,
    PluginSupervisor,
    PluginTimeouts,
)
from pipecd.piped.pluginhost.registry import PluginRegistry, RegisteredPlugin, StartFailure
from pipecd.piped.pluginhost.remote import RemotePlugin
from pipecd.piped.pluginhost.sockets import socket_directory
from pipecd.proto.plugin import host_pb2, livestatechanges_pb2
from pipecd.proto.plugin.deployment_pb2 import FetchDefinedStagesRequest
from pipecd.sdk.deployment import PluginEntry
from pipecd.sdk.host import program_variables
from pipecd.sdk.host_client import RENDERING_VARIABLE
from pipecd.sdk.plugin import DeploymentPlugin, StagePlugin
from pipecd.sdk.process import entry_of
from pipecd.sdk.serving import PluginServer, rpc_handlers
from pipecd.wire.oci import PLUGIN_LAYER
from pipecd.wire.program_store import Download, ProgramStore
from pipecd.wire.server import UNIX, grpc_server

logger = structlog.get_logger()

PLUGIN_SERVICE = host_pb2.DESCRIPTOR.services_by_name["PluginService"]
LIVE_STATE_CHANGES = livestatechanges_pb2.DESCRIPTOR.services_by_name["LiveStateChanges"]
PLUGINS_DIRECTORY = Path.home() / ".piped" / "plugins"
PLUGIN_DIGESTS = "plugin-digests.json"
"""The file of the workspace with the digests of downloaded plugins."""
# How an installed third-party plugin is started; imports do not depend on the working directory.
_INSTALLED = ("-P", "-c", "from pipecd.sdk.process import serve_installed; serve_installed()")

# After the first, second, … failure to start.
_RETRY = Backoff(first=1.0, longest=60.0)
# A plugin that ran this long has overcome its failures.
_STABLE_AFTER = 60.0
# How long piped waits for plugins before it runs without those that are still starting.
_STARTED_WITHIN = 20.0

PluginFactory = Callable[[], StagePlugin]
Start = Callable[[AsyncExitStack], Awaitable[RegisteredPlugin | None]]
"""Starts a plugin for as long as the stack is open; None if it needs a configuration to run."""


class PluginDownloads:
    """The directory of downloaded plugin programs."""

    def __init__(
        self,
        directory: Path,
        *,
        redownload: bool = False,
        digests: Path | None = None,
        require_checksum: bool = False,
    ) -> None:
        self._programs = ProgramStore(
            directory, redownload=redownload, digests=digests, require_checksum=require_checksum
        )

    async def program(self, spec: PluginSpec) -> Path:
        """Returns the program of a plugin, downloaded first if it is missing."""
        return await self._programs.program(
            Download(
                kind="plugin",
                name=spec.name,
                url=spec.url,
                checksum=spec.checksum,
                layer_type=PLUGIN_LAYER,
                url_setting="plugins[].url",
                checksum_setting="plugins[].checksum",
            )
        )


class PluginHost:
    """Runs built-in plugins in this process, the others in processes of their own.

    A plugin that cannot start does not keep the others from running; it is tried again and again.
    """

    @staticmethod
    @asynccontextmanager
    async def start(
        plugins: Sequence[PluginSpec],
        *,
        callbacks: Callbacks,
        unusable: Sequence[Unusable] = (),
        workspace: Path | None = None,
        service_port: int | None = None,
        builtins: Mapping[str, PluginFactory] | None = None,
        downloads: PluginDownloads | None = None,
        timeouts: PluginTimeouts | None = None,
    ) -> AsyncGenerator[PluginRegistry, None]:
        """Runs the configured plugins, and built-in stage plugins, while the block runs.

        Plugin processes call piped through a Unix socket, in the workspace where possible. With a
        `service_port` they call it on that port of loopback; 0 takes any free one.
        """
        installed = builtin_plugins() if builtins is None else builtins
        third_party = third_party_plugins() if builtins is None else frozenset[str]()
        external = {spec.name for spec in plugins if _is_external(spec, third_party)}
        configured = {
            *(spec.name for spec in plugins),
            *(each.plugin for each in unusable if not each.target),
        }
        registry = PluginRegistry(
            failures=[StartFailure(each.plugin, each.reason, each.target) for each in unusable],
            order=[*(spec.name for spec in plugins), *sorted(installed.keys() - third_party)],
        )
        for failure in registry.failures:
            logger.error(
                "configuration cannot be used, the rest of piped runs without it",
                plugin=failure.plugin,
                deploy_target=failure.target,
                error=failure.reason,
            )
        async with AsyncExitStack() as stack:
            processes: PluginProcesses | None = None
            if external:
                sockets = stack.enter_context(socket_directory(workspace))
                piped = await _serve_callbacks(stack, callbacks, sockets, service_port)
                downloads = downloads or PluginDownloads(PLUGINS_DIRECTORY)
                processes = PluginProcesses(downloads, callbacks, sockets, piped, timeouts)
            starts: dict[str, Start] = {}
            for number, spec in enumerate(plugins):
                if processes is not None and spec.name in external:
                    starts[spec.name] = partial(processes.start, spec, number)
                else:
                    starts[spec.name] = partial(_start_builtin, spec, installed, callbacks)
            for name in sorted(installed.keys() - third_party - configured):
                starts[name] = partial(_start_stage_plugin, name, installed[name], callbacks)
            async with _running(starts, registry):
                logger.info("plugins are ready", plugins=registry.names)
                yield registry


async def find_unstartable(
    plugins: Sequence[PluginSpec], downloads: PluginDownloads
) -> tuple[StartFailure, ...]:
    """Returns the plugins that could not start, without starting any: another piped may run them.

    Built-in plugins are imported, and the programs of others downloaded and verified.
    """
    installed, third_party = builtin_plugins(), third_party_plugins()
    failures: list[StartFailure] = []
    for spec in plugins:
        try:
            if not _is_external(spec, third_party):
                _create_builtin(spec, installed)
            elif spec.url:
                await downloads.program(spec)
        except (PipecdError, ImportError) as e:
            is_temporary = isinstance(e, Unavailable)
            failures.append(StartFailure(spec.name, str(e), is_temporary=is_temporary))
    return tuple(failures)


def _is_external(spec: PluginSpec, third_party: Collection[str]) -> bool:
    """Whether a plugin runs in a process of its own.

    `builtin://` brings any installed plugin into this process.
    """
    return not spec.builtin or (not spec.url and spec.name in third_party)


async def _start_builtin(
    spec: PluginSpec,
    installed: Mapping[str, PluginFactory],
    callbacks: Callbacks,
    lifetime: AsyncExitStack,
) -> RegisteredPlugin:
    server = PluginServer(_create_builtin(spec, installed), entry_of(spec), callbacks)
    await server.prepare(lifetime)
    return await _register(LocalPlugin(server), is_configured=True)


def _create_builtin(spec: PluginSpec, installed: Mapping[str, PluginFactory]) -> StagePlugin:
    if spec.builtin not in installed:
        names = ", ".join(sorted(installed))
        raise UserMistake(
            f"there is no built-in plugin {spec.builtin} yet",
            hint=f"use one of {names}, or give plugin {spec.name} a url",
        )
    return installed[spec.builtin]()


async def _start_stage_plugin(
    name: str, create: PluginFactory, callbacks: Callbacks, lifetime: AsyncExitStack
) -> RegisteredPlugin | None:
    """Stage plugins need no configuration: like in v0, their stages always exist."""
    try:
        builtin = create()
    except ImportError as e:
        logger.info("plugin is not installed completely", plugin=name, error=str(e))
        return None
    if isinstance(builtin, DeploymentPlugin):
        return None
    server = PluginServer(builtin, PluginEntry(name), callbacks)
    await server.prepare(lifetime)
    return await _register(LocalPlugin(server), is_configured=False)


@dataclass(frozen=True)
class PluginProcesses:
    """Starts plugins in processes of their own."""

    downloads: PluginDownloads
    callbacks: Callbacks
    sockets: Path
    piped: str
    """The address of piped for them."""
    timeouts: PluginTimeouts | None

    async def start(
        self, spec: PluginSpec, number: int, lifetime: AsyncExitStack
    ) -> RegisteredPlugin:
        """Starts the process, which ends with `lifetime`, and waits until it answers."""
        supervisor = PluginSupervisor(await self._prepare(spec, number), self.timeouts)
        tasks = await lifetime.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(supervisor.run(), name=f"process of plugin {spec.name}")
        await supervisor.wait_until_ready()
        return await _register(RemotePlugin(spec.name, supervisor.connect), is_configured=True)

    async def _prepare(self, spec: PluginSpec, number: int) -> PluginLaunch:
        """Downloads the program of a plugin that is not part of this installation."""
        hide = self.callbacks.masks.all.hide
        env = program_variables(self.callbacks.git_variables) | {
            RENDERING_VARIABLE: self.callbacks.rendering.model_dump_json(by_alias=True)
        }
        files = PluginFiles(self.sockets / f"plugin-{number}.sock")
        if spec.url:
            # The program may be one of upstream's.
            command = (str(await self.downloads.program(spec)),)
            return PluginLaunch(spec, command, self.piped, files, hide, env)
        # A plugin of an entry point is started by our SDK. Its entry has a URL, as upstream's have.
        command = (sys.executable, *_INSTALLED, spec.name)
        spec = spec.model_copy(update={"url": f"{BUILTIN}://{spec.name}"})
        files = replace(files, config=self.sockets / f"plugin-{number}.json")
        return PluginLaunch(spec, command, self.piped, files, hide, env)


@asynccontextmanager
async def _running(
    starts: Mapping[str, Start], registry: PluginRegistry
) -> AsyncGenerator[None, None]:
    """Runs the plugins while the block runs, which begins when each has started, or failed to."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        runs = [PluginRun(name, start, registry) for name, start in starts.items()]
        running = [tasks.create_task(each.run(), name=f"plugin {each.name}") for each in runs]
        with suppress(TimeoutError):
            async with asyncio.timeout(_STARTED_WITHIN):
                for each in runs:
                    await each.tried.wait()
        for each in runs:
            if not each.tried.is_set():
                late = StartFailure(each.name, "it is being started", is_temporary=True)
                registry.failed(late)
        try:
            yield
        except Exception as e:  # noqa: BLE001 - raised again below, outside of the group
            failure = e
        finally:
            for task in running:
                task.cancel()
    if failure is not None:
        raise failure


class PluginRun:
    """Runs one plugin, and tries again and again if it cannot start."""

    def __init__(self, name: str, start: Start, registry: PluginRegistry) -> None:
        self.name, self._start, self._registry = name, start, registry
        self.tried = asyncio.Event()
        """Set when the first attempt to start it has ended."""
        self._started_at: float | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        failures = 0
        while True:
            self._started_at = None
            error = await self._run()
            failures = 1 if self._has_been_stable() else failures + 1
            pause = _RETRY.after(failures)
            logger.error(
                "plugin cannot start, retrying", plugin=self.name, error=str(error), retry_in=pause
            )
            is_temporary = isinstance(error, Unavailable)
            self._registry.failed(StartFailure(self.name, str(error), is_temporary=is_temporary))
            self.tried.set()
            await asyncio.sleep(pause)

    async def _run(self) -> PipecdError:
        """Runs until cancelled; returns why the plugin cannot start, or has ended by a fault."""
        try:
            async with AsyncExitStack() as lifetime:
                registered = await self._start(lifetime)
                if registered is not None:
                    self._registry.started(registered)
                self._started_at = time.monotonic()
                self.tried.set()
                # Nothing sets it: the plugin runs until this task is cancelled.
                await asyncio.Event().wait()
        except ExceptionGroup as group:
            # The group of the task of a plugin process wraps its error.
            return self._expected(group.exceptions[0])
        except Exception as e:  # noqa: BLE001 - becomes the reason why it does not run
            return self._expected(e)
        raise RuntimeError("a plugin has started and ended by itself")

    def _has_been_stable(self) -> bool:
        """Whether it has run so long that its next failure is a new one."""
        started_at = self._started_at
        return started_at is not None and time.monotonic() - started_at > _STABLE_AFTER

    def _expected(self, error: Exception) -> PipecdError:
        """Returns the error; a fault of one plugin is no reason to run none."""
        if isinstance(error, PipecdError):
            return error
        logger.error("plugin failed unexpectedly", plugin=self.name, exc_info=error)
        return PipecdError(f"{type(error).__name__}: {error}")


async def _serve_callbacks(
    stack: AsyncExitStack, callbacks: Callbacks, sockets: Path, port: int | None
) -> str:
    """Starts the service that plugins call, and returns its address for them."""
    handlers = (
        rpc_handlers(PLUGIN_SERVICE, callbacks),
        rpc_handlers(LIVE_STATE_CHANGES, LiveStateChanges(callbacks)),
    )
    if port is not None:
        server = grpc_server(handlers, host="localhost", port=port, grace=1)
        return f"localhost:{await stack.enter_async_context(server)}"
    path = sockets / "piped.sock"
    server = grpc_server(handlers, host=f"{UNIX}{path}", port=0, grace=1)
    try:
        await stack.enter_async_context(server)
    except UserMistake as e:
        raise UserMistake(
            e.message,
            hint="choose a --workspace-dir on a file system that supports sockets, or set "
            "--plugin-service-port",
        ) from e
    return f"{UNIX}//{path}"


async def _register(plugin: Plugin, *, is_configured: bool) -> RegisteredPlugin:
    try:
        stages = (await plugin.FetchDefinedStages(FetchDefinedStagesRequest())).stages
    except Unsupported:
        stages = ()
    return RegisteredPlugin(plugin, frozenset(stages), is_configured)
