# SPDX-License-Identifier: Apache-2.0
"""Finds the plugin of a stage, and the plugins of an application."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipecd.config.application import ApplicationSpec
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import UserMistake
from pipecd.piped.cache.changes import Changes
from pipecd.piped.pluginhost.plugin import Plugin, PluginNotStarted

_NO_TARGETS: Mapping[str, Collection[str]] = {}


@dataclass(frozen=True)
class RegisteredPlugin:
    """A running plugin with its stages; configured ones take precedence over the others."""

    plugin: Plugin
    stages: frozenset[str]
    is_configured: bool = True


@dataclass(frozen=True)
class StartFailure:
    """Why a plugin does not run, or why one of its deploy targets cannot be used."""

    plugin: str
    reason: str
    target: str = ""
    """The name of the deploy target; empty for the plugin itself."""
    is_temporary: bool = False
    since: int = 0
    """When it was noticed first, in unix seconds."""

    def __str__(self) -> str:
        if self.target:
            return f"deploy target {self.target} of plugin {self.plugin} is unusable: {self.reason}"
        return f"plugin {self.plugin} is not running: {self.reason}"


class PluginRegistry:
    """The plugins of this piped, in the order of its configuration, running or not."""

    def __init__(
        self,
        plugins: Iterable[RegisteredPlugin] = (),
        failures: Iterable[StartFailure] = (),
        order: Sequence[str] = (),
        now: Now = utc_now,
    ) -> None:
        """`order` has the names of plugins that start later."""
        self._order, self._now = tuple(order), now
        self._plugins = {each.plugin.name: each for each in plugins}
        self._failures: dict[tuple[str, str], StartFailure] = {}
        self.changes = Changes()
        for failure in failures:
            self.failed(failure)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all running plugins."""
        return tuple(self._plugins)

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of all stages, in order."""
        return tuple(sorted({stage for p in self._plugins.values() for stage in p.stages}))

    @property
    def failures(self) -> tuple[StartFailure, ...]:
        """What does not run."""
        return tuple(self._failures.values())

    def started(self, registered: RegisteredPlugin) -> None:
        """Adds a plugin that has started."""
        self._failures.pop((registered.plugin.name, ""), None)
        plugins = {**self._plugins, registered.plugin.name: registered}
        self._plugins = {
            name: plugins[name] for name in (*self._order, *plugins) if name in plugins
        }
        self.changes.notify()

    def failed(self, failure: StartFailure) -> None:
        """Records why a plugin does not run; the time of the first failure stays."""
        if not failure.target:
            self._plugins.pop(failure.plugin, None)
        key = (failure.plugin, failure.target)
        before = self._failures.get(key)
        failure = replace(failure, since=before.since if before else to_unix(self._now()))
        if failure != before:
            self._failures[key] = failure
            self.changes.notify()

    def named(self, name: str) -> Plugin:
        """Returns the plugin with this name."""
        if (registered := self._plugins.get(name)) is not None:
            return registered.plugin
        self._refuse_failed([name], _NO_TARGETS)
        raise UserMistake(
            f"no plugin found for the given plugin name {name}",
            hint=f"add it to plugins in the configuration of piped, or use one of: "
            f"{', '.join(self.names)}",
        )

    def for_stage(
        self,
        stage: str,
        spec: ApplicationSpec,
        *,
        targets: Mapping[str, Collection[str]] = _NO_TARGETS,
    ) -> Plugin:
        """Returns the plugin that runs a stage of an application.

        If several plugins have the stage, it is the one that the application names under `plugins`,
        else the one it has deploy targets for (`targets` are those by plugin).
        """
        offering = [p for p in self._plugins.values() if stage in p.stages]
        if any(p.is_configured for p in offering) or not offering:
            # The stage may be one of a plugin that is not running.
            self._refuse_failed((*spec.plugins, *targets), targets)
        if not offering:
            if self._failures:
                raise self._not_started(
                    self.failures, before=f"no running plugin has the stage {stage}; "
                )
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
        self, spec: ApplicationSpec, *, targets: Mapping[str, Collection[str]] = _NO_TARGETS
    ) -> tuple[Plugin, ...]:
        """Returns the plugins of the pipeline of an application, else those under its `plugins`."""
        self._refuse_failed((*spec.plugins, *targets), targets)
        if spec.pipeline.stages:
            used = [self.for_stage(s.name, spec, targets=targets) for s in spec.pipeline.stages]
            return tuple(dict.fromkeys(used))
        if spec.plugins:
            return tuple(self.named(name) for name in spec.plugins)
        raise UserMistake(
            "no plugin specified",
            hint="add spec.plugins or spec.pipeline to the application configuration",
        )

    def _refuse_failed(
        self, plugins: Iterable[str], targets: Mapping[str, Collection[str]]
    ) -> None:
        """Raises if one of these plugins or deploy targets does not run."""
        wanted = [(plugin, target) for plugin in targets for target in targets[plugin]]
        names = dict.fromkeys([*((plugin, "") for plugin in plugins), *wanted])
        if failures := [self._failures[name] for name in names if name in self._failures]:
            raise self._not_started(failures)

    @staticmethod
    def _not_started(failures: Sequence[StartFailure], *, before: str = "") -> PluginNotStarted:
        # A plugin that does not run for want of a deploy target has the same reason.
        of_plugins = [each for each in failures if not each.target]
        text = "; ".join(str(each) for each in of_plugins or failures)
        is_temporary = any(each.is_temporary for each in failures)
        return PluginNotStarted(f"{before}{text}", is_temporary=is_temporary)
