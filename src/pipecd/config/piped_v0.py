# SPDX-License-Identifier: Apache-2.0
"""Decodes piped files of both generations; a v0 file is translated to plugin settings.

The types that plugins declare in the catalog check their settings.
"""

from dataclasses import dataclass, field
from typing import Any

from pipecd.config.catalog import Catalog
from pipecd.config.decode import Decoder, Level, entry_of, unknown_word
from pipecd.config.piped import (
    CommonPipedSpec,
    DeployTargetSpec,
    PipedSpec,
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
    """Report whether the `spec` of a piped file is of generation v0."""
    return any(_entry(spec, key) for key in V0_KEYS)


def decode_piped(
    decoder: Decoder, spec: Node, catalog: Catalog, path: Path = ("spec",)
) -> PipedSpec | None:
    """Return the `spec` of a piped file with plugins, or None if it is invalid."""
    plugins = _entry(spec, "plugins")
    if not is_v0(spec):
        decoded = decoder.decode(spec, PipedSpec, path=path)
        if decoded and plugins and isinstance(plugins.value, List):
            for i, (plugin, node) in enumerate(
                zip(decoded.plugins, plugins.value.items, strict=True)
            ):
                _check_plugin(decoder, plugin, node, catalog, (*path, "plugins", i))
        return decoded
    if plugins:
        decoder.add(
            "plugins (v1) cannot be combined with platformProviders, cloudProviders, "
            "analysisProviders or chart settings (v0), write a file of one generation",
            at=plugins.mark,
            path=(*path, "plugins"),
        )
        return None
    v0 = decoder.decode(spec, V0PipedSpec, path=path)
    return _translate(decoder, spec, v0, catalog, path) if v0 else None


def with_default_kubernetes(spec: PipedSpec) -> PipedSpec:
    """Return `spec` with the cluster of piped as a deploy target of the plugin kubernetes."""
    name = "kubernetes"
    plugin = next((p for p in spec.plugins if p.name == name), PluginSpec(name=name))
    if any(target.name == DEFAULT_KUBERNETES for target in plugin.deploy_targets):
        return spec
    targets = (*plugin.deploy_targets, DeployTargetSpec(name=DEFAULT_KUBERNETES))
    changed = plugin.model_copy(update={"deploy_targets": targets})
    others = tuple(p for p in spec.plugins if p is not plugin)
    return spec.model_copy(update={"plugins": (*others, changed)})


@dataclass(slots=True)
class _Plugin:
    """The settings of a plugin, collected from a v0 file."""

    config: dict[str, Any] = field(default_factory=dict[str, Any])
    targets: dict[str, DeployTargetSpec] = field(default_factory=dict[str, DeployTargetSpec])


def _translate(
    decoder: Decoder, spec: Node, v0: V0PipedSpec, catalog: Catalog, path: Path
) -> PipedSpec:
    plugins: dict[str, _Plugin] = {}
    providers = (*v0.platform_providers, *v0.cloud_providers)
    nodes = [
        (node, (*path, key, i))
        for key in PLATFORMS
        if (entry := _entry(spec, key)) and isinstance(entry.value, List)
        for i, node in enumerate(entry.value.items)
    ]
    for provider, (node, at) in zip(providers, nodes, strict=True):
        match = catalog.provider(provider.type)
        if not match:
            types = sorted(p.v0.provider_type for p in catalog.plugins if p.v0)
            decoder.add(
                f"unsupported platform provider type: {provider.type}, "
                f"write one of {', '.join(types)}",
                at=_mark(node, "type"),
                path=(*at, "type"),
            )
            continue
        plugin, kind = match
        config = _decode_part(decoder, node, "config", kind.provider_config, at)
        if not provider.name:
            decoder.add("name must be set", at=node.mark, path=(*at, "name"))
        elif config:
            settings = dict(kind.translate_provider(config))
            target = DeployTargetSpec(name=provider.name, labels=provider.labels, config=settings)
            # As in upstream, the first of two providers with the same name is used.
            plugins.setdefault(plugin.name, _Plugin()).targets.setdefault(target.name, target)
    _add_settings(decoder, spec, catalog, path, plugins)
    shared = {name: getattr(v0, name) for name in CommonPipedSpec.model_fields}
    return PipedSpec(
        **shared,
        plugins=tuple(
            PluginSpec(name=name, config=p.config, deploy_targets=tuple(p.targets.values()))
            for name, p in plugins.items()
        ),
    )


def _add_settings(
    decoder: Decoder, spec: Node, catalog: Catalog, path: Path, plugins: dict[str, _Plugin]
) -> None:
    """Add chart settings to the plugin kubernetes and analysis providers to analysis."""
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


def _check_plugin(
    decoder: Decoder, plugin: PluginSpec, node: Node, catalog: Catalog, at: Path
) -> None:
    """Check the settings of a built-in plugin; other plugins check theirs when they start."""
    if not plugin.builtin:
        return
    declared = catalog.plugin(plugin.builtin)
    if not declared:
        names = [p.name for p in catalog.plugins]
        what = (
            f"no built-in plugin is named {plugin.builtin}, "
            f"write the url of its program or one of: {', '.join(names)}"
        )
        decoder.add(
            unknown_word(what, plugin.builtin, names),
            at=_mark(node, "name"),
            path=(*at, "name"),
        )
        return
    config, targets = _entry(node, "config"), _entry(node, "deployTargets")
    if declared.piped:
        _decode_part(decoder, node, "config", declared.piped, at)
    elif config:
        _warn_unused(decoder, config, declared.name, (*at, "config"))
    if not declared.deploy_target:
        if targets:
            _warn_unused(decoder, targets, declared.name, (*at, "deployTargets"))
        return
    items = targets.value.items if targets and isinstance(targets.value, List) else ()
    if not items:
        decoder.add(
            f"the plugin {declared.name} deploys nothing without deployTargets",
            at=node.mark,
            path=at,
            level=Level.WARNING,
        )
    for i, target in enumerate(items):
        _decode_part(decoder, target, "config", declared.deploy_target, (*at, "deployTargets", i))


def _warn_unused(decoder: Decoder, entry: Entry, plugin: str, path: Path) -> None:
    what = f"the plugin {plugin} does not use this"
    decoder.add(what, at=entry.mark, path=path, level=Level.WARNING)


def _decode_part(decoder: Decoder, node: Node, key: str, to: type[Spec], path: Path) -> Spec | None:
    entry = _entry(node, key)
    part = entry.value if entry else Map((), node.mark)
    return decoder.decode(part, to, path=(*path, key))


def _entry(node: Node, key: str) -> Entry | None:
    """Return the entry of an object for a key, in upper or lower case; None for null."""
    entry = entry_of(node, key)
    if entry is None or (isinstance(entry.value, Scalar) and entry.value.value is None):
        return None
    return entry


def _mark(node: Node, key: str) -> Mark:
    entry = _entry(node, key)
    return entry.value.mark if entry else node.mark
