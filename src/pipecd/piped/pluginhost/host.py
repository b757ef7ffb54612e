# SPDX-License-Identifier: Apache-2.0
"""Starts the plugins of a piped and stops them with it."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import structlog

from pipecd.config.piped.plugin import BUILTIN, PluginSpec
from pipecd.model.errors import Unsupported, UserMistake
from pipecd.piped.pluginhost.callbacks import Callbacks, LiveStateChanges
from pipecd.piped.pluginhost.local import LocalPlugin, builtin_plugins, foreign_plugins
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.process import Launch, Patience
from pipecd.piped.pluginhost.registry import KnownPlugin, PluginRegistry
from pipecd.piped.pluginhost.store import PluginStore
from pipecd.piped.pluginhost.supervisor import PluginSupervisor
from pipecd.proto.plugin import host_pb2, livestatechanges_pb2
from pipecd.proto.plugin.deployment_pb2 import FetchDefinedStagesRequest
from pipecd.sdk.facts import PluginEntry
from pipecd.sdk.host import program_variables
from pipecd.sdk.plugin import DeploymentPlugin, StagePlugin
from pipecd.sdk.process import entry_of
from pipecd.sdk.serving import PluginServer, open_door
from pipecd.wire.server import grpc_server

logger = structlog.get_logger()

PLUGIN_SERVICE = host_pb2.DESCRIPTOR.services_by_name["PluginService"]
LIVE_STATE_CHANGES = livestatechanges_pb2.DESCRIPTOR.services_by_name["LiveStateChanges"]
PLUGINS_DIRECTORY = Path.home() / ".piped" / "plugins"
# What an installed plugin runs as; the path of imports does not depend on the working directory.
_INSTALLED = ("-P", "-c", "from pipecd.sdk.process import serve_installed; serve_installed()")

DoneT = TypeVar("DoneT")


class PluginHost:
    """Runs plugins: built-in ones in this process, the others as processes beside it."""

    @staticmethod
    @asynccontextmanager
    async def start(
        plugins: Sequence[PluginSpec],
        *,
        callbacks: Callbacks,
        service_port: int = 0,
        builtins: Mapping[str, Callable[[], StagePlugin]] | None = None,
        store: PluginStore | None = None,
        patience: Patience | None = None,
    ) -> AsyncGenerator[PluginRegistry, None]:
        """Runs the configured plugins, and the built-in ones of stages only, while the block runs.

        `service_port` is where plugin processes find piped; 0 takes any free port.
        """
        _refuse_doubles(plugins)
        found = builtin_plugins() if builtins is None else builtins
        foreign = foreign_plugins() if builtins is None else frozenset[str]()
        async with AsyncExitStack() as opened:
            programs = [spec for spec in plugins if _is_program(spec, foreign)]
            if programs:
                doors = (
                    open_door(PLUGIN_SERVICE, callbacks),
                    open_door(LIVE_STATE_CHANGES, LiveStateChanges(callbacks)),
                )
                service_port = await opened.enter_async_context(
                    grpc_server(doors, host="localhost", port=service_port, grace=1)
                )
            launches = await _launches(
                programs, store or PluginStore(PLUGINS_DIRECTORY), callbacks, service_port
            )
            supervisors = {each.name: PluginSupervisor(each, patience) for each in launches}
            await opened.enter_async_context(_running(list(supervisors.values())))
            known: list[KnownPlugin] = []
            for spec in plugins:
                if (supervisor := supervisors.get(spec.name)) is not None:
                    await supervisor.ready()
                    plugin: Plugin = supervisor.plugin
                else:
                    server = _builtin(spec, found, callbacks)
                    plugin = await _prepared(server, opened)
                known.append(await _known(plugin, is_configured=True))
            others = found.keys() - foreign - {spec.name for spec in plugins}
            for server in _unconfigured({name: found[name] for name in others}, callbacks):
                plugin = await _prepared(server, opened)
                known.append(await _known(plugin, is_configured=False))
            registry = PluginRegistry(known)
            logger.info("plugins are ready", plugins=registry.names)
            yield registry


def _refuse_doubles(plugins: Sequence[PluginSpec]) -> None:
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


def _is_program(spec: PluginSpec, foreign: frozenset[str]) -> bool:
    """Whether a plugin runs in a process of its own; `builtin://` brings any into ours."""
    return not spec.builtin or (not spec.url and spec.name in foreign)


async def _launches(
    programs: Sequence[PluginSpec], store: PluginStore, callbacks: Callbacks, service_port: int
) -> list[Launch]:
    fetched = await _together([_command(spec, store) for spec in programs])
    hide, env = callbacks.masks.known.hide, program_variables(callbacks.git_variables)
    return [
        Launch(_addressed(spec), command, service_port, hide, env)
        for spec, command in zip(programs, fetched, strict=True)
    ]


def _addressed(spec: PluginSpec) -> PluginSpec:
    """Every program is told where it came from."""
    return spec if spec.url else spec.model_copy(update={"url": f"{BUILTIN}://{spec.name}"})


async def _command(spec: PluginSpec, store: PluginStore) -> Sequence[str]:
    if spec.url:
        return (str(await store.program(spec)),)
    return (sys.executable, *_INSTALLED, spec.name)


async def _together(work: Sequence[Coroutine[Any, Any, DoneT]]) -> list[DoneT]:
    """Does all of it at a time; the first failure ends the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(one) for one in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [one.result() for one in begun]


@asynccontextmanager
async def _running(supervisors: Sequence[PluginSupervisor]) -> AsyncGenerator[None, None]:
    """Keeps the programs running while the block runs, and ends all of them at a time."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(one.run(), name="plugin") for one in supervisors]
        try:
            yield
        except Exception as e:  # noqa: BLE001 - raised again below, outside of the group
            failure = e
        finally:
            for one in begun:
                one.cancel()
    if failure is not None:
        raise failure


def _builtin(
    spec: PluginSpec, found: Mapping[str, Callable[[], StagePlugin]], callbacks: Callbacks
) -> PluginServer:
    if spec.builtin not in found:
        raise UserMistake(
            f"there is no built-in plugin {spec.builtin} yet",
            hint=f"use one of {', '.join(sorted(found))}, or give plugin {spec.name} a url",
        )
    return PluginServer(found[spec.builtin](), entry_of(spec), callbacks)


async def _prepared(server: PluginServer, lifetime: AsyncExitStack) -> LocalPlugin:
    await server.prepare(lifetime)
    return LocalPlugin(server)


def _unconfigured(
    found: Mapping[str, Callable[[], StagePlugin]], callbacks: Callbacks
) -> Iterator[PluginServer]:
    """Plugins of stages only need no settings and are there for everyone, as in v0."""
    for name in sorted(found):
        plugin = found[name]()
        if not isinstance(plugin, DeploymentPlugin):
            yield PluginServer(plugin, PluginEntry(name), callbacks)


async def _known(plugin: Plugin, *, is_configured: bool) -> KnownPlugin:
    try:
        stages = (await plugin.FetchDefinedStages(FetchDefinedStagesRequest())).stages
    except Unsupported:
        stages = ()
    return KnownPlugin(plugin, frozenset(stages), is_configured)
