# SPDX-License-Identifier: Apache-2.0
"""What every installed plugin calls its configuration, and how v0 files spell the same.

Each plugin's `config.py` exports one `CONFIG`, found by the entry point group
`pipecd.plugin_config`, so that files are checked without loading the plugins themselves:

    CONFIG = PluginConfig(
        name="ecs",
        application=EcsSection,                      # spec.plugins.ecs
        stages={"ECS_SYNC": NoOptions, "ECS_CANARY_ROLLOUT": CanaryRolloutOptions},
        deploy_target=EcsTarget,                     # plugins[].deployTargets[].config
        v0=V0Kind(
            kind="ECSApp",
            application_kind=ApplicationKind.ECS,
            spec=EcsAppFields,                       # input and quickSync of an ECSApp
            translate=lambda fields, stages: {"ecs": plain(fields)},
            auto_rollback=lambda fields: fields.input.auto_rollback,
            provider_type="ECS",
            provider_config=EcsTarget,
        ),
        v0_stages={"ECS_CANARY_ROLLOUT": V0Stage(V0CanaryRolloutOptions)},
    )
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from pipecd.config.spec import Spec, plain
from pipecd.config.units import Duration
from pipecd.model.application import ApplicationKind

GROUP = "pipecd.plugin_config"

SpecT = TypeVar("SpecT", bound=Spec)
ProviderT = TypeVar("ProviderT", bound=Spec)

Section = Mapping[str, Any]
"""A piece of configuration as a file writes it: plain values, camelCase keys."""


class NoOptions(Spec):
    """The `with` of a stage that has no options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class V0Kind(Generic[SpecT, ProviderT]):
    """How an application kind of the first generation becomes settings of one plugin."""

    kind: str
    """The `kind` of application files, such as `KubernetesApp`."""
    application_kind: ApplicationKind
    spec: type[SpecT]
    """The fields that this kind has beside the generic ones: `input`, `quickSync`, …"""
    translate: Callable[[SpecT, frozenset[str]], Mapping[str, Section]]
    """(fields, names of the stages in the pipeline) → `spec.plugins` by plugin name."""
    auto_rollback: Callable[[SpecT], bool]
    """The effective `input.autoRollback`, including the default of the kind."""
    provider_type: str
    """The `type` of `platformProviders[]` in piped files, such as `KUBERNETES`."""
    provider_config: type[ProviderT]
    """The `config` of such a provider."""
    translate_provider: Callable[[ProviderT], Section] = plain
    """The `config` of a provider → the `config` of a deploy target."""


@dataclass(frozen=True, slots=True)
class V0Stage(Generic[SpecT]):
    """How a stage in a v0 pipeline becomes a stage of a plugin.

    A field `timeout` or `skip_on` of the options moves to the stage itself before `translate` is
    asked, as every stage of a plugin has these beside `with`.
    """

    options: type[SpecT]
    name: str = ""
    """The name of the plugin's stage; empty when it is the same."""
    translate: Callable[[SpecT], Section] = plain
    """The options → the `with` of the plugin's stage."""
    timeout: Duration | None = None
    """The limit of a stage that writes none; None leaves only that of the deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """The configuration types of one plugin."""

    name: str
    application: type[Spec] | None = None
    """`spec.plugins.<name>` of application files; None when the plugin has no section."""
    stages: Mapping[str, type[Spec]] = field(default_factory=dict[str, type[Spec]])
    """`with` of every stage that a pipeline may name, by stage name."""
    deploy_target: type[Spec] | None = None
    """`plugins[].deployTargets[].config` of piped files; None when it deploys nowhere."""
    piped: type[Spec] | None = None
    """`plugins[].config` of piped files."""
    v0: V0Kind[Any, Any] | None = None
    v0_stages: Mapping[str, V0Stage[Any]] = field(default_factory=dict[str, V0Stage[Any]])
    """The stages that v0 pipelines may name, of this platform or generic ones such as WAIT."""
    kinds: Mapping[str, type[Spec]] = field(default_factory=dict[str, type[Spec]])
    """The `spec` of further kinds of files that the plugin reads, such as `AnalysisTemplate`."""


@dataclass(frozen=True)
class Catalog:
    """The configuration types of every plugin at hand."""

    plugins: tuple[PluginConfig, ...]

    def plugin(self, name: str) -> PluginConfig | None:
        """Return the plugin that application and piped files call `name`."""
        return self._by_name.get(name)

    def v0_kind(self, kind: str) -> V0Kind[Any, Any] | None:
        """Return the first-generation kind of that name."""
        return self._v0_kinds.get(kind)

    def v0_kind_of_plugin(self, plugin: str) -> V0Kind[Any, Any] | None:
        """Return the first-generation kind that a plugin took over."""
        found = self._by_name.get(plugin)
        return found.v0 if found else None

    def provider(self, provider_type: str) -> tuple[PluginConfig, V0Kind[Any, Any]] | None:
        """Return the plugin that took over a type of `platformProviders[]`, and how."""
        for plugin in self.plugins:
            if plugin.v0 and plugin.v0.provider_type == provider_type:
                return plugin, plugin.v0
        return None

    @property
    def v0_kinds(self) -> tuple[str, ...]:
        """Return the names of the first-generation kinds."""
        return tuple(sorted(self._v0_kinds))

    @cached_property
    def v0_stages(self) -> Mapping[str, V0Stage[Any]]:
        """Return every stage that a v0 pipeline may name."""
        return {name: s for plugin in self.plugins for name, s in plugin.v0_stages.items()}

    @cached_property
    def kinds(self) -> Mapping[str, type[Spec]]:
        """Return the further kinds of files that plugins read."""
        return {kind: spec for plugin in self.plugins for kind, spec in plugin.kinds.items()}

    @cached_property
    def stages(self) -> Mapping[str, type[Spec]]:
        """Return the type of `with` for every stage of a plugin."""
        return {name: options for p in self.plugins for name, options in p.stages.items()}

    @cached_property
    def _by_name(self) -> Mapping[str, PluginConfig]:
        return {plugin.name: plugin for plugin in self.plugins}

    @cached_property
    def _v0_kinds(self) -> Mapping[str, V0Kind[Any, Any]]:
        return {p.v0.kind: p.v0 for p in self.plugins if p.v0}


def load_catalog() -> Catalog:
    """Return the types of every installed plugin, in the order of their names."""
    return Catalog(tuple(_installed()))


def _installed() -> Iterator[PluginConfig]:
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        config = entry.load()
        if not isinstance(config, PluginConfig):
            raise TypeError(f"the entry point {entry.name} of {GROUP} is no PluginConfig")
        yield config
