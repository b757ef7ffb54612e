# SPDX-License-Identifier: Apache-2.0
"""Replaces values in HCL, the language of Terraform files.

A path names the type of a block, its labels and the attribute: `$.module.web.version`,
`$.resource.aws_instance.web.tags.Name`. Among several blocks of one name `[0]` chooses the first.
"""

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

SPACE = re.compile(r"[ \t]*(?:\r(?!\n))?")
COMMENT = re.compile(r"(?:#|//)[^\r\n]*|/\*.*?\*/", re.DOTALL)
IDENTIFIER = re.compile(r"[^\W\d][\w-]*")
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![\w.])")
_HEREDOC = re.compile(r"<<-?([^\W\d][\w-]*)\r?\n")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([$%])\4\{", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}

_EXPRESSION = ReadOnlyNode("is computed by an expression; only a plain value can be replaced")
_FOR = re.compile(r"\{\s*for\b")


def replace_hcl(text: str, path: str, value: str) -> str:
    """The text with a new value at a path; strings stay strings, and numbers numbers."""
    steps = parse_path(path)
    root = _HclParser(text).parse()
    return set_field(text, [root], path, steps, value)


@dataclass
class _HclParser:
    """A recursive-descent parser that records where values are."""

    text: str
    at: int = 0

    def parse(self) -> ObjectNode:
        self.at = 1 if self.text.startswith("\ufeff") else 0
        root = self._body(0)
        if self.at < len(self.text):
            raise self._error("the end of the file")
        return root

    def _body(self, depth: int) -> ObjectNode:
        """Attributes and blocks up to a closing brace or the end of the file."""
        if depth > MAX_DEPTH:
            raise UserMistake(f"its blocks are nested more than {MAX_DEPTH} deep")
        found: list[tuple[tuple[str, ...], Node]] = []
        while True:
            self._skip(lines=True)
            if self.at >= len(self.text) or self.text[self.at] == "}":
                return _nested(found)
            names = [self._identifier()]
            self._skip()
            if self._consume("="):
                found.append(((names[0],), self._expression("\n", depth)))
                continue
            while not self._consume("{"):
                names.append(self._label())
                self._skip()
            found.append((tuple(names), self._body(depth + 1)))
            if not self._consume("}"):
                raise self._error("a closing brace")

    def _expression(self, ends: str, depth: int) -> Node:
        """A value: a literal, an object, a list, or an expression."""
        if depth > MAX_DEPTH:
            raise UserMistake(f"its values are nested more than {MAX_DEPTH} deep")
        self._skip(lines="\n" not in ends)
        start = self.at
        node = self._term(depth)
        self._skip(lines="\n" not in ends)
        if self._is_end(ends):
            return node
        # There is more than one term, so it is an expression.
        self.at = start
        self._skip_expression(ends)
        return _EXPRESSION

    def _term(self, depth: int) -> Node:
        text, at = self.text, self.at
        match text[at : at + 1]:
            case '"':
                return self._string()
            case "{" if not _FOR.match(text, at):
                self.at += 1
                return _nested(list(self._entries(depth + 1)))
            case "[":
                self.at += 1
                return ListNode(tuple(self._items(depth + 1)))
            case _:
                return self._word_or_number()

    def _word_or_number(self) -> Node:
        start = self.at
        found = NUMBER.match(self.text, start) or IDENTIFIER.match(self.text, start)
        if found is None:
            self.at = _end_of_heredoc(self.text, start)
            return _EXPRESSION
        self.at, word = found.end(), found[0]
        if word == "null":
            return ReadOnlyNode("is null; give it a first value")
        is_literal = word in ("true", "false") or not IDENTIFIER.match(word)
        return literal_node(word, start, self.at) if is_literal else _EXPRESSION

    def _entries(self, depth: int) -> Iterator[tuple[tuple[str, ...], Node]]:
        while True:
            self._skip(lines=True)
            if self._consume("}"):
                return
            name = self._label()
            self._skip()
            if not self._consume("=") and not self._consume(":"):
                raise self._error("an equals sign")
            yield (name,), self._expression(",\n}", depth)
            self._skip()
            self._consume(",")

    def _items(self, depth: int) -> Iterator[Node]:
        while True:
            self._skip(lines=True)
            if self._consume("]"):
                return
            if self.at >= len(self.text):
                raise self._error("a closing bracket")
            yield self._expression(",]", depth)
            self._skip(lines=True)
            self._consume(",")

    def _string(self) -> Node:
        start = self.at
        self.at = end = _end_of_string(self.text, start)
        raw = self.text[start:end]
        if not _is_plain(raw):
            return _EXPRESSION

        def write(new: str) -> Iterator[TextEdit]:
            yield TextEdit(start, end, quoted(new))

        return ValueNode(_unquote(raw), write)

    def _skip_expression(self, ends: str) -> None:
        while not self._is_end(ends):
            if self.text[self.at] in "([{":
                self.at = _end_of_bracket(self.text, self.at)
            elif self.text[self.at] == '"':
                self.at = _end_of_string(self.text, self.at)
            else:
                self.at = _end_of_heredoc(self.text, self.at)
            self._skip(lines="\n" not in ends)

    def _is_end(self, ends: str) -> bool:
        if self.at >= len(self.text):
            return True
        character = self.text[self.at]
        return character in ends or character == "}" or (character == "\r" and "\n" in ends)

    def _skip(self, *, lines: bool = False) -> None:
        while True:
            start = self.at
            for pattern in (SPACE, COMMENT):
                found = pattern.match(self.text, self.at)
                self.at = found.end() if found else self.at
            while lines and self.text.startswith(("\n", "\r"), self.at):
                self.at += 1
            if self.at == start:
                return

    def _consume(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def _identifier(self) -> str:
        found = IDENTIFIER.match(self.text, self.at)
        if found is None:
            raise self._error("a name")
        self.at = found.end()
        return found[0]

    def _label(self) -> str:
        """An identifier, a quoted label, a number, or the text of a computed key."""
        if self.text.startswith('"', self.at):
            start, self.at = self.at, _end_of_string(self.text, self.at)
            return _unquote(self.text[start : self.at])
        if self.text.startswith("(", self.at):
            start, self.at = self.at, _end_of_bracket(self.text, self.at)
            return self.text[start : self.at]
        if found := NUMBER.match(self.text, self.at):
            self.at = found.end()
            return found[0]
        return self._identifier()

    def _error(self, expected: str) -> UserMistake:
        line = self.text.count("\n", 0, self.at) + 1
        return UserMistake(f"it is not valid HCL: {expected} is missing in line {line}")


def _nested(found: list[tuple[tuple[str, ...], Node]]) -> ObjectNode:
    """Blocks by their type, then by each of their labels."""
    by_name: dict[str, list[tuple[tuple[str, ...], Node]]] = {}
    for names, node in found:
        by_name.setdefault(names[0], []).append((names[1:], node))
    return ObjectNode(tuple((name, _merged(rest)) for name, rest in by_name.items()))


def _merged(found: list[tuple[tuple[str, ...], Node]]) -> Node:
    ended = [node for names, node in found if not names]
    labelled = [(names, node) for names, node in found if names]
    nodes = [*ended, *([_nested(labelled)] if labelled else [])]
    return nodes[0] if len(nodes) == 1 else ListNode(tuple(nodes), is_same_name=True)


def _end_of_string(text: str, at: int, depth: int = 0) -> int:
    """The index after a quoted string that begins here; its templates may contain quotes."""
    start, at = at, at + 1
    while at < len(text) and text[at] != "\n":
        if text[at] == '"':
            return at + 1
        if text[at] == "\\":
            at += 2
        elif text.startswith(("$${", "%%{"), at):
            at += 3
        elif text.startswith(("${", "%{"), at):
            at = _end_of_bracket(text, at + 1, depth + 1)
        else:
            at += 1
    raise _unterminated(text, start, "a string")


def _end_of_bracket(text: str, at: int, depth: int = 0) -> int:
    """The index after the bracket that closes the one that opens here."""
    if depth > MAX_DEPTH:
        raise UserMistake(f"its values are nested more than {MAX_DEPTH} deep")
    start, closing = at, _CLOSING[text[at]]
    at += 1
    while at < len(text):
        if text[at] == closing:
            return at + 1
        if text[at] in _CLOSING:
            at = _end_of_bracket(text, at, depth + 1)
        elif text[at] == '"':
            at = _end_of_string(text, at, depth + 1)
        elif found := COMMENT.match(text, at):
            at = found.end()
        else:
            at = _end_of_heredoc(text, at)
    raise _unterminated(text, start, "a bracket")


def _end_of_heredoc(text: str, at: int) -> int:
    """The index after a heredoc that begins here, or after one character of anything else."""
    opened = _HEREDOC.match(text, at)
    if opened is None:
        return at + 1
    closed = re.compile(rf"^[ \t]*{opened[1]}(?=[ \t]*\r?$)", re.MULTILINE).search(
        text, opened.end()
    )
    if closed is None:
        raise _unterminated(text, at, "a heredoc")
    return closed.end()


def _is_plain(raw: str) -> bool:
    """Whether a quoted string contains no template."""
    bare = re.sub(r"\\.|([$%])\1\{", "", raw)
    return "${" not in bare and "%{" not in bare


def _unquote(raw: str) -> str:
    """The value of a quoted string."""

    def meaning(found: re.Match[str]) -> str:
        if number := found[1] or found[2]:
            return chr(int(number, 16)) if int(number, 16) < 0x110000 else found[0]
        return f"{found[4]}{{" if found[4] else _ESCAPED.get(found[3], found[0])

    return _ESCAPE.sub(meaning, raw[1:-1])


def quoted(value: str) -> str:
    """A value as a quoted string without templates."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    for character, name in (("\n", "n"), ("\r", "r"), ("\t", "t")):
        escaped = escaped.replace(character, f"\\{name}")
    return '"' + re.sub(r"([$%])(?=\{)", r"\1\1", escaped) + '"'


def _unterminated(text: str, at: int, what: str) -> UserMistake:
    line = text.count("\n", 0, at) + 1
    return UserMistake(f"it is not valid HCL: {what} in line {line} does not end")
