# SPDX-License-Identifier: Apache-2.0
"""Which plugin answers for a stage or an application."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipecd.model.errors import UserMistake
from pipecd.piped.pluginhost.plugin import Plugin


class WantedStage(Protocol):
    """A stage of an application's pipeline."""

    @property
    def name(self) -> str: ...


class WantedPipeline(Protocol):
    """The pipeline of an application."""

    @property
    def stages(self) -> Sequence[WantedStage]: ...


class WantedPlugins(Protocol):
    """What an application says about the plugins it needs."""

    @property
    def plugins(self) -> Mapping[str, object]: ...

    @property
    def pipeline(self) -> WantedPipeline | None: ...


@dataclass(frozen=True)
class KnownPlugin:
    """A plugin that runs, with the stages it offers.

    One that is there although nobody configured it gives way to those that were configured.
    """

    plugin: Plugin
    stages: frozenset[str]
    is_configured: bool = True


class PluginRegistry:
    """The plugins of this piped, in the order of its configuration."""

    def __init__(self, known: Sequence[KnownPlugin]) -> None:
        self._known = tuple(known)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all plugins."""
        return tuple(k.plugin.name for k in self._known)

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of all stages, for messages."""
        return tuple(sorted({stage for k in self._known for stage in k.stages}))

    def named(self, name: str) -> Plugin:
        """The plugin of that name."""
        for known in self._known:
            if known.plugin.name == name:
                return known.plugin
        raise UserMistake(
            f"no plugin found for the given plugin name {name}",
            hint=f"add it to plugins in the configuration of piped, or use one of: "
            f"{', '.join(self.names)}",
        )

    def for_stage(
        self, stage: str, spec: WantedPlugins, *, targets: Collection[str] = ()
    ) -> Plugin:
        """The plugin that runs a stage of an application.

        Where several offer it, the one the application names under `plugins`, else the one it has
        deploy targets for (`targets` are the plugins of those).
        """
        offering = [k for k in self._known if stage in k.stages]
        if not offering:
            raise UserMistake(
                f"no plugin found for the stage {stage}",
                hint=f"the plugins of this piped offer: {', '.join(self.stages)}",
            )
        for preferred in (
            {known.plugin.name for known in offering if known.plugin.name in spec.plugins},
            {known.plugin.name for known in offering if known.plugin.name in targets},
            {known.plugin.name for known in offering if known.is_configured},
        ):
            offering = [k for k in offering if k.plugin.name in preferred] or offering
            if len(offering) == 1:
                return offering[0].plugin
        raise UserMistake(
            f"several plugins offer the stage {stage}: "
            f"{', '.join(k.plugin.name for k in offering)}",
            hint="name one of them under spec.plugins of the application",
        )

    def of_application(
        self, spec: WantedPlugins, *, targets: Collection[str] = ()
    ) -> tuple[Plugin, ...]:
        """The plugins an application uses: those of its pipeline, else those it names."""
        if spec.pipeline is not None and spec.pipeline.stages:
            found = [self.for_stage(s.name, spec, targets=targets) for s in spec.pipeline.stages]
            return tuple(dict.fromkeys(found))
        if spec.plugins:
            return tuple(self.named(name) for name in spec.plugins)
        raise UserMistake(
            "no plugin specified",
            hint="add spec.plugins or spec.pipeline to the application configuration",
        )
