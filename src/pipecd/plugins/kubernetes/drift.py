# SPDX-License-Identifier: Apache-2.0
"""Compares manifests: live objects with Git (drift), and running with new manifests (preview)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Any

from pipecd.plugins.kubernetes.manifest import (
    IGNORE_DRIFT,
    Identity,
    Manifest,
    ResourceKey,
    is_enabled,
)
from pipecd.plugins.kubernetes.workload import normalized_secret
from pipecd.sdk import Preview, SyncState, SyncStatus
from pipecd.sdk.diff import Node, Options, compare, is_list, is_map, render
from pipecd.sdk.unstructured import text_at, without

# Fields that servers and controllers add to what Git declares are no drift.
_LIVE_DIFF = Options(equate_empty=True, subset=True, numeric_strings=True)
_GIT_DIFF = Options(equate_empty=True, numeric_strings=True)
_MAX_SHOWN = 3


class Change(Enum):
    """What a sync would do to an object."""

    ADDED = "added"
    DELETED = "deleted"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class ObjectDrift:
    """How one object differs from Git; the text of its fields has no content of Secrets."""

    change: Change
    key: ResourceKey
    fields: str = ""


def compared_objects(manifests: Iterable[Manifest]) -> dict[Identity, Manifest]:
    """Returns the objects by identity, without those that have the ignore annotation."""
    return {m.key.identity: m for m in manifests if not is_enabled(m, IGNORE_DRIFT)}


def ignored_paths(key: ResourceKey, ignored: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Returns the field paths that are not compared, named by either form of an object's key."""
    if not ignored:
        return frozenset()
    texts = (key.first_generation_text, key.text)
    return frozenset(path for text in texts for path in ignored.get(text, ()))


def object_drift(
    live: Manifest | None, declared: Manifest | None, ignored: frozenset[str]
) -> ObjectDrift | None:
    """Compares one object with Git; None if it is in sync.

    A live object with the ignore annotation counts as missing.
    """
    if live is not None and is_enabled(live, IGNORE_DRIFT):
        live = None
    if live is None or declared is None:
        if declared is not None:
            return ObjectDrift(Change.ADDED, declared.key)
        return ObjectDrift(Change.DELETED, live.key) if live is not None else None
    nodes = compare(
        _normalized(live.with_body(without(live.body, "status"))),
        _normalized(_declared_fields(declared)),
        replace(_LIVE_DIFF, ignored=ignored),
    )
    if not nodes:
        return None
    masked = frozenset({"Secret", "ConfigMap"})
    return ObjectDrift(Change.CHANGED, live.key, _render_fields(nodes, live.kind, masked))


def sync_state(drifts: Mapping[Identity, ObjectDrift], commit: str) -> SyncState:
    """Summarises how the objects of an application differ from a commit."""
    if not drifts:
        return SyncState(SyncStatus.SYNCED)
    ordered = [drifts[identity] for identity in sorted(drifts)]
    added, deleted, changed = ([each for each in ordered if each.change is c] for c in Change)
    summary = (
        f"There are {len(ordered)} manifests not synced "
        f"({len(added)} adds, {len(deleted)} deletes, {len(changed)} changes)"
    )
    text = _render_objects(
        [each.key for each in deleted],
        [each.key for each in added],
        [(each.key, each.fields) for each in changed[:_MAX_SHOWN]],
        omitted=len(changed[_MAX_SHOWN:]),
    )
    git = f"the defined state in Git at commit {commit[:7]}"
    head = f"Diff between {git} and actual state in cluster:"
    details = f"{head}\n\n--- Actual   (LiveState)\n+++ Expected (Git)\n\n{text}"
    return SyncState(SyncStatus.OUT_OF_SYNC, summary, details)


def _declared_fields(manifest: Manifest) -> Manifest:
    """Leaves out fields that Git leaves open: status, nulls, empty clusterIP, aggregated rules."""
    body = _without_nulls(without(manifest.body, "status"))
    if manifest.is_builtin("", "Service") and not text_at(body, "spec", "clusterIP"):
        body = without(body, "spec", "clusterIP")
    if manifest.kind == "ClusterRole" and "aggregationRule" in body:
        body = without(body, "rules")
    return manifest.with_body(body)


def _without_nulls(value: Any) -> Any:
    if is_map(value):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    return [_without_nulls(each) for each in value] if is_list(value) else value


def preview(target: str, running: Sequence[Manifest], desired: Sequence[Manifest]) -> Preview:
    """Compares the running manifests with those of a change."""
    diff = diff_manifests(running, desired, _GIT_DIFF)
    if not diff:
        return Preview(target, "No changes were detected", no_change=True)
    added, changed, deleted = map(len, (diff.added, diff.changed, diff.deleted))
    summary = f"{added} added manifests, {changed} changed manifests, {deleted} deleted manifests"
    return Preview(target, summary, f"--- Last Deploy\n+++ Head Commit\n\n{render_diff(diff)}\n")


