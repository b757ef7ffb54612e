# SPDX-License-Identifier: Apache-2.0
"""Field paths such as `$.spec.containers[0].image`, and the values of a file they lead to.

The parsers of YAML, JSON and HCL build a tree of values with their positions in the text; a path
selects values, and only their text is replaced.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

from pipecd.model.errors import UserMistake


@dataclass(frozen=True)
class KeyStep:
    """Selects the value of a key."""

    name: str


@dataclass(frozen=True)
class IndexStep:
    """Selects the item at an index, counted from 0."""

    number: int


@dataclass(frozen=True)
class WildcardStep:
    """Selects all items of a list."""


@dataclass(frozen=True)
class RecursiveStep:
    """Selects the values of a key at any depth."""

    name: str


PathStep: TypeAlias = KeyStep | IndexStep | WildcardStep | RecursiveStep

_STEP = re.compile(
    r"""
    (?P<dots>\.\.?) (?: '(?P<quoted>[^']*)' | (?P<name>[^.\[\]'*]+) )
    | \[ (?: (?P<number>[0-9]{1,9}) | (?P<every>\*)
           | '(?P<single>[^']*)' | "(?P<double>[^"]*)" ) \]
    """,
    re.VERBOSE,
)


def parse_path(path: str) -> tuple[PathStep, ...]:
    """Parses a field path; raises if it is invalid."""
    if not path.startswith("$"):
        raise _invalid_path(path, "it must begin with $, which is the root of the file")
    steps: list[PathStep] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise _invalid_path(path, f"it cannot be parsed from {path[at:]!r} on")
        at = match.end()
        if match["number"] is not None:
            steps.append(IndexStep(int(match["number"])))
        elif match["every"]:
            steps.append(WildcardStep())
        else:
            names = (match["quoted"], match["name"], match["single"], match["double"])
            name = next(name for name in names if name is not None)
            steps.append(RecursiveStep(name) if match["dots"] == ".." else KeyStep(name))
    return tuple(steps)


def _invalid_path(path: str, why: str) -> UserMistake:
    return UserMistake(f"{path!r} is not a path: {why}", hint="write it like $.spec.items[0].name")


MAX_DEPTH = 100
"""The most levels of nested values."""


class TextEdit(NamedTuple):
    """A part of a text and its replacement."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class ValueNode:
    """A single value; `write` returns the edits that set a new one."""

    value: str
    write: Callable[[str], Iterable[TextEdit]]


@dataclass(frozen=True)
class ObjectNode:
    """Values by key; a key may occur several times."""

    entries: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True)
class ListNode:
    """Values in order; with `is_same_name` several values of one key."""

    items: tuple["Node", ...]
    is_same_name: bool = False


@dataclass(frozen=True)
class ReadOnlyNode:
    """A value that cannot be replaced: `why` continues a sentence that begins with its path."""

    why: str


Node: TypeAlias = ValueNode | ObjectNode | ListNode | ReadOnlyNode


_BYTE_ORDER_MARK = "\ufeff"


def replace_field(text: str, parse: Callable[[str], Iterable[Node]], path: str, value: str) -> str:
    """The text with a new value wherever a path selects one.

    `parse` returns the root of each document in the text.
    """
    steps = parse_path(path)
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    text = text.removeprefix(mark)
    nodes = list(parse(text))
    for step in steps:
        nodes = [child for node in nodes for child in _children(node, step)]
    if not nodes:
        raise UserMistake(f"there is no {path} in it", hint="check the path")
    edits = [edit for node in nodes for edit in _edits_of(node, path, value)]
    return mark + apply_edits(text, edits)


def apply_edits(text: str, edits: Iterable[TextEdit]) -> str:
    """Applies edits to a text; equal edits are applied once."""
    parts: list[str] = []
    at = 0
    for edit in sorted(set(edits)):
        parts += text[at : edit.start], edit.text
        at = edit.end
    return "".join((*parts, text[at:]))


def _edits_of(node: Node, path: str, value: str) -> Iterable[TextEdit]:
    match node:
        case ValueNode():
            return () if node.value == value else node.write(value)
        case ReadOnlyNode():
            raise UserMistake(f"{path} {node.why}")
        case ObjectNode():
            raise UserMistake(f"{path} is an object", hint="name one value inside of it")
        case ListNode():
            raise UserMistake(f"{path} is a list", hint="name one of its items, such as [0]")


def _children(node: Node, step: PathStep) -> Iterator[Node]:
    match node, step:
        case ListNode(is_same_name=True), KeyStep() | RecursiveStep():
            for item in node.items:
                yield from _children(item, step)
        case ObjectNode(), KeyStep():
            yield from (child for name, child in node.entries if name == step.name)
        case ListNode(), IndexStep():
            yield from node.items[step.number : step.number + 1]
        case ListNode(), WildcardStep():
            yield from node.items
        case ((ObjectNode() | ListNode()), RecursiveStep()):
            is_object = isinstance(node, ObjectNode)
            entries = node.entries if is_object else [(None, item) for item in node.items]
            for name, child in entries:
                if name == step.name:
                    yield child
                yield from _children(child, step)
        case _:
            return


@dataclass
class TextScanner:
    """The position of a recursive-descent parser in a text."""

    language: ClassVar[str]
    text: str
    at: int = 0

    def consume(self, sign: str) -> bool:
        """Moves behind the sign if it is next, and returns whether it is."""
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def missing(self, expected: str) -> UserMistake:
        """The error that the text does not continue as expected."""
        line = self.text.count("\n", 0, self.at) + 1
        return UserMistake(f"it is not valid {self.language}: {expected} is missing in line {line}")


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def literal_node(word: str, start: int, end: int) -> ValueNode:
    """A number or boolean of JSON or HCL, which only a value of the same type can replace."""
    is_boolean = word in ("true", "false")

    def write(new: str) -> Iterator[TextEdit]:
        fits = new in ("true", "false") if is_boolean else _NUMBER.fullmatch(new)
        if not fits:
            type_ = "true or false" if is_boolean else "a number"
            raise UserMistake(
                f"the value there is {type_}, and {new!r} is not",
                hint="put the value in the file in quotes first",
            )
        yield TextEdit(start, end, new)

    return ValueNode(word, write)
