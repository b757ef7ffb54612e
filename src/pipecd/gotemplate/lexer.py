# SPDX-License-Identifier: Apache-2.0
"""Cuts a template into text and actions, and actions into tokens."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pipecd.gotemplate.nodes import TemplateMistake


class Kind(Enum):
    """What a token is."""

    LITERAL = "literal"
    WORD = "word"
    FIELD = "field"
    VARIABLE = "variable"
    SIGN = "sign"


@dataclass(frozen=True)
class Token:
    """`value` is decoded for literals; `spaced` tells whether white space stood before it."""

    kind: Kind
    text: str
    line: int
    spaced: bool
    value: Any = None


@dataclass(frozen=True)
class Action:
    """What stands between two pairs of braces."""

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
    r"|(?P<word>[^\W\d]\w*)|(?P<sign>:=|[|()=,.])"
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


def split(text: str, name: str) -> Iterator[str | Action]:
    """Yields texts and actions in order, with white space trimmed where `-` asks for it."""
    at = 0
    trim = False
    while (start := text.find("{{", at)) >= 0:
        before = text[at:start]
        trims_before = re.match(r"\{\{-[ \t\r\n]", text[start : start + 4]) is not None
        yield _trimmed(before, left=trim, right=trims_before)
        line = text.count("\n", 0, start) + 1
        comment = _COMMENT.match(text, start)
        if comment:
            at = comment.end()
            trim = re.search(r"[ \t\r\n]-\}\}$", comment[0]) is not None
            continue
        inner = start + (3 if trims_before else 2)
        tokens, at, trim = _action(text, inner, name=name, line=line)
        yield Action(tokens, line)
    yield _trimmed(text[at:], left=trim, right=False)


def _trimmed(text: str, *, left: bool, right: bool) -> str:
    if left:
        text = text.lstrip(" \t\r\n")
    return text.rstrip(" \t\r\n") if right else text


def _action(text: str, at: int, *, name: str, line: int) -> tuple[tuple[Token, ...], int, bool]:
    """Reads tokens up to the closing braces; returns them, the place behind, and the trim."""
    tokens: list[Token] = []
    spaced = False
    while True:
        if text.startswith("}}", at):
            return tuple(tokens), at + 2, False
        if spaced and text.startswith("-}}", at):
            return tuple(tokens), at + 3, True
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unexpected(text, at, name=name, line=line)
        if match.lastgroup != "space":
            tokens.append(_token(match, spaced, name))
        spaced = match.lastgroup == "space"
        at = match.end()


def _unexpected(text: str, at: int, *, name: str, line: int) -> TemplateMistake:
    if at >= len(text):
        return TemplateMistake(f"template: {name}:{line}: unclosed action", hint="close it with }}")
    here = text.count("\n", 0, at) + 1
    kind = {'"': "unterminated quoted string", "`": "unterminated raw quoted string"}
    what = kind.get(text[at], f"unexpected {text[at]!r} in an action")
    return TemplateMistake(f"template: {name}:{here}: {what}")


def _token(match: re.Match[str], spaced: bool, name: str) -> Token:
    text = match[0]
    line = match.string.count("\n", 0, match.start()) + 1
    match match.lastgroup:
        case "string":
            return Token(Kind.LITERAL, text, line, spaced, _unescaped(text[1:-1], name, line))
        case "raw":
            return Token(Kind.LITERAL, text, line, spaced, text[1:-1])
        case "character":
            value = ord(_unescaped(text[1:-1], name, line))
            return Token(Kind.LITERAL, text, line, spaced, value)
        case "number":
            return Token(Kind.LITERAL, text, line, spaced, _number(text, name, line))
        case group:
            return Token(Kind(group), text, line, spaced)


def _unescaped(text: str, name: str, line: int) -> str:
    def decode(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xuU" and len(code) > 1:
            return _character(int(code[1:], 16), match[0])
        if len(code) == 3:
            return _character(int(code, 8), match[0])
        if code not in _ESCAPES:
            raise TemplateMistake(f"template: {name}:{line}: unknown escape {match[0]}")
        return _ESCAPES[code]

    def _character(number: int, escape: str) -> str:
        if number > 0x10FFFF:
            raise TemplateMistake(f"template: {name}:{line}: unknown escape {escape}")
        return chr(number)

    return _ESCAPE.sub(decode, text)


def _number(text: str, name: str, line: int) -> int | float:
    digits = text.replace("_", "")
    try:
        if re.fullmatch(r"[+-]?0[0-7]+", digits):
            return int(digits, 8)
        if re.fullmatch(r"[+-]?(\d+|0[xXoObB][0-9a-fA-F]+)", digits):
            return int(digits, 0)
        return float(digits)
    except ValueError as e:
        raise TemplateMistake(f"template: {name}:{line}: bad number {text!r}") from e
