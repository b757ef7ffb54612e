# SPDX-License-Identifier: Apache-2.0
"""Parses JSON into a tree of values; comments, which some programs allow in it, are skipped."""

import json
import re
from collections.abc import Iterator

from pipecd.config.field_tree import (
    MAX_DEPTH,
    ListNode,
    Node,
    ObjectNode,
    ReadOnlyNode,
    TextEdit,
    TextScanner,
    ValueNode,
    literal_node,
)
from pipecd.model.errors import UserMistake

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def parse_json(text: str) -> list[Node]:
    """The root of the value tree of a JSON file; comments and trailing commas are skipped."""
    parser = _JsonParser(text)
    root = parser.value(0)
    parser.skip()
    if parser.at < len(text):
        raise parser.missing("the end of the file")
    return [root]


class _JsonParser(TextScanner):
    language = "JSON"

    def skip(self) -> None:
        """Skips white space and comments."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at

    def consume(self, sign: str) -> bool:
        self.skip()
        return super().consume(sign)

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise UserMistake(f"its values are nested more than {MAX_DEPTH} deep")
        if self.consume("{"):
            entries: list[tuple[str, Node]] = []
            while not self.consume("}"):
                name = self._string()
                if not self.consume(":"):
                    raise self.missing("a colon")
                entries.append((name, self.value(depth + 1)))
                self._separator("}")
            return ObjectNode(tuple(entries))
        if self.consume("["):
            items: list[Node] = []
            while not self.consume("]"):
                items.append(self.value(depth + 1))
                self._separator("]")
            return ListNode(tuple(items))
        start = self.at
        if self.text.startswith('"', start):
            value, end = self._string(), self.at

            def write(new: str) -> Iterator[TextEdit]:
                yield TextEdit(start, end, json.dumps(new, ensure_ascii=False))

            return ValueNode(value, write)
        word = _WORD.match(self.text, start)
        if word is None:
            raise self.missing("a value")
        self.at = word.end()
        if word[0] == "null":
            return ReadOnlyNode("is null; give it a first value")
        return literal_node(word[0], start, self.at)

    def _separator(self, end: str) -> None:
        """Consumes a comma, which may also follow the last value, or expects the end."""
        if not self.consume(",") and not self.text.startswith(end, self.at):
            raise self.missing(f"a comma or {end}")

    def _string(self) -> str:
        string = _STRING.match(self.text, self.at)
        if string is None:
            raise self.missing("a string")
        self.at = string.end()
        return str(json.loads(string[0]))
