# SPDX-License-Identifier: Apache-2.0
"""Compares two documents of maps, lists and scalars.

The rules are upstream's, so that drift and previews of one application say the same under both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipecd.sdk.diff.node import MISSING, Node, Path, is_list, is_map

_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


@dataclass(frozen=True)
class Options:
    """What counts as the same.

    `subset` leaves out keys that only the old side has: a live object carries what servers add.
    `ignored` are paths whose values, and all below them, do not matter.
    """

    equate_empty: bool = False
    subset: bool = False
    numeric_strings: bool = False
    boolean_strings: bool = False
    ignored: frozenset[str] = frozenset()


_STRICT = Options()


def compare(old: Any, new: Any, options: Options = _STRICT) -> list[Node]:
    """Returns where two documents differ, in the order of the paths as text."""
    nodes = (_without_ignored(node, options.ignored) for node in _walk((), old, new, options))
    return sorted((node for node in nodes if node is not None), key=lambda node: node.where)


def _walk(path: Path, old: Any, new: Any, options: Options) -> Iterator[Node]:
    if old is MISSING or new is MISSING:
        present = new if old is MISSING else old
        if not (options.equate_empty and _is_empty(present)):
            yield Node(path, old, new)
        return
    if _is_empty(old) and _is_empty(new):
        return
    old, new = _alike(old, new, options)
    if is_map(old) and is_map(new):
        yield from _walk_map(path, old, new, options)
    elif is_list(old) and is_list(new):
        yield from _walk_list(path, old, new, options)
    elif not _is_same(old, new):
        yield Node(path, old, new)


def _walk_map(
    path: Path, old: Mapping[str, Any], new: Mapping[str, Any], options: Options
) -> Iterator[Node]:
    keys = new if options.subset else {**old, **new}
    for key in keys:
        yield from _walk((*path, key), old.get(key, MISSING), new.get(key, MISSING), options)


def _walk_list(
    path: Path, old: Sequence[Any], new: Sequence[Any], options: Options
) -> Iterator[Node]:
    for index, (left, right) in enumerate(zip(old, new, strict=False)):
        yield from _walk((*path, index), left, right, options)
    shared = min(len(old), len(new))
    for index in range(shared, len(old)):
        yield Node((*path, index), old[index], MISSING)
    for index in range(shared, len(new)):
        yield Node((*path, index), MISSING, new[index])


def _alike(old: Any, new: Any, options: Options) -> tuple[Any, Any]:
    """Reads a text as the number or the boolean that stands on the other side."""
    if options.numeric_strings:
        if _is_number(old):
            return old, _number(new)
        if _is_number(new):
            return _number(old), new
    if options.boolean_strings:
        if isinstance(old, bool) and isinstance(new, str):
            return old, _BOOLEANS.get(new, new)
        if isinstance(new, bool) and isinstance(old, str):
            return _BOOLEANS.get(old, old), new
    return old, new


def _number(value: Any) -> Any:
    if not isinstance(value, str) or value != value.strip():
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same(old: Any, new: Any) -> bool:
    if _is_number(old) and _is_number(new):
        return float(old) == float(new)
    return type(old) is type(new) and old == new


def _is_empty(value: Any) -> bool:
    return not value


def _without_ignored(node: Node, ignored: frozenset[str]) -> Node | None:
    """Takes ignored parts out of a difference; the difference itself stays unless it is one."""
    if not ignored:
        return node
    if _is_ignored(node.where, ignored):
        return None
    return Node(
        node.path,
        _filtered(node.old, node.where, ignored),
        _filtered(node.new, node.where, ignored),
    )


def _filtered(value: Any, where: str, ignored: frozenset[str]) -> Any:
    if is_map(value):
        return {
            key: _filtered(below, f"{where}.{key}", ignored)
            for key, below in value.items()
            if not _is_ignored(f"{where}.{key}", ignored)
        }
    if is_list(value):
        return [
            _filtered(below, f"{where}.{index}", ignored)
            for index, below in enumerate(value)
            if not _is_ignored(f"{where}.{index}", ignored)
        ]
    return value


def _is_ignored(where: str, ignored: frozenset[str]) -> bool:
    if where in ignored:
        return True
    steps = where.split(".")
    return any(".".join(steps[:count]) in ignored for count in range(1, len(steps)))
