# SPDX-License-Identifier: Apache-2.0
"""A Piped file of either generation becomes plugins and their deploy targets.

The settings of a plugin are checked by the types that the plugin declares in the catalog.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pipecd.config.catalog import Catalog, PluginConfig
from pipecd.config.decode import Decoder, Level, entry_of
from pipecd.config.piped import (
    AgentSpec,
    DeployTargetSpec,
    PipedSpec,
    PlatformProviderSpec,
    PluginSpec,
    V0PipedSpec,
)
from pipecd.config.report import Path
from pipecd.config.spec import Spec, plain
from pipecd.config.yaml_tree import Entry, List, Map, Mark, Node, Scalar

PLATFORMS = ("platformProviders", "cloudProviders")
CHARTS = ("chartRepositories", "chartRegistries")
ANALYSIS = "analysisProviders"
V0_KEYS = (*PLATFORMS, ANALYSIS, *CHARTS)
DEFAULT_KUBERNETES = "kubernetes-default"


def is_v0(spec: Node) -> bool:
    """Say whether the `spec` of a Piped file is of the first generation."""
    return any(_entry(spec, key) for key in V0_KEYS)


def decode_piped(
    decoder: Decoder, spec: Node, catalog: Catalog, path: Path = ("spec",)
) -> PipedSpec | None:
    """Return the `spec` of a Piped file in the form of plugins, or None when it is wrong."""
    plugins = _entry(spec, "plugins")
    if not is_v0(spec):
        decoded = decoder.decode(spec, PipedSpec, path=path)
        if decoded:
            _check_plugins(decoder, decoded, plugins, catalog, path)
        return decoded
    if plugins:
        decoder.tell(
            "plugins and platformProviders, analysisProviders or charts are of two generations, "
            "write only one of them",
            at=plugins.mark,
            path=(*path, "plugins"),
        )
        return None
    v0 = decoder.decode(spec, V0PipedSpec, path=path)
    return _translate(decoder, spec, v0, catalog, path) if v0 else None


def with_default_kubernetes(spec: PipedSpec) -> PipedSpec:
    """Return `spec` with the cluster that piped runs in as a deploy target of Kubernetes."""
    found = next((p for p in spec.plugins if p.name == "kubernetes"), PluginSpec(name="kubernetes"))
    if any(target.name == DEFAULT_KUBERNETES for target in found.deploy_targets):
        return spec
    targets = (*found.deploy_targets, DeployTargetSpec(name=DEFAULT_KUBERNETES))
    changed = found.model_copy(update={"deploy_targets": targets})
    others = tuple(plugin for plugin in spec.plugins if plugin is not found)
    return spec.model_copy(update={"plugins": (*others, changed)})


@dataclass(slots=True)
class _Plugin:
    """A plugin while its parts are gathered from a v0 file."""

    config: dict[str, Any] = field(default_factory=dict[str, Any])
    targets: dict[str, DeployTargetSpec] = field(default_factory=dict[str, DeployTargetSpec])


def _translate(
    decoder: Decoder, spec: Node, v0: V0PipedSpec, catalog: Catalog, path: Path
) -> PipedSpec:
    plugins: dict[str, _Plugin] = {}
    providers = (*v0.platform_providers, *v0.cloud_providers)
    for provider, (node, at) in zip(providers, _provider_nodes(spec, path), strict=True):
        found = catalog.provider(provider.type)
        if not found:
            known = sorted(p.v0.provider_type for p in catalog.plugins if p.v0)
            decoder.tell(
                f"unsupported platform provider type: {provider.type}, "
                f"write one of {', '.join(known)}",
                at=_mark(node, "type"),
                path=(*at, "type"),
            )
            continue
        plugin, kind = found
        config = _decode_part(decoder, node, "config", kind.provider_config, at)
        target = _target(decoder, provider, node, at)
        if config and target:
            settings = kind.translate_provider(config)
            gathered = plugins.setdefault(plugin.name, _Plugin())
            # Of two providers with one name upstream finds the first.
            gathered.targets.setdefault(
                target.name, target.model_copy(update={"config": dict(settings)})
            )
    _add_settings(decoder, spec, catalog, path, plugins)
    shared = {name: getattr(v0, name) for name in AgentSpec.model_fields}
    return PipedSpec(
        **shared,
        plugins=tuple(
            PluginSpec(name=name, config=p.config, deploy_targets=tuple(p.targets.values()))
            for name, p in plugins.items()
        ),
    )


def _target(
    decoder: Decoder, provider: PlatformProviderSpec, node: Node, at: Path
) -> DeployTargetSpec | None:
    if provider.name:
        return DeployTargetSpec(name=provider.name, labels=provider.labels)
    decoder.tell("name must be set", at=node.mark, path=(*at, "name"))
    return None


def _add_settings(
    decoder: Decoder, spec: Node, catalog: Catalog, path: Path, plugins: dict[str, _Plugin]
) -> None:
    """Add charts to the plugin of Kubernetes and analysis providers to that of analysis."""
    kubernetes = catalog.provider("KUBERNETES")
    for plugin, keys in (
        (kubernetes[0] if kubernetes else None, CHARTS),
        (catalog.plugin("analysis"), (ANALYSIS,)),
    ):
        entries = tuple(entry for key in keys if (entry := _entry(spec, key)))
        if not plugin or not plugin.piped or not entries:
            continue
        settings = decoder.decode(Map(entries, spec.mark), plugin.piped, path=path)
        if settings:
            plugins.setdefault(plugin.name, _Plugin()).config |= plain(settings)


def _check_plugins(
    decoder: Decoder, spec: PipedSpec, plugins: Entry | None, catalog: Catalog, path: Path
) -> None:
    """Check the settings of built-in plugins; those of others are known to them alone."""
    for i, plugin in enumerate(spec.plugins):
        node, at = _item(plugins, i), (*path, "plugins", i)
        if not plugin.builtin:
            continue
        declared = catalog.plugin(plugin.builtin)
        if not declared:
            known = ", ".join(p.name for p in catalog.plugins)
            decoder.tell(
                f"no built-in plugin is named {plugin.builtin}, "
                f"write the url of its program or one of: {known}",
                at=_mark(node, "name"),
                path=(*at, "name"),
            )
            continue
        _check_settings(decoder, node, declared, at)


def _check_settings(decoder: Decoder, node: Node, declared: PluginConfig, at: Path) -> None:
    config, targets = _entry(node, "config"), _entry(node, "deployTargets")
    if declared.piped:
        _decode_part(decoder, node, "config", declared.piped, at)
    elif config:
        _tell_unused(decoder, config, declared.name, (*at, "config"))
    if not declared.deploy_target:
        if targets:
            _tell_unused(decoder, targets, declared.name, (*at, "deployTargets"))
        return
    items = targets.value.items if targets and isinstance(targets.value, List) else ()
    if not items:
        decoder.tell(
            f"the plugin {declared.name} deploys nothing without deployTargets",
            at=node.mark,
            path=at,
            level=Level.WARNING,
        )
    for i, target in enumerate(items):
        _decode_part(decoder, target, "config", declared.deploy_target, (*at, "deployTargets", i))


def _tell_unused(decoder: Decoder, entry: Entry, plugin: str, path: Path) -> None:
    what = f"the plugin {plugin} does not use this"
    decoder.tell(what, at=entry.mark, path=path, level=Level.WARNING)


def _decode_part(decoder: Decoder, node: Node, key: str, to: type[Spec], path: Path) -> Spec | None:
    entry = _entry(node, key)
    part = entry.value if entry else Map((), node.mark)
    return decoder.decode(part, to, path=(*path, key))


def _provider_nodes(spec: Node, path: Path) -> Iterator[tuple[Node, Path]]:
    """Yield the places of the providers in the order they are merged."""
    for key in PLATFORMS:
        entry = _entry(spec, key)
        if entry and isinstance(entry.value, List):
            for i, node in enumerate(entry.value.items):
                yield node, (*path, key, i)


def _entry(node: Node, key: str) -> Entry | None:
    """Return what an object says for a key in any spelling; null says nothing."""
    found = entry_of(node, key)
    if found is None or (isinstance(found.value, Scalar) and found.value.value is None):
        return None
    return found


def _item(entry: Entry | None, i: int) -> Node:
    assert entry and isinstance(entry.value, List), "the decoder saw a list here"  # noqa: S101
    return entry.value.items[i]


def _mark(node: Node, key: str) -> Mark:
    entry = _entry(node, key)
    return entry.value.mark if entry else node.mark
