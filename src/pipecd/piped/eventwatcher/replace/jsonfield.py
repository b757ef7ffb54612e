# SPDX-License-Identifier: Apache-2.0
"""Replaces values in JSON; comments, which some programs allow in it, are skipped."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.replace.fieldpath import parse_path
from pipecd.piped.eventwatcher.replace.literal import literal
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

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def replace_json(text: str, path: str, value: str) -> str:
    """The text with another value at a path; what is text stays text, a number a number."""
    steps = parse_path(path)
    reading = _Reading(text)
    root = reading.whole()
    return set_field(text, [root], path, steps, value)


@dataclass
class _Reading:
    """One pass over a text."""

    text: str
    at: int = 0

    def whole(self) -> Node:
        root = self._node(0)
        self._skip()
        if self.at < len(self.text):
            raise self._mistake("the end of the file")
        return root

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _sign(self, sign: str) -> bool:
        self._skip()
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def _node(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise UserMistake(f"its values are nested more than {DEEPEST} deep")
        if self._sign("{"):
            return Fork(tuple(self._entries(depth)))
        if self._sign("["):
            return Row(tuple(self._items(depth)))
        start = self.at
        if self.text.startswith('"', start):
            return self._string_leaf(start)
        found = _WORD.match(self.text, start)
        if found is None:
            raise self._mistake("a value")
        self.at = found.end()
        if found[0] == "null":
            return Closed("is null; give it a first value")
        return literal(found[0], start, self.at)

    def _entries(self, depth: int) -> Iterator[tuple[str, Node]]:
        while not self._sign("}"):
            self._skip()
            name = self._string()
            if not self._sign(":"):
                raise self._mistake("a colon")
            yield name, self._node(depth + 1)
            self._divide("}")

    def _items(self, depth: int) -> Iterator[Node]:
        while not self._sign("]"):
            yield self._node(depth + 1)
            self._divide("]")

    def _divide(self, end: str) -> None:
        """Goes past a comma, which may also follow the last value, or finds the end."""
        if not self._sign(",") and not self.text.startswith(end, self.at):
            raise self._mistake(f"a comma or {end}")

    def _string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise self._mistake("text in double quotes")
        self.at = found.end()
        return str(json.loads(found[0]))

    def _string_leaf(self, start: int) -> Leaf:
        value, end = self._string(), self.at

        def write(new: str) -> Iterator[Splice]:
            yield Splice(start, end, json.dumps(new, ensure_ascii=False))

        return Leaf(value, write)

    def _mistake(self, wanted: str) -> UserMistake:
        line = self.text.count("\n", 0, self.at) + 1
        return UserMistake(f"it is not valid JSON: {wanted} is missing in line {line}")
