# SPDX-License-Identifier: Apache-2.0
"""Values of a file with the place where each one stands."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

DEEPEST = 100
"""The most levels of values inside values."""

Value: TypeAlias = bool | int | float | str | None


class Mark(NamedTuple):
    """A place in a file; line and column count from 1, 0 is no place."""

    line: int
    column: int


NOWHERE = Mark(0, 0)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value."""

    value: Value
    mark: Mark = NOWHERE


@dataclass(frozen=True, slots=True)
class List:
    """Values in order."""

    items: tuple["Node", ...]
    mark: Mark = NOWHERE


class Entry(NamedTuple):
    """One key of an object with its value."""

    key: str
    value: "Node"
    mark: Mark = NOWHERE


@dataclass(frozen=True, slots=True)
class Map:
    """Values by key, every key once."""

    entries: tuple[Entry, ...]
    mark: Mark = NOWHERE

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def get(self, key: str) -> Entry | None:
        """Return the entry spelled exactly so."""
        return next((entry for entry in self.entries if entry.key == key), None)


Node: TypeAlias = Scalar | List | Map


def to_plain(node: Node) -> Any:
    """Return the values of a tree as `json.loads` would."""
    match node:
        case Scalar():
            return node.value
        case List():
            return [to_plain(item) for item in node.items]
        case Map():
            return {entry.key: to_plain(entry.value) for entry in node.entries}


def of_plain(value: object, depth: int = 0) -> Node:
    """Return the tree of values that `json.loads` returned; raise ValueError for any others."""
    if depth > DEEPEST:
        raise ValueError(f"values are nested more than {DEEPEST} deep")
    match value:
        case Mapping():
            pairs: Mapping[Any, object] = value  # pyright: ignore[reportUnknownVariableType]
            return Map(tuple(Entry(_key(k), of_plain(v, depth + 1)) for k, v in pairs.items()))
        case list() | tuple():
            items: list[object] | tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return List(tuple(of_plain(item, depth + 1) for item in items))
        case None | bool() | int() | str():
            return Scalar(value)
        case float() if math.isfinite(value):
            return Scalar(int(value) if value.is_integer() else value)
        case _:
            raise ValueError(f"a {type(value).__name__} cannot stand in a configuration")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError("a key must be a string")  # noqa: TRY004
    return key
