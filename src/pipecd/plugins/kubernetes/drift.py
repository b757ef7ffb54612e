# SPDX-License-Identifier: Apache-2.0
"""Compares manifests: live objects with Git (drift), and running with new manifests (preview)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from pipecd.plugins.kubernetes.manifest import IGNORE_DRIFT, Manifest, ResourceKey, is_enabled
from pipecd.plugins.kubernetes.workload import normalized_secret
from pipecd.sdk import Preview, SyncState, SyncStatus
from pipecd.sdk.diff import Node, Options, compare, is_list, is_map, render
from pipecd.sdk.unstructured import text_at, without

# Fields that servers and controllers add to what Git declares are no drift.
_LIVE_DIFF = Options(equate_empty=True, subset=True, numeric_strings=True)
_GIT_DIFF = Options(equate_empty=True, numeric_strings=True)
_MAX_SHOWN = 3


def drift(
    live: Sequence[Manifest],
    declared: Sequence[Manifest],
    commit: str,
    ignored: Mapping[str, Iterable[str]],
) -> SyncState:
    """Compares live objects with a commit; `ignored` has field paths by the key of an object."""
    paths = {key: frozenset(fields) for key, fields in ignored.items()}
    diff = diff_manifests(
        _compared(live), [_declared_fields(m) for m in _compared(declared)], _LIVE_DIFF, paths
    )
    if not diff:
        return SyncState(SyncStatus.SYNCED)
    added, deleted, changed = map(len, (diff.added, diff.deleted, diff.changed))
    summary = (
        f"There are {diff.total} manifests not synced "
        f"({added} adds, {deleted} deletes, {changed} changes)"
    )
    text = render_diff(diff, show_at_most=_MAX_SHOWN, masked=frozenset({"Secret", "ConfigMap"}))
    git = f"the defined state in Git at commit {commit[:7]}"
    head = f"Diff between {git} and actual state in cluster:"
    details = f"{head}\n\n--- Actual   (LiveState)\n+++ Expected (Git)\n\n{text}"
    return SyncState(SyncStatus.OUT_OF_SYNC, summary, details)


def _compared(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Leaves out objects with the ignore annotation, and the status."""
    return [
        m.with_body(without(m.body, "status")) for m in manifests if not is_enabled(m, IGNORE_DRIFT)
    ]


def _declared_fields(manifest: Manifest) -> Manifest:
    """Leaves out fields that Git leaves open: nulls, empty clusterIP, aggregated rules."""
    body = _without_nulls(manifest.body)
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
    old: Sequence[Manifest],
    new: Sequence[Manifest],
    options: Options,
    ignored: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> ManifestDiff:
    """Compares two lists of objects; `ignored` has field paths by the text of an object's key."""
    before = {manifest.key.identity: manifest for manifest in old}
    after = {manifest.key.identity: manifest for manifest in new}
    changed: list[ChangedManifest] = []
    for identity in sorted(before.keys() & after.keys()):
        key, kind = before[identity].key, before[identity].kind
        paths = options.ignored
        for text in (key.first_generation_text, key.text):
            paths |= ignored.get(text, frozenset())
        nodes = compare(
            _normalized(before[identity]),
            _normalized(after[identity]),
            replace(options, ignored=paths),
        )
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
    lines: list[str] = []
    number = 0
    for sign, keys in (("-", diff.deleted), ("+", diff.added)):
        for key in keys:
            number += 1
            lines += [f"{sign} {number}. {_describe(key)}", ""]
    shown = diff.changed[:show_at_most] if show_at_most else diff.changed
    for change in shown:
        number += 1
        masked_fields = _MASKED_FIELDS.get(change.kind, ()) if change.kind in masked else ()
        lines += [
            f"# {number}. {_describe(change.key)}",
            "",
            render(change.nodes, masked=masked_fields),
        ]
    omitted = len(diff.changed) - len(shown)
    if omitted:
        lines.append(f"... (omitted {omitted} other changed manifests)")
    return "".join(f"{line}\n" for line in lines)


def _describe(key: ResourceKey) -> str:
    return (
        f'name="{key.name}", kind="{key.kind}", '
        f'namespace="{key.namespace}", apiVersion="{key.api_version}"'
    )
