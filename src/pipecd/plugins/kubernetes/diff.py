# SPDX-License-Identifier: Apache-2.0
"""The diff of two lists of objects, as data and as text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from pipecd.plugins.kubernetes.manifest import Manifest, ResourceKey
from pipecd.plugins.kubernetes.workload import normalized_secret
from pipecd.sdk.diff import Node, Options, compare, is_list, is_map, render

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
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?")
_DECIMAL = {"m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
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
    """Returns a quantity in its canonical form: `1000m` is `1`, `0.5` is `500m`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return value
    number, suffix = match[1], match[2] or ""
    try:
        amount = Decimal(number)
    except InvalidOperation:
        return value
    if suffix in _BINARY:
        return _binary_suffix(amount * 2 ** _BINARY[suffix], value)
    exponent = _DECIMAL.get(suffix)
    amount = amount.scaleb(exponent) if exponent is not None else Decimal(f"{number}{suffix}")
    return _decimal_suffix(amount)


def _binary_suffix(amount: Decimal, value: Any) -> str:
    if amount != amount.to_integral_value():
        return str(value)
    integer = int(amount)
    for suffix, power in reversed(_BINARY.items()):
        if integer and integer % 2**power == 0:
            return f"{integer >> power}{suffix}"
    return str(integer)


def _decimal_suffix(amount: Decimal) -> str:
    if amount == 0:
        return "0"
    for suffix, exponent in reversed(_DECIMAL.items()):
        scaled = amount.scaleb(-exponent)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{suffix}"
    return f"{amount.normalize():f}"


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
    ignored: Mapping[str, frozenset[str]] | None = None,
) -> ManifestDiff:
    """Compares two lists of objects; `ignored` has field paths by the text of an object's key."""
    before = {manifest.key.identity: manifest for manifest in old}
    after = {manifest.key.identity: manifest for manifest in new}
    changed = (
        _diff_manifest(before[identity], after[identity], options, ignored or {})
        for identity in sorted(before.keys() & after.keys())
    )
    return ManifestDiff(
        added=tuple(after[identity].key for identity in sorted(after.keys() - before.keys())),
        deleted=tuple(before[identity].key for identity in sorted(before.keys() - after.keys())),
        changed=tuple(change for change in changed if change is not None),
    )


def _diff_manifest(
    old: Manifest, new: Manifest, options: Options, ignored: Mapping[str, frozenset[str]]
) -> ChangedManifest | None:
    paths = ignored.get(old.key.first_generation_text, frozenset())
    paths |= ignored.get(old.key.text, frozenset())
    nodes = compare(
        _normalized(old), _normalized(new), replace(options, ignored=options.ignored | paths)
    )
    return ChangedManifest(old.key, old.kind, tuple(nodes)) if nodes else None


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
