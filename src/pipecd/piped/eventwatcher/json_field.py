# SPDX-License-Identifier: Apache-2.0
"""Replaces values in JSON; comments, which some programs allow in it, are skipped."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.field_tree import (
    MAX_DEPTH,
    ListNode,
    Node,
    ObjectNode,
    ReadOnlyNode,
    TextEdit,
    ValueNode,
    literal_node,
    parse_path,
    set_field,
)

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def replace_json(text: str, path: str, value: str) -> str:
    """The text with a new value at a path; strings stay strings, and numbers numbers."""
    steps = parse_path(path)
    root = _JsonParser(text).parse()
    return set_field(text, [root], path, steps, value)


@dataclass
class _JsonParser:
    """A recursive-descent parser that records where values are."""

    text: str
    at: int = 0

    def parse(self) -> Node:
        root = self._node(0)
        self._skip()
        if self.at < len(self.text):
            raise self._error("the end of the file")
        return root

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _consume(self, sign: str) -> bool:
        self._skip()
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def _node(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise UserMistake(f"its values are nested more than {MAX_DEPTH} deep")
        if self._consume("{"):
            return ObjectNode(tuple(self._entries(depth)))
        if self._consume("["):
            return ListNode(tuple(self._items(depth)))
        start = self.at
        if self.text.startswith('"', start):
            return self._string_leaf(start)
        found = _WORD.match(self.text, start)
        if found is None:
            raise self._error("a value")
        self.at = found.end()
        if found[0] == "null":
            return ReadOnlyNode("is null; give it a first value")
        return literal_node(found[0], start, self.at)

    def _entries(self, depth: int) -> Iterator[tuple[str, Node]]:
        while not self._consume("}"):
            self._skip()
            name = self._string()
            if not self._consume(":"):
                raise self._error("a colon")
            yield name, self._node(depth + 1)
            self._separator("}")

    def _items(self, depth: int) -> Iterator[Node]:
        while not self._consume("]"):
            yield self._node(depth + 1)
            self._separator("]")

    def _separator(self, end: str) -> None:
        """Consumes a comma, which may also follow the last value, or expects the end."""
        if not self._consume(",") and not self.text.startswith(end, self.at):
            raise self._error(f"a comma or {end}")

    def _string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise self._error("a string")
        self.at = found.end()
        return str(json.loads(found[0]))

    def _string_leaf(self, start: int) -> ValueNode:
        value, end = self._string(), self.at

        def write(new: str) -> Iterator[TextEdit]:
            yield TextEdit(start, end, json.dumps(new, ensure_ascii=False))

        return ValueNode(value, write)

    def _error(self, expected: str) -> UserMistake:
        line = self.text.count("\n", 0, self.at) + 1
        return UserMistake(f"it is not valid JSON: {expected} is missing in line {line}")
