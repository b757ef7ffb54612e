# SPDX-License-Identifier: Apache-2.0
"""Differences as the text that consoles colour by the first character of a line."""

from collections.abc import Iterator, Sequence
from typing import Any

from pipecd.sdk.diff.node import MISSING, Node, Path, is_list, is_map, scalar_text

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
