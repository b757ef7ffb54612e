# SPDX-License-Identifier: Apache-2.0
"""Starts the plugins of a piped and stops them with it."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from pipecd.config.piped.plugin import PluginSpec
from pipecd.model.errors import Unsupported, UserMistake
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.local import LocalPlugin, builtin_plugins
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.process import plugin_process
from pipecd.piped.pluginhost.registry import KnownPlugin, PluginRegistry
from pipecd.proto.plugin import host_pb2
from pipecd.proto.plugin.deployment_pb2 import FetchDefinedStagesRequest
from pipecd.sdk.facts import PluginEntry
from pipecd.sdk.plugin import DeploymentPlugin, StagePlugin
from pipecd.sdk.process import entry_of
from pipecd.sdk.serving import PluginServer, open_door
from pipecd.wire.server import grpc_server

logger = structlog.get_logger()

PLUGIN_SERVICE = host_pb2.DESCRIPTOR.services_by_name["PluginService"]


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
    ) -> AsyncGenerator[PluginRegistry, None]:
        """Runs the configured plugins, and the built-in ones of stages only, while the block runs.

        `service_port` is where plugin processes find piped; 0 takes any free port.
        """
        found = builtin_plugins() if builtins is None else builtins
        async with AsyncExitStack() as running:
            known: list[KnownPlugin] = []
            if any(not spec.builtin for spec in plugins):
                door = open_door(PLUGIN_SERVICE, callbacks)
                service_port = await running.enter_async_context(
                    grpc_server([door], host="localhost", port=service_port, grace=1)
                )
            for spec in plugins:
                if any(spec.name == k.plugin.name for k in known):
                    raise UserMistake(
                        f"two plugins are named {spec.name}", hint="give each plugin its own name"
                    )
                plugin = (
                    _builtin(spec, found, callbacks)
                    if spec.builtin
                    else await running.enter_async_context(
                        plugin_process(spec, service_port=service_port)
                    )
                )
                known.append(await _known(plugin, is_configured=True))
            known += await _unconfigured(found, {spec.name for spec in plugins}, callbacks)
            registry = PluginRegistry(known)
            logger.info("plugins are ready", plugins=registry.names)
            yield registry


def _builtin(
    spec: PluginSpec, found: Mapping[str, Callable[[], StagePlugin]], callbacks: Callbacks
) -> Plugin:
    if spec.builtin not in found:
        raise UserMistake(
            f"there is no built-in plugin {spec.builtin} yet",
            hint=f"use one of {', '.join(sorted(found))}, or give plugin {spec.name} a url",
        )
    return LocalPlugin(PluginServer(found[spec.builtin](), entry_of(spec), callbacks))


async def _unconfigured(
    found: Mapping[str, Callable[[], StagePlugin]], taken: set[str], callbacks: Callbacks
) -> list[KnownPlugin]:
    """Plugins of stages only need no settings and are there for everyone, as in v0."""
    known: list[KnownPlugin] = []
    for name in sorted(found.keys() - taken):
        plugin = found[name]()
        if not isinstance(plugin, DeploymentPlugin):
            server = PluginServer(plugin, PluginEntry(name), callbacks)
            known.append(await _known(LocalPlugin(server), is_configured=False))
    return known


async def _known(plugin: Plugin, *, is_configured: bool) -> KnownPlugin:
    try:
        stages = (await plugin.FetchDefinedStages(FetchDefinedStagesRequest())).stages
    except Unsupported:
        stages = ()
    return KnownPlugin(plugin, frozenset(stages), is_configured)
