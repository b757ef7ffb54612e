# SPDX-License-Identifier: Apache-2.0
"""Splits a template into text and actions, and the actions into tokens."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pipecd.gotemplate.nodes import TemplateMistake


class TokenKind(Enum):
    """The kinds of tokens; the values are groups of the token pattern."""

    LITERAL = "literal"
    IDENTIFIER = "identifier"
    FIELD = "field"
    VARIABLE = "variable"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Token:
    """A token of an action; `value` is the value of a literal."""

    kind: TokenKind
    text: str
    line: int
    has_space_before: bool
    value: Any = None


@dataclass(frozen=True)
class Action:
    """The tokens between `{{` and `}}`."""

    tokens: tuple[Token, ...]
    line: int


_COMMENT = re.compile(r"\{\{(?:-[ \t\r\n]+)?/\*.*?\*/(?:[ \t\r\n]+-)?\}\}", re.DOTALL)
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_RAW = r"`[^`]*`"
_CHARACTER = r"'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.))'"
_NUMBER = (
    r"[+-]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+"
    r"|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)"
)
_TOKEN = re.compile(
    rf"(?P<space>[ \t\r\n]+)|(?P<string>{_STRING})|(?P<raw>{_RAW})|(?P<character>{_CHARACTER})"
    rf"|(?P<number>{_NUMBER})(?![\w])|(?P<field>\.[^\W\d]\w*)|(?P<variable>\$\w*)"
    r"|(?P<identifier>[^\W\d]\w*)|(?P<operator>:=|[|()=,.])"
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
}
_SPACE = " \t\r\n"


def split(text: str, name: str) -> Iterator[str | Action]:
    """Yields texts and actions in order, without the white space that `{{-` and `-}}` trim."""
    at = 0
    trims_left = False
    lines = _Lines(text)
    while (start := text.find("{{", at)) >= 0:
        trims_right = re.match(r"\{\{-[ \t\r\n]", text[start : start + 4]) is not None
        before = text[at:start].lstrip(_SPACE) if trims_left else text[at:start]
        yield before.rstrip(_SPACE) if trims_right else before
        if comment := _COMMENT.match(text, start):
            at = comment.end()
            trims_left = re.search(r"[ \t\r\n]-\}\}$", comment[0]) is not None
            continue
        inner = start + (3 if trims_right else 2)
        tokens, at, trims_left = _tokenize(text, inner, name=name, lines=lines)
        yield Action(tokens, lines.at(start))
    yield text[at:].lstrip(_SPACE) if trims_left else text[at:]


class _Lines:
    """The numbers of the lines of a text, the first is 1."""

    def __init__(self, text: str) -> None:
        self._breaks = [found.start() for found in re.finditer("\n", text)]

    def at(self, position: int) -> int:
        """Returns the line of a position."""
        return bisect_left(self._breaks, position) + 1


def _tokenize(
    text: str, at: int, *, name: str, lines: _Lines
) -> tuple[tuple[Token, ...], int, bool]:
    """Returns the tokens of an action, the position after it, and whether it ends with `-}}`."""
    start = at
    tokens: list[Token] = []
    space_before = False
    while not text.startswith("}}", at):
        if space_before and text.startswith("-}}", at):
            return tuple(tokens), at + 3, True
        if at >= len(text):
            where = f"template: {name}:{lines.at(start)}"
            raise TemplateMistake(f"{where}: unclosed action", hint="close it with }}")
        match = _TOKEN.match(text, at)
        if match is None:
            unterminated = {
                '"': "unterminated quoted string",
                "`": "unterminated raw quoted string",
            }
            what = unterminated.get(text[at], f"unexpected {text[at]!r} in an action")
            raise TemplateMistake(f"template: {name}:{lines.at(at)}: {what}")
        if match.lastgroup != "space":
            tokens.append(_token(match, space_before, name, lines.at(at)))
        space_before = match.lastgroup == "space"
        at = match.end()
    return tuple(tokens), at + 2, False


def _token(match: re.Match[str], space_before: bool, name: str, line: int) -> Token:
    text = match[0]
    value: Any
    match match.lastgroup:
        case "string":
            value = _unescape(text[1:-1], name, line)
        case "raw":
            value = text[1:-1]
        case "character":
            value = ord(_unescape(text[1:-1], name, line))
        case "number":
            digits = text.replace("_", "")
            try:
                if re.fullmatch(r"[+-]?0[0-7]+", digits):
                    value = int(digits, 8)
                elif re.fullmatch(r"[+-]?(\d+|0[xXoObB][0-9a-fA-F]+)", digits):
                    value = int(digits, 0)
                else:
                    value = float(digits)
            except ValueError as e:
                raise TemplateMistake(f"template: {name}:{line}: bad number {text[:50]!r}") from e
            if isinstance(value, int) and not -(2**63) <= value < 2**64:
                raise TemplateMistake(f"template: {name}:{line}: {text[:50]} overflows int")
        case group:
            return Token(TokenKind(group), text, line, space_before)
    return Token(TokenKind.LITERAL, text, line, space_before, value)


def _unescape(text: str, name: str, line: int) -> str:
    def decode(match: re.Match[str]) -> str:
        code = match[1]
        if code in _ESCAPES:
            return _ESCAPES[code]
        number = -1
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
        elif len(code) == 3:
            number = int(code, 8)
        if not 0 <= number <= 0x10FFFF:
            raise TemplateMistake(f"template: {name}:{line}: unknown escape {match[0]}")
        return chr(number)

    return _ESCAPE.sub(decode, text)
