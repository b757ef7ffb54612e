# SPDX-License-Identifier: Apache-2.0
"""The plugins and deploy targets of a piped file that have mistakes, and the file without them.

So a piped starts with the others.
"""

from collections import Counter
from collections.abc import Collection, Sequence
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


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a file has the settings of a plugin or of a deploy target."""

    path: Path
    plugin: str
    target: str = ""

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

    None if one of them is elsewhere, or in a part whose name another part has too.
    """
    parts = _parts(spec, catalog)
    named = [part for part in parts if part.path[-1] not in (*CHARTS, ANALYSIS)]
    names = Counter((part.plugin, part.target) for part in named)
    found: dict[_Part, list[str]] = {}
    for mistake in mistakes:
        part = next((part for part in parts if part.contains(mistake.path)), None)
        if part is None or not part.plugin or names[part.plugin, part.target] > 1:
            return None
        found.setdefault(part, []).append(part.reason(mistake))
    for plugin in dict.fromkeys(part.plugin for part in found if part.target):
        targets = [part for part in parts if part.plugin == plugin and part.target]
        if all(part in found for part in targets):
            # Nothing is left that it could deploy to.
            reasons = [reason for part in targets for reason in found[part]]
            at = next((p.path for p in parts if p.plugin == plugin and not p.target), ())
            found.setdefault(_Part(at, plugin), reasons)
    rest = _without(spec, {part.path for part in found}, ("spec",))
    if rest == spec:
        return None
    unusable = (Unusable(each.plugin, each.target, "\n".join(found[each])) for each in found)
    return rest, tuple(unusable)


def _parts(spec: Node, catalog: Catalog) -> list[_Part]:
    """Return the parts of a file, each deploy target before its plugin."""
    parts: list[_Part] = []
    for i, plugin in enumerate(_items(spec, "plugins")):
        at, name = ("spec", "plugins", i), _text(plugin, "name")
        targets = enumerate(_items(plugin, "deployTargets"))
        parts += [
            _Part((*at, "deployTargets", j), name, _text(node, "name")) for j, node in targets
        ]
        parts.append(_Part(at, name))
    for key in PLATFORMS:
        for i, node in enumerate(_items(spec, key)):
            platform, name = _text(node, "type"), _text(node, "name")
            known = catalog.provider(platform)
            parts.append(_Part(("spec", key, i), known[0].name if known else platform, name))
    if kubernetes := catalog.provider("KUBERNETES"):
        parts += [_Part(("spec", key), kubernetes[0].name) for key in CHARTS]
    return [*parts, _Part(("spec", ANALYSIS), "analysis")]


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
