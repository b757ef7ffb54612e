# SPDX-License-Identifier: Apache-2.0
"""Where applications are deployed: platform providers of v0, plugins and deploy targets of v1."""
# v0 objects use fields that the protobuf files call deprecated.
# pyright: reportDeprecated=false

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped

# The form value for an application without deploy targets.
NO_TARGET = "-"
KIND_NAMES = {
    ApplicationKind.KUBERNETES: "Kubernetes",
    ApplicationKind.TERRAFORM: "Terraform",
    ApplicationKind.LAMBDA: "Lambda",
    ApplicationKind.CLOUDRUN: "Cloud Run",
    ApplicationKind.ECS: "ECS",
}


# The plugins of the platforms that are kinds in v0.
_PLUGIN_KINDS = {
    "kubernetes": ApplicationKind.KUBERNETES,
    "kubernetes_multicluster": ApplicationKind.KUBERNETES,
    "terraform": ApplicationKind.TERRAFORM,
    "lambda": ApplicationKind.LAMBDA,
    "cloudrun": ApplicationKind.CLOUDRUN,
    "ecs": ApplicationKind.ECS,
}


def platforms(document: Deployment | Application) -> tuple[str, ...]:
    """The platforms as values of the filter: numbers of kinds, and names of other plugins.

    The kind of a v1 application says nothing, it is that of Kubernetes for every plugin.
    """
    if document.deploy_targets_by_plugin:
        values = {platform_of_plugin(name) for name in document.deploy_targets_by_plugin}
        return tuple(sorted(values))
    if not _provider_name(document) or document.kind not in set(ApplicationKind):
        return ()
    return (str(document.kind),)


def platform_of_plugin(plugin: str) -> str:
    """The platform of a plugin as a value of the filter."""
    return str(int(_PLUGIN_KINDS[plugin])) if plugin in _PLUGIN_KINDS else plugin


def platform_text(value: str) -> str:
    """The name of a platform; those of plugins are as they are written."""
    return KIND_NAMES[ApplicationKind(int(value))] if value.isdecimal() else value


def platform_name(document: Deployment | Application) -> str:
    """The platforms in words."""
    return ", ".join(platform_text(value) for value in platforms(document))


def platform_choices(pipeds: Iterable[Piped]) -> tuple[tuple[str, str], ...]:
    """What a filter by platform offers: all kinds, and the other plugins that deploy."""
    plugins = {
        platform_of_plugin(plugin.name)
        for piped in pipeds
        for plugin in piped.plugins
        if plugin.deploy_targets
    }
    kinds = [str(int(kind)) for kind in KIND_NAMES]
    return tuple((each, platform_text(each)) for each in (*kinds, *sorted(plugins - {*kinds})))


def target_names(document: Deployment | Application) -> str:
    """The deploy targets, or the platform provider."""
    names = [
        target
        for plugin in sorted(document.deploy_targets_by_plugin)
        for target in document.deploy_targets_by_plugin[plugin].deploy_targets
    ]
    return ", ".join(names) or _provider_name(document)


def _provider_name(document: Deployment | Application) -> str:
    return document.platform_provider or document.cloud_provider


@dataclass(frozen=True)
class TargetOption:
    """A platform provider of a kind, or a deploy target of a plugin; `owner` is that one."""

    owner: str
    name: str

    @property
    def value(self) -> str:
        """The value of the option in a form."""
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True)
class TargetSelection:
    """What the user selected: a provider, deploy targets by plugin, or neither."""

    kind: ApplicationKind | None = None
    provider: str = ""
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class TargetOptions:
    """Everything that a piped can deploy to; an application has exactly one provider."""

    options: tuple[TargetOption, ...] = ()
    are_providers: bool = False

    @property
    def default(self) -> str:
        """The value of the only option, if there is only one."""
        return self.options[0].value if len(self.options) == 1 else ""

    def of_kind(self, kind: ApplicationKind) -> "TargetOptions":
        """Without the providers of other kinds; a plugin may deploy any kind."""
        if not self.are_providers:
            return self
        return replace(self, options=tuple(o for o in self.options if o.owner == kind.name))

    def lacks(self, kind: ApplicationKind) -> bool:
        """Whether no option can deploy the kind.

        Kubernetes has the number 0, which v1 applications send as well, and an application that
        only runs scripts needs no provider.
        """
        is_certain = self.are_providers and kind is not ApplicationKind.KUBERNETES
        return is_certain and not self.of_kind(kind).options

    def select(self, values: Sequence[str]) -> TargetSelection:
        """The selection that the values of a form mean; raises UserMistake if it is invalid."""
        by_value = {option.value: option for option in self.options}
        selected = tuple(dict.fromkeys(value for value in values if value and value != NO_TARGET))
        if unknown := [value for value in selected if value not in by_value]:
            raise UserMistake(f"The piped no longer has {unknown[0]}; choose another one.")
        if not self.options:
            return TargetSelection()
        options = [by_value[value] for value in selected]
        if self.are_providers:
            if len(options) != 1:
                raise UserMistake("Choose one platform provider.")
            return TargetSelection(ApplicationKind[options[0].owner], options[0].name)
        if not options and NO_TARGET not in values:
            raise UserMistake("Choose a deploy target.")
        if options and NO_TARGET in values:
            raise UserMistake("Choose deploy targets or none, not both.")
        plugins = dict.fromkeys(option.owner for option in options)
        return TargetSelection(
            targets={p: tuple(o.name for o in options if o.owner == p) for p in plugins}
        )


def target_options(piped: Piped) -> TargetOptions:
    """What the piped reported; one with providers has a v0 configuration."""
    providers = [(p.type, p.name) for p in (*piped.platform_providers, *piped.cloud_providers)]
    supported = [p for p in dict.fromkeys(providers) if p[0] in ApplicationKind.__members__]
    if supported:
        return TargetOptions(tuple(TargetOption(*p) for p in supported), are_providers=True)
    return TargetOptions(
        tuple(
            TargetOption(plugin.name, name)
            for plugin in piped.plugins
            for name in plugin.deploy_targets
        )
    )
