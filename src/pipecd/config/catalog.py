# SPDX-License-Identifier: Apache-2.0
"""The configuration types of installed plugins, and their translation from v0 files.

Each plugin's `config.py` exports one `CONFIG`, which is registered in the entry point group
`pipecd.plugin_config`. So files are checked without importing the plugins:

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

from collections.abc import Callable, Mapping
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
"""A section of a configuration file: plain values, camelCase keys."""


class NoOptions(Spec):
    """The `with` of a stage that has no options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class V0Kind(Generic[SpecT, ProviderT]):
    """The translation of a v0 application kind into settings of one plugin."""

    kind: str
    """The `kind` of application files, such as `KubernetesApp`."""
    application_kind: ApplicationKind
    spec: type[SpecT]
    """The fields of this kind besides the generic ones: `input`, `quickSync`, …"""
    translate: Callable[[SpecT, frozenset[str]], Mapping[str, Section]]
    """(fields, names of the stages in the pipeline) → `spec.plugins` by plugin name."""
    auto_rollback: Callable[[SpecT], bool]
    """Returns the effective `input.autoRollback`, including the default of the kind."""
    provider_type: str
    """The `type` of `platformProviders[]` in piped files, such as `KUBERNETES`."""
    provider_config: type[ProviderT]
    """The `config` of such a provider."""
    always_uses_pipeline: bool = False
    """Whether a configured pipeline is used also for a first deployment, whatever the commit."""
    translate_provider: Callable[[ProviderT], Section] = plain
    """The `config` of a provider → the `config` of a deploy target."""
    rollback_stage: str = ""
    """The stage of the plugin for the stage ROLLBACK of deployments that a v0 piped planned."""


@dataclass(frozen=True, slots=True)
class V0Stage(Generic[SpecT]):
    """The translation of a stage of a v0 pipeline into a stage of a plugin.

    Options `timeout` and `skip_on` move out of `with` to the stage itself, because every stage of
    a plugin has them there; `translate` does not have to handle them.
    """

    options: type[SpecT]
    name: str = ""
    """The name of the plugin's stage; empty if it is the same."""
    translate: Callable[[SpecT], Section] = plain
    """The options → the `with` of the plugin's stage."""
    timeout: Duration | None = None
    """The default timeout of the stage; None is the timeout of the deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """The configuration types of one plugin."""

    name: str
    application: type[Spec] | None = None
    """`spec.plugins.<name>` of application files; None if the plugin has no section."""
    stages: Mapping[str, type[Spec]] = field(default_factory=dict[str, type[Spec]])
    """`with` of every stage, by stage name."""
    deploy_target: type[Spec] | None = None
    """`plugins[].deployTargets[].config` of piped files; None if it has no deploy targets."""
    piped: type[Spec] | None = None
    """`plugins[].config` of piped files."""
    v0: V0Kind[Any, Any] | None = None
    v0_stages: Mapping[str, V0Stage[Any]] = field(default_factory=dict[str, V0Stage[Any]])
    """The stages of v0 pipelines, of this platform or generic ones such as WAIT."""
    kinds: Mapping[str, type[Spec]] = field(default_factory=dict[str, type[Spec]])
    """The `spec` of further kinds of files that the plugin reads, such as `AnalysisTemplate`."""


@dataclass(frozen=True)
class Catalog:
    """The configuration types of a set of plugins."""

    plugins: tuple[PluginConfig, ...]

    def plugin(self, name: str) -> PluginConfig | None:
        """Return the plugin of that name."""
        return self._by_name.get(name)

    def v0_kind(self, kind: str) -> V0Kind[Any, Any] | None:
        """Return the v0 kind of that name."""
        return self._v0_kinds.get(kind)

    def v0_kind_of_plugin(self, plugin: str) -> V0Kind[Any, Any] | None:
        """Return the v0 kind that a plugin implements."""
        config = self._by_name.get(plugin)
        return config.v0 if config else None

    def v0_kind_of_application(self, kind: ApplicationKind) -> V0Kind[Any, Any] | None:
        """Return the v0 kind of applications of a kind."""
        return next(
            (each for each in self._v0_kinds.values() if each.application_kind is kind), None
        )

    def provider(self, provider_type: str) -> tuple[PluginConfig, V0Kind[Any, Any]] | None:
        """Return the plugin for a type of `platformProviders[]`, with its v0 kind."""
        for plugin in self.plugins:
            if plugin.v0 and plugin.v0.provider_type == provider_type:
                return plugin, plugin.v0
        return None

    @property
    def v0_kinds(self) -> tuple[str, ...]:
        """Return the names of the v0 kinds."""
        return tuple(sorted(self._v0_kinds))

    @cached_property
    def v0_stages(self) -> Mapping[str, V0Stage[Any]]:
        """Return the stages of v0 pipelines, by name."""
        return {name: s for plugin in self.plugins for name, s in plugin.v0_stages.items()}

    @cached_property
    def kinds(self) -> Mapping[str, type[Spec]]:
        """Return the further kinds of files that plugins read."""
        return {kind: spec for plugin in self.plugins for kind, spec in plugin.kinds.items()}

    @cached_property
    def stages(self) -> Mapping[str, type[Spec]]:
        """Return the type of `with` of every stage of every plugin."""
        return {name: options for p in self.plugins for name, options in p.stages.items()}

    @cached_property
    def _by_name(self) -> Mapping[str, PluginConfig]:
        return {plugin.name: plugin for plugin in self.plugins}

    @cached_property
    def _v0_kinds(self) -> Mapping[str, V0Kind[Any, Any]]:
        return {p.v0.kind: p.v0 for p in self.plugins if p.v0}


def load_catalog() -> Catalog:
    """Return the types of every installed plugin, in the order of their names."""
    plugins: list[PluginConfig] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        config = entry.load()
        if not isinstance(config, PluginConfig):
            raise TypeError(f"the entry point {entry.name} of {GROUP} is not a PluginConfig")
        plugins.append(config)
    return Catalog(tuple(plugins))
