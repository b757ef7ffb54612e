# SPDX-License-Identifier: Apache-2.0
"""Replaces values in YAML by the places that its parser reports; nothing is written anew."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from pipecd.config.yaml_tree import EndlessNumber, resolve
from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.replace.fieldpath import parse_path
from pipecd.piped.eventwatcher.replace.tree import (
    DEEPEST,
    Closed,
    Fork,
    Leaf,
    Node,
    Row,
    Splice,
    set_field,
)
from pipecd.piped.eventwatcher.replace.yamlstyle import Block, rewritten

_BYTE_ORDER_MARK = "\ufeff"
# An anchor or a tag in front of a value, with the space behind it.
_PROPERTY = re.compile(r"[&!][^\s]*(?:[ \t]+|[ \t]*(?:#[^\r\n]*)?\r?\n)*")


def replace_yaml(text: str, path: str, value: str) -> str:
    """The text with another value at a path, in every document that has it."""
    steps = parse_path(path)
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    bare = text.removeprefix(mark)
    return mark + set_field(bare, _documents(bare), path, steps, value)


def _documents(text: str) -> list[Node]:
    parser = yaml.CSafeLoader(text.encode())
    try:
        return list(_Reading(text, parser).documents())
    except yaml.MarkedYAMLError as e:
        line = f" in line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise UserMistake(f"it is not valid YAML: {e.problem or e.context}{line}") from e
    except yaml.YAMLError as e:
        raise UserMistake("it is not valid YAML: it contains characters that YAML forbids") from e
    finally:
        parser.dispose()


@dataclass
class _Reading:
    """One pass over the events of a text."""

    text: str
    parser: Any

    def __post_init__(self) -> None:
        self._anchors: dict[str, str | None] = {}

    def documents(self) -> Iterator[Node]:
        while self.parser.check_event():
            event = self.parser.get_event()
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                yield self._node(self.parser.get_event(), 0, is_flow=False)

    def _node(self, event: Any, depth: int, *, is_flow: bool) -> Node:
        if depth > DEEPEST:
            raise UserMistake(f"its values are nested more than {DEEPEST} deep")
        match event:
            case yaml.MappingStartEvent():
                self._mark(event)
                is_flow = is_flow or bool(event.flow_style)
                return Fork(tuple(self._pairs(depth + 1, is_flow=is_flow)))
            case yaml.SequenceStartEvent():
                self._mark(event)
                is_flow = is_flow or bool(event.flow_style)
                items = [self._node(e, depth + 1, is_flow=is_flow) for e in self._inside()]
                return Row(tuple(items))
            case yaml.AliasEvent():
                return self._alias(event, is_flow=is_flow)
            case _:
                return self._scalar(event, is_flow=is_flow)

    def _inside(self) -> Iterator[Any]:
        while not isinstance(event := self.parser.get_event(), yaml.CollectionEndEvent):
            yield event

    def _pairs(self, depth: int, *, is_flow: bool) -> Iterator[tuple[str, Node]]:
        for event in self._inside():
            key = self._node(event, depth, is_flow=is_flow)
            value = self._node(self.parser.get_event(), depth, is_flow=is_flow)
            # What is no text cannot be named by a path.
            if isinstance(key, Leaf):
                yield key.value, value

    def _mark(self, event: Any, value: str | None = None) -> None:
        if event.anchor:
            self._anchors[event.anchor] = value

    def _alias(self, event: Any, *, is_flow: bool) -> Node:
        value = self._anchors.get(event.anchor)
        if value is None:
            return Closed(f"is what &{event.anchor} marks; name the place of the mark instead")
        start, end = event.start_mark.index, event.end_mark.index

        def write(new: str) -> Iterator[Splice]:
            # Only this place is meant, so it no longer shares the value of the others.
            yield Splice(start, end, rewritten("", value, new, is_flow=is_flow))

        return Leaf(value, write)

    def _scalar(self, event: Any, *, is_flow: bool) -> Node:
        value: str = event.value
        self._mark(event, value)
        start, end = event.start_mark.index, event.end_mark.index
        while self.text.startswith(("&", "!"), start) and (
            found := _PROPERTY.match(self.text, start, end)
        ):
            start = found.end()
        if not event.style and _is_null(value):
            return Closed("is null; give it a first value")
        if event.style in ("|", ">"):
            block = Block(self.text, start, end, event.style)
            return Leaf(block.content(value), block.written)

        def write(new: str) -> Iterator[Splice]:
            yield Splice(start, end, rewritten(event.style or "", value, new, is_flow=is_flow))

        return Leaf(value, write)


def _is_null(word: str) -> bool:
    try:
        return resolve(word) is None
    except EndlessNumber:
        return False
