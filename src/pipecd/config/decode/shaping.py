# SPDX-License-Identifier: Apache-2.0
"""Puts a tree of values into the shape of a type.

Keys get the spelling of the type; null and zero values give way to defaults; unknown keys are
left out and remembered.
"""

from dataclasses import dataclass
from typing import Any

from pipecd.config.decode.explain import unknown_word
from pipecd.config.decode.shape import (
    Anything,
    Items,
    Object,
    Shape,
    Table,
    Unit,
    Word,
    fields_of,
    spellings_of,
)
from pipecd.config.report import Path
from pipecd.config.spec import Spec
from pipecd.config.yamltree import Entry, List, Map, Mark, Node, Scalar, to_plain

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a place."""

    what: str
    mark: Mark
    path: Path


class Shaping:
    """One pass over a tree, and what was found on the way."""

    def __init__(self) -> None:
        self.unknown: list[Finding] = []
        self.tolerated: list[Finding] = []
        """Unknown keys where no reader minds them."""
        self.wrong: list[Finding] = []

    def shaped(self, node: Node, shape: Shape, path: Path) -> Node | None:
        """Return the values that count, or None for one that is as good as absent."""
        is_null = isinstance(node, Scalar) and node.value is None
        if isinstance(shape, Anything) or not is_null:
            return self._present(node, shape, path)
        if isinstance(shape, Unit):
            what = f"invalid {shape.type.__name__.lower()}: null, leave it out or write a value"
            self.wrong.append(Finding(what, node.mark, path))
        return None

    def _present(self, node: Node, shape: Shape, path: Path) -> Node:
        match shape, node:
            case Object(), Map():
                return self._object(node, shape.type, path)
            case Items(), List():
                items = [self._item(n, shape.item, (*path, i)) for i, n in enumerate(node.items)]
                return List(tuple(items), node.mark)
            case Table(), Map():
                values = [(e, self._item(e.value, shape.value, (*path, e.key))) for e in node]
                return Map(tuple(Entry(e.key, value, e.mark) for e, value in values), node.mark)
            case Word(zero=int()), Scalar(value=int() as number) if abs(number) > _LARGEST:
                self.wrong.append(Finding("is too large for a whole number", node.mark, path))
                return Scalar(0, node.mark)
            case _:
                return node

    def _item(self, node: Node, shape: Shape, path: Path) -> Node:
        """Return an element, for which null is the value of an absent one."""
        return self.shaped(node, shape, path) or _zero(shape, node.mark)

    def _object(self, node: Map, spec: type[Spec], path: Path) -> Map:
        fields, spellings = fields_of(spec), spellings_of(spec)
        found: dict[str, Entry] = {}
        for entry in _sorted(node):
            key = entry.key if entry.key in fields else spellings.get(entry.key.lower())
            if key is None:
                what = unknown_word("unknown field", entry.key, fields)
                findings = self.tolerated if spec.tolerant else self.unknown
                findings.append(Finding(what, entry.mark, (*path, entry.key)))
            else:
                found[key] = entry
        kept: list[Entry] = []
        for key, entry in found.items():
            field = fields[key]
            value = self.shaped(entry.value, field.shape, (*path, key))
            if value is not None and not _gives_way(value, field.shape, field.default):
                kept.append(Entry(key, value, entry.mark))
        return Map(tuple(kept), node.mark)


def entry_of(node: Node, key: str) -> Entry | None:
    """Return the entry of an object for a key in any spelling."""
    if not isinstance(node, Map):
        return None
    found = [entry for entry in _sorted(node) if entry.key.lower() == key.lower()]
    return found[-1] if found else None


def _sorted(node: Map) -> list[Entry]:
    """Return entries so that the last spelling of a key wins, as upstream reads them sorted."""
    return sorted(node, key=lambda entry: entry.key)


def built(node: Node, shape: Shape) -> Any:
    """Return the plain values that pydantic checks."""
    match shape, node:
        case Object(), Map():
            fields = fields_of(shape.type)
            return {e.key: built(e.value, fields[e.key].shape) for e in node}
        case Items(), List():
            items = [built(item, shape.item) for item in node.items]
            return tuple(items) if shape.is_tuple else items
        case Table(), Map():
            return {e.key: built(e.value, shape.value) for e in node}
        case _:
            return to_plain(node)


def _gives_way(node: Node, shape: Shape, default: object) -> bool:
    """Say whether a value is the zero of its type, which is the same as none given."""
    if default is None or not isinstance(node, Scalar) or isinstance(node.value, bool):
        return False
    match shape, node.value:
        case Word(zero=str()), value:
            return value == ""
        case Word(zero=int() | float()), int() | float() as value:
            return value == 0
        case Unit(), str() as text:
            return _is_zero(text, shape)
        case Unit(), value:
            return value == 0
        case _:
            return False


def _is_zero(text: str, shape: Unit) -> bool:
    try:
        return str(shape.type.parse(text)).rstrip("s%") == "0"
    except ValueError:
        return False


def _zero(shape: Shape, mark: Mark) -> Node:
    match shape:
        case Word():
            return Scalar(shape.zero, mark)
        case Object() | Table():
            return Map((), mark)
        case Items():
            return List((), mark)
        case Unit() | Anything():
            return Scalar(None, mark)
