# SPDX-License-Identifier: Apache-2.0
"""The plugins and deploy targets of a piped file that have mistakes, and the file without them.

So a piped starts with the others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pipecd.config.catalog import Catalog
from pipecd.config.decode import entry_of
from pipecd.config.piped_v0 import ANALYSIS, CHARTS, PLATFORMS
from pipecd.config.report import Mistake, Path, dotted
from pipecd.config.yaml_tree import Entry, List, Map, Node, Scalar


@dataclass(frozen=True, slots=True)
class Unusable:
    """A plugin or one of its deploy targets that a piped starts without, and why."""

    plugin: str
    target: str
    """The name of the deploy target; empty for the plugin itself."""
    reason: str
    has_name: bool = True
    """Whether the file names it; if not, it is called by its position and cannot be chosen."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a file has the settings of a plugin or of a deploy target."""

    path: Path
    plugin: str
    target: str = ""
    has_name: bool = True

    @property
    def is_shared(self) -> bool:
        """Whether it has settings for all deploy targets of a v0 file."""
        return self.path[-1] in (*CHARTS, ANALYSIS)

    def contains(self, path: str) -> bool:
        own = dotted(self.path)
        return path == own or path.startswith((f"{own}.", f"{own}["))

    def reason(self, mistake: Mistake) -> str:
        """Return a mistake with its path inside the plugin or deploy target, which has a name."""
        is_item = isinstance(self.path[-1], int)
        outside = dotted(self.path if is_item else self.path[:-1])
        return str(replace(mistake, path=mistake.path.removeprefix(outside).removeprefix(".")))


def without_unusable(
    spec: Node, mistakes: Sequence[Mistake], catalog: Catalog
) -> tuple[Node, tuple[Unusable, ...]] | None:
    """Return the `spec` of a piped file without the parts that these mistakes are in.

    Several parts of one name are left out together, because it is unknown which of them is meant.
    None if a mistake is elsewhere.
    """
    parts = _parts(spec, catalog)
    found: dict[_Part, list[str]] = {}
    for mistake in mistakes:
        part = next((part for part in parts if part.contains(mistake.path)), None)
        if part is None:
            return None
        found.setdefault(part, []).append(part.reason(mistake))
    removed = {other for part in found for other in (part, *_namesakes(part, parts))}
    for plugin in dict.fromkeys(part.plugin for part in found if part.target):
        targets = [part for part in parts if part.plugin == plugin and part.target]
        if removed.issuperset(targets):
            # Nothing is left that it could deploy to.
            reasons = [reason for part in targets for reason in found.get(part, ())]
            own = (p for p in parts if p.plugin == plugin and not p.target)
            found.setdefault(next(own, _Part((), plugin)), reasons)
    rest = _without(spec, {part.path for part in (*removed, *found)}, ("spec",))
    if rest == spec:
        return None
    return rest, _unusable(found)


def _namesakes(part: _Part, parts: Sequence[_Part]) -> list[_Part]:
    """Return the other plugins, or deploy targets of the plugin, that have the same name."""
    name = part.plugin, part.target
    return [
        other
        for other in parts
        if (other.plugin, other.target) == name and not part.is_shared and not other.is_shared
    ]


def _unusable(found: Mapping[_Part, Sequence[str]]) -> tuple[Unusable, ...]:
    """Return each name once, with all reasons."""
    names: dict[tuple[str, str, bool], list[str]] = {}
    for part, reasons in found.items():
        names.setdefault((part.plugin, part.target, part.has_name), []).extend(reasons)
    return tuple(
        Unusable(plugin, target, "\n".join(reasons), has_name)
        for (plugin, target, has_name), reasons in names.items()
    )


def _parts(spec: Node, catalog: Catalog) -> list[_Part]:
    """Return the parts of a file, each deploy target before its plugin."""
    parts: list[_Part] = []
    for i, plugin in enumerate(_items(spec, "plugins")):
        at, name = ("spec", "plugins", i), _text(plugin, "name")
        own = _Part(at, name or _position(plugin), has_name=bool(name))
        for j, node in enumerate(_items(plugin, "deployTargets")):
            parts.append(_target((*at, "deployTargets", j), node, own))
        parts.append(own)
    for key in PLATFORMS:
        for i, node in enumerate(_items(spec, key)):
            at, platform = ("spec", key, i), _text(node, "type")
            known = catalog.provider(platform)
            plugin = known[0].name if known else platform
            own = _Part(at, plugin or _position(node), has_name=bool(plugin))
            parts.append(_target(at, node, own) if plugin else own)
    if kubernetes := catalog.provider("KUBERNETES"):
        parts += [_Part(("spec", key), kubernetes[0].name) for key in CHARTS]
    return [*parts, _Part(("spec", ANALYSIS), "analysis")]


def _target(path: Path, node: Node, plugin: _Part) -> _Part:
    name = _text(node, "name")
    return _Part(path, plugin.plugin, name or _position(node), bool(name) and plugin.has_name)


def _position(node: Node) -> str:
    """Return what a part without a name is called."""
    return f"(line {node.mark.line}, column {node.mark.column})"


def _without(node: Node, removed: Collection[Path], path: Path) -> Node:
    """Return a tree without the nodes at these paths."""
    match node:
        case Map():
            return Map(
                tuple(
                    Entry(key, _without(value, removed, (*path, key)), mark)
                    for key, value, mark in node
                    if (*path, key) not in removed
                ),
                node.mark,
            )
        case List():
            kept = [(i, item) for i, item in enumerate(node.items) if (*path, i) not in removed]
            return List(tuple(_without(item, removed, (*path, i)) for i, item in kept), node.mark)
        case Scalar():
            return node


def _items(node: Node, key: str) -> Sequence[Node]:
    entry = entry_of(node, key)
    return entry.value.items if entry and isinstance(entry.value, List) else ()


def _text(node: Node, key: str) -> str:
    entry = entry_of(node, key)
    value = entry.value.value if entry and isinstance(entry.value, Scalar) else ""
    return value if isinstance(value, str) else ""
