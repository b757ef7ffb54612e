# SPDX-License-Identifier: Apache-2.0
"""Which deploy targets an application goes to, in both generations."""

from collections.abc import Collection, Mapping

from pipecd.model.errors import UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

KnownTargets = Mapping[str, Collection[str]]
"""The names of the deploy targets that piped has for each of its plugins."""


def deploy_targets(
    goes: Deployment | Application, plugins: Collection[str], known: KnownTargets
) -> dict[str, tuple[str, ...]]:
    """The names of the targets by plugin.

    `plugins` are those that the application names. One of the first generation has a platform
    provider instead of targets, which piped knows as a target of the plugin for that platform.
    """
    chosen = {
        plugin: tuple(targets.deploy_targets)
        for plugin, targets in goes.deploy_targets_by_plugin.items()
    }
    for plugin, names in chosen.items():
        for name in names:
            # A plugin that this piped does not have is told when its stages are looked for.
            if plugin in known and name not in known[plugin]:
                raise _unknown(f"deploy target {name}", plugin, known[plugin])
    provider = goes.platform_provider or goes.cloud_provider
    if chosen or not provider:
        return chosen
    platforms = [plugin for plugin in plugins if known.get(plugin)]
    found = {plugin: (provider,) for plugin in platforms if provider in known[plugin]}
    if platforms and not found:
        raise _unknown(f"platform provider {provider}", platforms[0], known[platforms[0]])
    return found


def _unknown(what: str, plugin: str, known: Collection[str]) -> UserMistake:
    return UserMistake(
        f"{what} is not defined for plugin {plugin}",
        hint=f"add it to the configuration of piped, or use one of: {', '.join(known) or 'none'}",
    )
