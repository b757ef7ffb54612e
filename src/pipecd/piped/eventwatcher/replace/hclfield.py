# SPDX-License-Identifier: Apache-2.0
"""Replaces values in HCL, the language of Terraform files.

A path names the type of a block, its labels and the attribute: `$.module.web.version`,
`$.resource.aws_instance.web.tags.Name`. Among several blocks of one name `[0]` chooses the first.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.replace.fieldpath import parse_path
from pipecd.piped.eventwatcher.replace.hclscan import (
    COMMENT,
    IDENTIFIER,
    NUMBER,
    SPACE,
    after_bracket,
    after_heredoc,
    after_string,
    is_plain,
    quoted,
    unquoted,
)
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

_EXPRESSION = Closed("is computed by an expression; only a plain value can be replaced")
_FOR = re.compile(r"\{\s*for\b")


def replace_hcl(text: str, path: str, value: str) -> str:
    """The text with another value at a path; what is text stays text, a number a number."""
    steps = parse_path(path)
    root = _Reading(text).whole()
    return set_field(text, [root], path, steps, value)


@dataclass
class _Reading:
    """One pass over a text."""

    text: str
    at: int = 0

    def whole(self) -> Fork:
        self.at = 1 if self.text.startswith("\ufeff") else 0
        root = self._body(0)
        if self.at < len(self.text):
            raise self._mistake("the end of the file")
        return root

    def _body(self, depth: int) -> Fork:
        """Attributes and blocks up to a closing brace or the end of the file."""
        if depth > DEEPEST:
            raise UserMistake(f"its blocks are nested more than {DEEPEST} deep")
        found: list[tuple[tuple[str, ...], Node]] = []
        while True:
            self._skip(lines=True)
            if self.at >= len(self.text) or self.text[self.at] == "}":
                return _nested(found)
            names = [self._word()]
            self._skip()
            if self._sign("="):
                found.append(((names[0],), self._expression("\n", depth)))
                continue
            while not self._sign("{"):
                names.append(self._label())
                self._skip()
            found.append((tuple(names), self._body(depth + 1)))
            if not self._sign("}"):
                raise self._mistake("a closing brace")

    def _expression(self, ends: str, depth: int) -> Node:
        """A value: a literal, an object, a list, or something that is computed."""
        if depth > DEEPEST:
            raise UserMistake(f"its values are nested more than {DEEPEST} deep")
        self._skip(lines="\n" not in ends)
        start = self.at
        node = self._term(depth)
        self._skip(lines="\n" not in ends)
        if self._is_over(ends):
            return node
        # There is more than one term, so nothing of it stands for itself.
        self.at = start
        self._pass_over(ends)
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
                return Row(tuple(self._items(depth + 1)))
            case _:
                return self._word_or_number()

    def _word_or_number(self) -> Node:
        start = self.at
        found = NUMBER.match(self.text, start) or IDENTIFIER.match(self.text, start)
        if found is None:
            self.at = after_heredoc(self.text, start)
            return _EXPRESSION
        self.at, word = found.end(), found[0]
        if word == "null":
            return Closed("is null; give it a first value")
        is_literal = word in ("true", "false") or not IDENTIFIER.match(word)
        return literal(word, start, self.at) if is_literal else _EXPRESSION

    def _entries(self, depth: int) -> Iterator[tuple[tuple[str, ...], Node]]:
        while True:
            self._skip(lines=True)
            if self._sign("}"):
                return
            name = self._label()
            self._skip()
            if not self._sign("=") and not self._sign(":"):
                raise self._mistake("an equals sign")
            yield (name,), self._expression(",\n}", depth)
            self._skip()
            self._sign(",")

    def _items(self, depth: int) -> Iterator[Node]:
        while True:
            self._skip(lines=True)
            if self._sign("]"):
                return
            if self.at >= len(self.text):
                raise self._mistake("a closing bracket")
            yield self._expression(",]", depth)
            self._skip(lines=True)
            self._sign(",")

    def _string(self) -> Node:
        start = self.at
        self.at = end = after_string(self.text, start)
        raw = self.text[start:end]
        if not is_plain(raw):
            return _EXPRESSION

        def write(new: str) -> Iterator[Splice]:
            yield Splice(start, end, quoted(new))

        return Leaf(unquoted(raw), write)

    def _pass_over(self, ends: str) -> None:
        while not self._is_over(ends):
            if self.text[self.at] in "([{":
                self.at = after_bracket(self.text, self.at)
            elif self.text[self.at] == '"':
                self.at = after_string(self.text, self.at)
            else:
                self.at = after_heredoc(self.text, self.at)
            self._skip(lines="\n" not in ends)

    def _is_over(self, ends: str) -> bool:
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

    def _sign(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def _word(self) -> str:
        found = IDENTIFIER.match(self.text, self.at)
        if found is None:
            raise self._mistake("a name")
        self.at = found.end()
        return found[0]

    def _label(self) -> str:
        """A name, or one in quotes; a key that is computed cannot be named by a path."""
        if self.text.startswith('"', self.at):
            start, self.at = self.at, after_string(self.text, self.at)
            return unquoted(self.text[start : self.at])
        if self.text.startswith("(", self.at):
            start, self.at = self.at, after_bracket(self.text, self.at)
            return self.text[start : self.at]
        if found := NUMBER.match(self.text, self.at):
            self.at = found.end()
            return found[0]
        return self._word()

    def _mistake(self, wanted: str) -> UserMistake:
        line = self.text.count("\n", 0, self.at) + 1
        return UserMistake(f"it is not valid HCL: {wanted} is missing in line {line}")


def _nested(found: list[tuple[tuple[str, ...], Node]]) -> Fork:
    """Blocks by their type, then by each of their labels."""
    by_name: dict[str, list[tuple[tuple[str, ...], Node]]] = {}
    for names, node in found:
        by_name.setdefault(names[0], []).append((names[1:], node))
    return Fork(tuple((name, _merged(rest)) for name, rest in by_name.items()))


def _merged(found: list[tuple[tuple[str, ...], Node]]) -> Node:
    ended = [node for names, node in found if not names]
    labelled = [(names, node) for names, node in found if names]
    nodes = [*ended, *([_nested(labelled)] if labelled else [])]
    return nodes[0] if len(nodes) == 1 else Row(tuple(nodes), is_same_name=True)
