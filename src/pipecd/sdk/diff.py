# SPDX-License-Identifier: Apache-2.0
"""Compares two documents path by path, and renders the differences as text."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, TypeGuard


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""The value of a side without this path; null is a value."""

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Node:
    """The two values at one path; the old value is often the live one."""

    path: Path
    old: Any
    new: Any

    @cached_property
    def where(self) -> str:
        """The path as users write it in ignore lists."""
        return ".".join(map(str, self.path))


def is_map(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Reports whether a value has keys."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Reports whether a value has elements."""
    return isinstance(value, list | tuple)


def find(nodes: Iterable[Node], pattern: str) -> list[Node]:
    """Returns the nodes whose path contains a match of the regular expression."""
    compiled = re.compile(pattern)
    return [node for node in nodes if compiled.search(node.where)]


def scalar_text(value: Any) -> str:
    """Writes a scalar without quotes: numbers in the shortest decimal form, no exponent."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer():
            return str(int(value))
        case float() if "e" in (text := repr(value)):
            digits, exponent = text.split("e")
            places = len(digits.partition(".")[2]) - int(exponent)
            return f"{value:.{max(places, 0)}f}"
        case _:
            return str(value)


_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


@dataclass(frozen=True)
class Options:
    """Which values count as equal.

    `subset` skips keys that only the old document has, such as fields that a server adds to a live
    object. `ignored` are paths that are skipped with everything below them.
    """

    equate_empty: bool = False
    subset: bool = False
    numeric_strings: bool = False
    boolean_strings: bool = False
    ignored: frozenset[str] = frozenset()


_STRICT = Options()


def compare(old: Any, new: Any, options: Options = _STRICT) -> list[Node]:
    """Returns the differences of two documents, sorted by their paths as text."""
    nodes = list(_walk((), old, new, options))
    if ignored := options.ignored:
        nodes = [
            Node(
                node.path,
                _filtered(node.old, node.where, ignored),
                _filtered(node.new, node.where, ignored),
            )
            for node in nodes
            if not _is_ignored(node.where, ignored)
        ]
    return sorted(nodes, key=lambda node: node.where)


def _walk(path: Path, old: Any, new: Any, options: Options) -> Iterator[Node]:
    if old is MISSING or new is MISSING:
        present = new if old is MISSING else old
        if present or not options.equate_empty:
            yield Node(path, old, new)
        return
    if not old and not new:
        return
    old, new = _converted(old, new, options)
    if is_map(old) and is_map(new):
        for key in new if options.subset else {**old, **new}:
            yield from _walk((*path, key), old.get(key, MISSING), new.get(key, MISSING), options)
    elif is_list(old) and is_list(new):
        for index, (left, right) in enumerate(zip(old, new, strict=False)):
            yield from _walk((*path, index), left, right, options)
        shared = min(len(old), len(new))
        for index in range(shared, len(old)):
            yield Node((*path, index), old[index], MISSING)
        for index in range(shared, len(new)):
            yield Node((*path, index), MISSING, new[index])
    elif not _is_same(old, new):
        yield Node(path, old, new)


def _converted(old: Any, new: Any, options: Options) -> tuple[Any, Any]:
    """Parses a string as a number or a boolean if the other value is one."""
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


def _filtered(value: Any, where: str, ignored: frozenset[str]) -> Any:
    """Returns a value without its ignored parts."""
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


MASK = "*****"


def render(nodes: Sequence[Node], *, padding: int = 1, masked: tuple[str, ...] = ()) -> str:
    """Renders differences below their ancestors, `-` for the old value and `+` for the new one.

    Values at paths that begin with one of `masked` are hidden.
    """
    lines: list[str] = []
    previous: Path = ()
    for node in nodes:
        lines += _ancestors(previous, node.path, padding)
        depth = padding + len(node.path) - 1
        lines.append(f"{'  ' * depth}#{node.where}")
        hidden = node.where.startswith(masked) if masked else False
        for mark, value in (("-", node.old), ("+", node.new)):
            if value is not MISSING:
                shown = MASK if hidden else value
                lines += [
                    f"{mark}{' ' * (depth * 2 - 1)}{line}" for line in _entry(node.path[-1:], shown)
                ]
        lines.append("")
        previous = node.path
    return "".join(f"{line}\n" for line in lines)


def _ancestors(previous: Path, path: Path, padding: int) -> list[str]:
    """Returns the lines of the ancestors of `path` that `previous` does not share."""
    lines: list[str] = []
    open_dash = False
    pairs = enumerate(zip(previous, path, strict=False))
    first = next((index for index, (before, now) in pairs if before != now), 0)
    for index in range(first, len(path) - 1):
        step = path[index]
        if isinstance(step, int):
            lines.append(f"{'  ' * (padding + index)}-")
        elif open_dash:
            lines[-1] += f" {step}:"
        else:
            lines.append(f"{'  ' * (padding + index)}{step}:")
        open_dash = isinstance(step, int)
    return lines


def _entry(step: Path, value: Any) -> Iterator[str]:
    """Yields the lines of a value after its key or its dash."""
    below: list[str] = []
    if is_map(value):
        below = [line for key in sorted(value) for line in _entry((key,), value[key])]
    elif is_list(value):
        below = [line for element in value for line in _entry((0,), element)]
    else:
        below = scalar_text(value).split("\n")
    if step and isinstance(step[0], int):
        yield f"- {below[0]}" if below else "-"
        yield from (f"  {line}" for line in below[1:])
        return
    head = f"{step[0]}:" if step else ""
    if value and (is_map(value) or is_list(value)):
        yield head
        yield from (f"  {line}" for line in below)
        return
    yield f"{head} {below[0]}".strip() if below else head
    yield from (f"  {line}" for line in below[1:])
