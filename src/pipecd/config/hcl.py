# SPDX-License-Identifier: Apache-2.0
"""Parses HCL, the language of Terraform files, into a tree of values.

A path names the type of a block, its labels and the attribute: `$.module.web.version`,
`$.resource.aws_instance.web.tags.Name`. Among several blocks of one name `[0]` chooses the first.
"""

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


def parse_hcl(text: str) -> list[Node]:
    """The root of the value tree of an HCL file."""
    parser = _HclParser(text)
    root = parser.body(0)
    if parser.at < len(text):
        raise parser.missing("the end of the file")
    return [root]


class _HclParser(TextScanner):
    language = "HCL"

    def body(self, depth: int) -> ObjectNode:
        """Attributes and blocks up to a closing brace or the end of the file."""
        if depth > MAX_DEPTH:
            raise UserMistake(f"its blocks are nested more than {MAX_DEPTH} deep")
        entries: list[tuple[tuple[str, ...], Node]] = []
        while True:
            self._skip(lines=True)
            if self.at >= len(self.text) or self.text[self.at] == "}":
                return _nested(entries)
            names = [self._identifier()]
            self._skip()
            if self.consume("="):
                entries.append(((names[0],), self._expression("\n", depth)))
                continue
            while not self.consume("{"):
                names.append(self._label())
                if len(names) > MAX_DEPTH:
                    raise UserMistake(f"a block has more than {MAX_DEPTH} labels")
                self._skip()
            entries.append((tuple(names), self.body(depth + 1)))
            if not self.consume("}"):
                raise self.missing("a closing brace")

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
        while not self._is_end(ends):
            if self.text[self.at] in "([{":
                self.at = _end_of_bracket(self.text, self.at)
            elif self.text[self.at] == '"':
                self.at = _end_of_string(self.text, self.at)
            else:
                self.at = _end_of_heredoc(self.text, self.at)
            self._skip(lines="\n" not in ends)
        return _EXPRESSION

    def _term(self, depth: int) -> Node:
        text, at = self.text, self.at
        if text.startswith('"', at):
            return self._string()
        if text.startswith("{", at) and not _FOR.match(text, at):
            self.at += 1
            return self._object(depth + 1)
        if text.startswith("[", at):
            self.at += 1
            items: list[Node] = []
            self._skip(lines=True)
            while not self.consume("]"):
                if self.at >= len(text):
                    raise self.missing("a closing bracket")
                items.append(self._expression(",]", depth + 1))
                self._skip(lines=True)
                if not self.consume(",") and not text.startswith("]", self.at):
                    raise self.missing("a closing bracket")
                self._skip(lines=True)
            return ListNode(tuple(items))
        word = NUMBER.match(text, at) or IDENTIFIER.match(text, at)
        if word is None:
            self.at = _end_of_heredoc(text, at)
            return _EXPRESSION
        self.at = word.end()
        if word[0] == "null":
            return ReadOnlyNode("is null; give it a first value")
        is_literal = word[0] in ("true", "false") or word.re is NUMBER
        return literal_node(word[0], at, self.at) if is_literal else _EXPRESSION

    def _object(self, depth: int) -> ObjectNode:
        entries: list[tuple[tuple[str, ...], Node]] = []
        self._skip(lines=True)
        while not self.consume("}"):
            name = self._label()
            self._skip()
            if not self.consume("=") and not self.consume(":"):
                raise self.missing("an equals sign")
            entries.append(((name,), self._expression(",\n}", depth)))
            self._skip()
            self.consume(",")
            self._skip(lines=True)
        return _nested(entries)

    def _string(self) -> Node:
        start = self.at
        self.at = end = _end_of_string(self.text, start)
        raw = self.text[start:end]
        unescaped = re.sub(r"\\.|([$%])\1\{", "", raw)
        if "${" in unescaped or "%{" in unescaped:
            return _EXPRESSION

        def write(new: str) -> Iterator[TextEdit]:
            yield TextEdit(start, end, quoted(new))

        return ValueNode(_unquote(raw), write)

    def _is_end(self, ends: str) -> bool:
        if self.at >= len(self.text):
            return True
        character = self.text[self.at]
        return character in ends or character == "}" or (character == "\r" and "\n" in ends)

    def _skip(self, *, lines: bool = False) -> None:
        while True:
            start = self.at
            for pattern in (SPACE, COMMENT):
                match = pattern.match(self.text, self.at)
                self.at = match.end() if match else self.at
            while lines and self.text.startswith(("\n", "\r"), self.at):
                self.at += 1
            if self.at == start:
                return

    def _identifier(self) -> str:
        match = IDENTIFIER.match(self.text, self.at)
        if match is None:
            raise self.missing("a name")
        self.at = match.end()
        return match[0]

    def _label(self) -> str:
        """An identifier, a quoted label, a number, or the text of a computed key."""
        if self.text.startswith('"', self.at):
            start, self.at = self.at, _end_of_string(self.text, self.at)
            return _unquote(self.text[start : self.at])
        if self.text.startswith("(", self.at):
            start, self.at = self.at, _end_of_bracket(self.text, self.at)
            return self.text[start : self.at]
        if match := NUMBER.match(self.text, self.at):
            self.at = match.end()
            return match[0]
        return self._identifier()


def _nested(entries: list[tuple[tuple[str, ...], Node]]) -> ObjectNode:
    """Blocks by their type, then by each of their labels."""
    by_name: dict[str, list[tuple[tuple[str, ...], Node]]] = {}
    for names, node in entries:
        by_name.setdefault(names[0], []).append((names[1:], node))
    merged: list[tuple[str, Node]] = []
    for name, rest in by_name.items():
        nodes = [node for labels, node in rest if not labels]
        if labelled := [(labels, node) for labels, node in rest if labels]:
            nodes.append(_nested(labelled))
        is_single = len(nodes) == 1
        merged.append((name, nodes[0] if is_single else ListNode(tuple(nodes), is_same_name=True)))
    return ObjectNode(tuple(merged))


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
        elif match := COMMENT.match(text, at):
            at = match.end()
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


def _unquote(raw: str) -> str:
    """The value of a quoted string."""

    def meaning(match: re.Match[str]) -> str:
        if number := match[1] or match[2]:
            return chr(int(number, 16)) if int(number, 16) < 0x110000 else match[0]
        return f"{match[4]}{{" if match[4] else _ESCAPED.get(match[3], match[0])

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