# Keys whose map has quantities as values, and single fields that are quantities by their parent.
_QUANTITY_MAPS = frozenset(
    {
        *("limits", "requests", "capacity", "allocatable", "hard", "podFixed"),
        *("default", "defaultRequest", "max", "min", "maxLimitRequestRatio"),
    }
)
_QUANTITY_FIELDS: Mapping[str, frozenset[str]] = {
    "emptyDir": frozenset({"sizeLimit"}),
    "resourceFieldRef": frozenset({"divisor"}),
    "target": frozenset({"value", "averageValue"}),
}
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,9})?"
)
_DECIMAL = {"m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
# No quantity is larger than 2^63-1; numbers far beyond that are not converted.
_MAX_EXPONENT = 40
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def with_canonical_quantities(value: Any, parent_key: str = "") -> Any:
    """Returns a value with all resource quantities in the canonical form of the API server."""
    if is_map(value):
        quantity_keys = _QUANTITY_FIELDS.get(
            parent_key, value.keys() if parent_key in _QUANTITY_MAPS else ()
        )
        return {
            key: canonical_quantity(child)
            if key in quantity_keys
            else with_canonical_quantities(child, key)
            for key, child in value.items()
        }
    return [with_canonical_quantities(each) for each in value] if is_list(value) else value


def canonical_quantity(value: Any) -> Any:
    """Returns a quantity in its canonical form: `1000m` is `1`, `0.5` is `500m`.

    A value that is no quantity, or that is far too large for one, is returned as it is.
    """
    is_scalar = isinstance(value, str | int | float) and not isinstance(value, bool)
    match = _QUANTITY.fullmatch(str(value)) if is_scalar else None
    if match is None:
        return value
    number, suffix = match[1], match[2] or ""
    amount = Decimal(number)
    if suffix in _BINARY:
        amount *= 2 ** _BINARY[suffix]
    elif suffix in _DECIMAL:
        amount = amount.scaleb(_DECIMAL[suffix])
    else:
        amount = Decimal(f"{number}{suffix}")
    if abs(amount.adjusted()) > _MAX_EXPONENT:
        return value
    if suffix in _BINARY:
        if amount != amount.to_integral_value():
            return str(value)
        integer = int(amount)
        units = (unit for unit, power in reversed(_BINARY.items()) if integer % 2**power == 0)
        unit = next(units, "") if integer else ""
        return f"{integer >> _BINARY.get(unit, 0)}{unit}"
    for unit, exponent in reversed(_DECIMAL.items()) if amount else ():
        scaled = amount.scaleb(-exponent)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{unit}"
    return f"{amount.normalize():f}" if amount else "0"


# The content of Secrets and ConfigMaps is never shown.
_MASKED_FIELDS = {"Secret": ("data", "stringData"), "ConfigMap": ("data", "binaryData")}


@dataclass(frozen=True)
class ChangedManifest:
    """An object that both sides have, with its differences."""

    key: ResourceKey
    kind: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class ManifestDiff:
    """The objects that the new side adds, deletes and changes."""

    added: tuple[ResourceKey, ...] = ()
    deleted: tuple[ResourceKey, ...] = ()
    changed: tuple[ChangedManifest, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted or self.changed)

    @property
    def total(self) -> int:
        """How many objects differ."""
        return len(self.added) + len(self.deleted) + len(self.changed)


def diff_manifests(
    old: Sequence[Manifest], new: Sequence[Manifest], options: Options
) -> ManifestDiff:
    """Compares two lists of objects."""
    before = {manifest.key.identity: manifest for manifest in old}
    after = {manifest.key.identity: manifest for manifest in new}
    changed: list[ChangedManifest] = []
    for identity in sorted(before.keys() & after.keys()):
        key, kind = before[identity].key, before[identity].kind
        nodes = compare(_normalized(before[identity]), _normalized(after[identity]), options)
        if nodes:
            changed.append(ChangedManifest(key, kind, tuple(nodes)))
    return ManifestDiff(
        added=tuple(after[identity].key for identity in sorted(after.keys() - before.keys())),
        deleted=tuple(before[identity].key for identity in sorted(before.keys() - after.keys())),
        changed=tuple(changed),
    )


def _normalized(manifest: Manifest) -> Any:
    """Returns an object in the form that the API server stores."""
    body = normalized_secret(manifest.body) if manifest.is_builtin("", "Secret") else manifest.body
    return with_canonical_quantities(body)


def render_diff(
    diff: ManifestDiff, *, show_at_most: int = 0, masked: frozenset[str] = frozenset({"Secret"})
) -> str:
    """Renders a diff as upstream does: numbered, deletions first."""
    shown = diff.changed[:show_at_most] if show_at_most else diff.changed
    return _render_objects(
        diff.deleted,
        diff.added,
        [(each.key, _render_fields(each.nodes, each.kind, masked)) for each in shown],
        omitted=len(diff.changed) - len(shown),
    )


def _render_fields(nodes: Sequence[Node], kind: str, masked: frozenset[str]) -> str:
    """Renders the changed fields of an object; `masked` has the kinds whose content is hidden."""
    return render(nodes, masked=_MASKED_FIELDS.get(kind, ()) if kind in masked else ())


def _render_objects(
    deleted: Iterable[ResourceKey],
    added: Iterable[ResourceKey],
    changed: Iterable[tuple[ResourceKey, str]],
    *,
    omitted: int,
) -> str:
    lines: list[str] = []
    number = 0
    for sign, keys in (("-", deleted), ("+", added)):
        for key in keys:
            number += 1
            lines += [f"{sign} {number}. {_describe(key)}", ""]
    for key, fields in changed:
        number += 1
        lines += [f"# {number}. {_describe(key)}", "", fields]
    if omitted:
        lines.append(f"... (omitted {omitted} other changed manifests)")
    return "".join(f"{line}\n" for line in lines)


def _describe(key: ResourceKey) -> str:
    return (
        f'name="{key.name}", kind="{key.kind}", '
        f'namespace="{key.namespace}", apiVersion="{key.api_version}"'
    )
