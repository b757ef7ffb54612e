# SPDX-License-Identifier: Apache-2.0
"""What the formats have in common: values that know where they stand and how they are written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.replace.fieldpath import Anywhere, Every, Index, Key, Step

DEEPEST = 100
"""The most levels of values inside values."""


class Splice(NamedTuple):
    """A part of a text and what shall stand there instead."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Leaf:
    """A single value; `write` says what to change so that it is another one."""

    value: str
    write: Callable[[str], Iterable[Splice]]


@dataclass(frozen=True)
class Fork:
    """Values by name; a name may occur several times."""

    entries: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True)
class Row:
    """Values in order; with `is_same_name` those that one name has several of."""

    items: tuple["Node", ...]
    is_same_name: bool = False


@dataclass(frozen=True)
class Closed:
    """Something that no event can change: `why` continues a sentence that begins with its path."""

    why: str


Node: TypeAlias = Leaf | Fork | Row | Closed


def set_field(
    text: str, roots: Sequence[Node], path: str, steps: Sequence[Step], value: str
) -> str:
    """The text with another value at every place that a path leads to."""
    found = list(roots)
    for step in steps:
        found = [child for node in found for child in _below(node, step)]
    if not found:
        raise UserMistake(f"there is no {path} in it", hint="check the path")
    return spliced(text, [splice for node in found for splice in _written(node, path, value)])


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """The text with parts of it replaced; places that are reached twice are replaced once."""
    parts: list[str] = []
    at = 0
    for splice in sorted(set(splices)):
        parts += text[at : splice.start], splice.text
        at = splice.end
    return "".join((*parts, text[at:]))


def _written(node: Node, path: str, value: str) -> Iterable[Splice]:
    match node:
        case Leaf():
            return () if node.value == value else node.write(value)
        case Closed():
            raise UserMistake(f"{path} {node.why}")
        case Fork():
            raise UserMistake(f"{path} is an object", hint="name one value inside of it")
        case Row():
            raise UserMistake(f"{path} is a list", hint="name one of its items, such as [0]")


def _below(node: Node, step: Step) -> Iterator[Node]:
    match node, step:
        case Row(is_same_name=True), Key() | Anywhere():
            for item in node.items:
                yield from _below(item, step)
        case Fork(), Key():
            yield from (child for name, child in node.entries if name == step.name)
        case Row(), Index():
            yield from node.items[step.number : step.number + 1]
        case Row(), Every():
            yield from node.items
        case ((Fork() | Row()), Anywhere()):
            for name, child in _entries(node):
                if name == step.name:
                    yield child
                yield from _below(child, step)
        case _:
            return


def _entries(node: Fork | Row) -> Iterable[tuple[str | None, Node]]:
    return node.entries if isinstance(node, Fork) else ((None, item) for item in node.items)
