# SPDX-License-Identifier: Apache-2.0
"""Finds the plugin of a stage, and the plugins of an application."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipecd.config.application import ApplicationSpec
from pipecd.model.errors import UserMistake
from pipecd.piped.pluginhost.plugin import Plugin


@dataclass(frozen=True)
class RegisteredPlugin:
    """A running plugin with its stages; configured ones take precedence over the others."""

    plugin: Plugin
    stages: frozenset[str]
    is_configured: bool = True


class PluginRegistry:
    """The plugins of this piped, in the order of its configuration."""

    def __init__(self, plugins: Sequence[RegisteredPlugin]) -> None:
        self._plugins = tuple(plugins)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all plugins."""
        return tuple(p.plugin.name for p in self._plugins)

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of all stages, in order."""
        return tuple(sorted({stage for p in self._plugins for stage in p.stages}))

    def named(self, name: str) -> Plugin:
        """Returns the plugin with this name."""
        for registered in self._plugins:
            if registered.plugin.name == name:
                return registered.plugin
        raise UserMistake(
            f"no plugin found for the given plugin name {name}",
            hint=f"add it to plugins in the configuration of piped, or use one of: "
            f"{', '.join(self.names)}",
        )

    def for_stage(
        self, stage: str, spec: ApplicationSpec, *, targets: Collection[str] = ()
    ) -> Plugin:
        """Returns the plugin that runs a stage of an application.

        If several plugins have the stage, it is the one that the application names under `plugins`,
        else the one it has deploy targets for (`targets` are the plugins of those).
        """
        offering = [p for p in self._plugins if stage in p.stages]
        if not offering:
            raise UserMistake(
                f"no plugin found for the stage {stage}",
                hint=f"the plugins of this piped offer: {', '.join(self.stages)}",
            )
        for preferred in (
            {p.plugin.name for p in offering if p.plugin.name in spec.plugins},
            {p.plugin.name for p in offering if p.plugin.name in targets},
            {p.plugin.name for p in offering if p.is_configured},
        ):
            offering = [p for p in offering if p.plugin.name in preferred] or offering
            if len(offering) == 1:
                return offering[0].plugin
        raise UserMistake(
            f"several plugins offer the stage {stage}: "
            f"{', '.join(p.plugin.name for p in offering)}",
            hint="name one of them under spec.plugins of the application",
        )

    def of_application(
        self, spec: ApplicationSpec, *, targets: Collection[str] = ()
    ) -> tuple[Plugin, ...]:
        """Returns the plugins of the pipeline of an application, else those under its `plugins`."""
        if spec.pipeline.stages:
            used = [self.for_stage(s.name, spec, targets=targets) for s in spec.pipeline.stages]
            return tuple(dict.fromkeys(used))
        if spec.plugins:
            return tuple(self.named(name) for name in spec.plugins)
        raise UserMistake(
            "no plugin specified",
            hint="add spec.plugins or spec.pipeline to the application configuration",
        )
