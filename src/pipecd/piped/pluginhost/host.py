# SPDX-License-Identifier: Apache-2.0
"""Starts the plugins of a piped and stops them with it."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from pipecd.config.piped import BUILTIN, PluginSpec
from pipecd.model.errors import Unsupported, UserMistake
from pipecd.piped.pluginhost.callbacks import Callbacks, LiveStateChanges
from pipecd.piped.pluginhost.local import LocalPlugin, builtin_plugins, third_party_plugins
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.process import (
    PluginFiles,
    PluginLaunch,
    PluginSupervisor,
    PluginTimeouts,
)
from pipecd.piped.pluginhost.registry import PluginRegistry, RegisteredPlugin
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
# How an installed third-party plugin is started; imports do not depend on the working directory.
_INSTALLED = ("-P", "-c", "from pipecd.sdk.process import serve_installed; serve_installed()")

PluginFactory = Callable[[], StagePlugin]


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
    """Runs built-in plugins in this process, the others in processes of their own."""

    @staticmethod
    @asynccontextmanager
    async def start(
        plugins: Sequence[PluginSpec],
        *,
        callbacks: Callbacks,
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
        _validate(plugins)
        installed = builtin_plugins() if builtins is None else builtins
        third_party = third_party_plugins() if builtins is None else frozenset[str]()
        async with AsyncExitStack() as stack:
            # `builtin://` brings any installed plugin into this process.
            external = [
                spec
                for spec in plugins
                if not spec.builtin or (not spec.url and spec.name in third_party)
            ]
            supervisors: dict[str, PluginSupervisor] = {}
            if external:
                sockets = stack.enter_context(socket_directory(workspace))
                piped = await _serve_callbacks(stack, callbacks, sockets, service_port)
                downloads = downloads or PluginDownloads(PLUGINS_DIRECTORY)
                launches = await _prepare_launches(external, downloads, callbacks, sockets, piped)
                supervisors = {each.name: PluginSupervisor(each, timeouts) for each in launches}
            await stack.enter_async_context(_supervise(list(supervisors.values())))
            registered: list[RegisteredPlugin] = []
            for spec in plugins:
                if (supervisor := supervisors.get(spec.name)) is not None:
                    await supervisor.wait_until_ready()
                    plugin: Plugin = RemotePlugin(spec.name, supervisor.connect)
                elif spec.builtin in installed:
                    server = PluginServer(installed[spec.builtin](), entry_of(spec), callbacks)
                    await server.prepare(stack)
                    plugin = LocalPlugin(server)
                else:
                    names = ", ".join(sorted(installed))
                    raise UserMistake(
                        f"there is no built-in plugin {spec.builtin} yet",
                        hint=f"use one of {names}, or give plugin {spec.name} a url",
                    )
                registered.append(await _register(plugin, is_configured=True))
            for name in sorted(installed.keys() - third_party - {spec.name for spec in plugins}):
                # Stage plugins need no configuration: like in v0, their stages always exist.
                builtin = installed[name]()
                if not isinstance(builtin, DeploymentPlugin):
                    server = PluginServer(builtin, PluginEntry(name), callbacks)
                    await server.prepare(stack)
                    registered.append(await _register(LocalPlugin(server), is_configured=False))
            registry = PluginRegistry(registered)
            logger.info("plugins are ready", plugins=registry.names)
            yield registry


def _validate(plugins: Sequence[PluginSpec]) -> None:
    for name, count in Counter(spec.name for spec in plugins).items():
        if count > 1:
            raise UserMistake(f"two plugins are named {name}", hint="give each plugin its own name")
    for port, count in Counter(spec.port for spec in plugins if spec.port).items():
        if count > 1:
            names = " and ".join(spec.name for spec in plugins if spec.port == port)
            raise UserMistake(
                f"the plugins {names} have the same port {port}",
                hint="give each its own, or leave the port out to get any free one",
            )


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


async def _prepare_launches(
    plugins: Sequence[PluginSpec],
    downloads: PluginDownloads,
    callbacks: Callbacks,
    sockets: Path,
    piped: str,
) -> list[PluginLaunch]:
    """Downloads the programs, all at once; the first failure cancels the others."""
    hide = callbacks.masks.all.hide
    env = program_variables(callbacks.git_variables) | {
        RENDERING_VARIABLE: callbacks.rendering.model_dump_json(by_alias=True)
    }

    async def prepare(number: int, spec: PluginSpec) -> PluginLaunch:
        files = PluginFiles(sockets / f"plugin-{number}.sock")
        if spec.url:
            # The program may be one of upstream's.
            command = (str(await downloads.program(spec)),)
            return PluginLaunch(spec, command, piped, files, hide, env)
        # A plugin of an entry point is started by our SDK. Its entry has a URL, as upstream's have.
        command = (sys.executable, *_INSTALLED, spec.name)
        spec = spec.model_copy(update={"url": f"{BUILTIN}://{spec.name}"})
        files = replace(files, config=sockets / f"plugin-{number}.json")
        return PluginLaunch(spec, command, piped, files, hide, env)

    try:
        async with asyncio.TaskGroup() as tasks:
            preparing = [tasks.create_task(prepare(*each)) for each in enumerate(plugins)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in preparing]


@asynccontextmanager
async def _supervise(supervisors: Sequence[PluginSupervisor]) -> AsyncGenerator[None, None]:
    """Keeps the processes running while the block runs, then ends all of them at once."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        supervising = [tasks.create_task(each.run(), name="plugin") for each in supervisors]
        try:
            yield
        except Exception as e:  # noqa: BLE001 - raised again below, outside of the group
            failure = e
        finally:
            for task in supervising:
                task.cancel()
    if failure is not None:
        raise failure


async def _register(plugin: Plugin, *, is_configured: bool) -> RegisteredPlugin:
    try:
        stages = (await plugin.FetchDefinedStages(FetchDefinedStagesRequest())).stages
    except Unsupported:
        stages = ()
    return RegisteredPlugin(plugin, frozenset(stages), is_configured)
