# SPDX-License-Identifier: Apache-2.0
"""The differences of two documents, path by path, and their rendering as text."""

import math
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
"""The value of a side that has nothing at this path; a null is a value."""

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Node:
    """The two values at one path, the old or live side first."""

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
    """Returns the nodes whose path the pattern matches somewhere."""
    compiled = re.compile(pattern)
    return [node for node in nodes if compiled.search(node.where)]


def scalar_text(value: Any) -> str:
    """Writes a scalar without quotes: numbers in the shortest decimal form, no exponent."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return _decimal(value)
        case _:
            return str(value)


def _decimal(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value.is_integer():
        return str(int(value))
    text = repr(value)
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    places = len(digits.partition(".")[2]) - int(exponent)
    return f"{value:.{max(places, 0)}f}"


_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


@dataclass(frozen=True)
class Options:
    """What counts as equal.

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


MASK = "*****"


def render(nodes: Sequence[Node], *, padding: int = 1, masked: tuple[str, ...] = ()) -> str:
    """Writes differences below their ancestors, `-` for the old side and `+` for the new one.

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
    """Returns the lines of the steps above `path` that are not yet on the page."""
    lines: list[str] = []
    open_dash = False
    for index in range(_first_difference(previous, path), len(path) - 1):
        step = path[index]
        if isinstance(step, int):
            lines.append(f"{'  ' * (padding + index)}-")
        elif open_dash:
            lines[-1] += f" {step}:"
        else:
            lines.append(f"{'  ' * (padding + index)}{step}:")
        open_dash = isinstance(step, int)
    return lines


def _first_difference(previous: Path, path: Path) -> int:
    for index, (before, now) in enumerate(zip(previous, path, strict=False)):
        if before != now:
            return index
    return 0


def _entry(step: Path, value: Any) -> Iterator[str]:
    """Yields the lines of a value behind its key or its dash."""
    below = list(_value(value))
    if step and isinstance(step[0], int):
        yield f"- {below[0]}" if below else "-"
        yield from (f"  {line}" for line in below[1:])
        return
    head = f"{step[0]}:" if step else ""
    if _is_nested(value):
        yield head
        yield from (f"  {line}" for line in below)
        return
    yield f"{head} {below[0]}".strip() if below else head
    yield from (f"  {line}" for line in below[1:])


def _value(value: Any) -> Iterator[str]:
    if is_map(value):
        for key in sorted(value):
            yield from _entry((key,), value[key])
    elif is_list(value):
        for element in value:
            yield from _entry((0,), element)
    else:
        yield from scalar_text(value).split("\n")


def _is_nested(value: Any) -> bool:
    return bool(value) and (is_map(value) or is_list(value))
