# SPDX-License-Identifier: Apache-2.0
"""Where in a file a value stands that is known by its path."""

from pipecd.config.decode.shape import Anything, Items, Object, Shape, Table, fields_of
from pipecd.config.report import Path
from pipecd.config.yamltree import List, Map, Mark, Node


def place(node: Node, shape: Shape, loc: Path) -> tuple[Path, Mark]:
    """Return the path of a place that pydantic named, and its mark.

    What is absent has the mark of the object it is absent from.
    """
    path: Path = ()
    for at, part in enumerate(loc):
        child = _child(node, shape, part)
        if child is None:
            is_key = at == len(loc) - 1 and part != "[key]"
            return ((*path, _key(shape, part)) if is_key else path), node.mark
        node, shape = child
        path = (*path, part)
    return path, node.mark


def _key(shape: Shape, part: int | str) -> int | str:
    """Return the key that files write; pydantic names an absent field by its attribute."""
    if not isinstance(shape, Object):
        return part
    return next((key for key, f in fields_of(shape.type).items() if f.name == part), part)


def _child(node: Node, shape: Shape, part: int | str) -> tuple[Node, Shape] | None:
    match node, part:
        case Map(), str():
            entry = node.get(part)
            return (entry.value, _shape_at(shape, part)) if entry else None
        case List(), int() if part < len(node.items):
            return node.items[part], shape.item if isinstance(shape, Items) else Anything()
        case _:
            return None


def _shape_at(shape: Shape, key: str) -> Shape:
    match shape:
        case Object():
            fields = fields_of(shape.type)
            return fields[key].shape if key in fields else Anything()
        case Table():
            return shape.value
        case _:
            return Anything()
