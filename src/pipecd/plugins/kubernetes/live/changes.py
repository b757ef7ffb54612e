# SPDX-License-Identifier: Apache-2.0
"""How two lists of objects differ, object by object, and that as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipecd.plugins.kubernetes.live.quantity import canonical
from pipecd.plugins.kubernetes.manifest.key import Key
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.secret import comparable
from pipecd.sdk.diff import Node, Options, compare, render

# What a Secret or a ConfigMap holds is shown to nobody.
_MASKED = {"Secret": ("data", "stringData"), "ConfigMap": ("data", "binaryData")}


@dataclass(frozen=True)
class Change:
    """An object that is on both sides and not the same."""

    key: Key
    kind: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Changes:
    """What the new side adds, deletes and changes."""

    added: tuple[Key, ...] = ()
    deleted: tuple[Key, ...] = ()
    changed: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted or self.changed)

    @property
    def total(self) -> int:
        """How many objects differ."""
        return len(self.added) + len(self.deleted) + len(self.changed)


def changes(
    old: Sequence[Manifest],
    new: Sequence[Manifest],
    options: Options,
    ignored: Mapping[str, frozenset[str]] | None = None,
) -> Changes:
    """Compares two lists of objects; `ignored` are paths by the text of an object's key."""
    before = {manifest.key.identity: manifest for manifest in old}
    after = {manifest.key.identity: manifest for manifest in new}
    changed = (
        _change(before[identity], after[identity], options, ignored or {})
        for identity in sorted(before.keys() & after.keys())
    )
    return Changes(
        added=tuple(after[identity].key for identity in sorted(after.keys() - before.keys())),
        deleted=tuple(before[identity].key for identity in sorted(before.keys() - after.keys())),
        changed=tuple(change for change in changed if change is not None),
    )


def _change(
    old: Manifest, new: Manifest, options: Options, ignored: Mapping[str, frozenset[str]]
) -> Change | None:
    paths = ignored.get(old.key.first_generation_text, frozenset())
    paths |= ignored.get(old.key.text, frozenset())
    nodes = compare(_plain(old), _plain(new), replace(options, ignored=options.ignored | paths))
    return Change(old.key, old.kind, tuple(nodes)) if nodes else None


def _plain(manifest: Manifest) -> Any:
    """Returns an object in the one spelling that the API server uses."""
    body = comparable(manifest.body) if manifest.is_builtin("", "Secret") else manifest.body
    return canonical(body)


def as_text(
    found: Changes, *, show_at_most: int = 0, masked: frozenset[str] = frozenset({"Secret"})
) -> str:
    """Writes changes as upstream does: numbered, those to be deleted first."""
    lines: list[str] = []
    number = 0
    for mark, keys in (("-", found.deleted), ("+", found.added)):
        for key in keys:
            number += 1
            lines += [f"{mark} {number}. {_named(key)}", ""]
    shown = found.changed[:show_at_most] if show_at_most else found.changed
    for change in shown:
        number += 1
        hidden = _MASKED.get(change.kind, ()) if change.kind in masked else ()
        lines += [f"# {number}. {_named(change.key)}", "", render(change.nodes, masked=hidden)]
    omitted = len(found.changed) - len(shown)
    if omitted:
        lines.append(f"... (omitted {omitted} other changed manifests)")
    return "".join(f"{line}\n" for line in lines)


def _named(key: Key) -> str:
    return (
        f'name="{key.name}", kind="{key.kind}", '
        f'namespace="{key.namespace}", apiVersion="{key.api_version}"'
    )
