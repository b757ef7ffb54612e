# SPDX-License-Identifier: Apache-2.0
"""How a value is spelled in YAML so that it looks like the one that it replaces."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
import yaml.resolver

from pipecd.config.yaml_tree import EndlessNumber, resolve
from pipecd.piped.eventwatcher.replace.tree import Splice

# What YAML lets stand in a text as it is; the rest is written with a backslash.
_UNPRINTABLE = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_INDICATORS = frozenset("!&*#?|>@`\"'%,[]{}:-")
# What is text to upstream's reader may be a date or a time of the day to others.
_OTHERS: Any = yaml.resolver.Resolver()
_TEXT = "tag:yaml.org,2002:str"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_SIGN = re.compile(r"[|>][-+0-9]*")


def rewritten(style: str, old: str, new: str, *, is_flow: bool) -> str:
    """A value in the style of the old one: plain, or within the quotes that the style is.

    Text that would be read as a number, a truth value, a date or null when plain is quoted, so that
    text stays text; what was a number may become another one.
    """
    if style == "'" and not _UNPRINTABLE.search(new):
        return "'" + new.replace("'", "''") + "'"
    if style or not _may_be_plain(new, is_flow=is_flow):
        return quoted(new)
    return quoted(new) if _is_text(old) and not _is_text(new) else new


def quoted(value: str) -> str:
    """A value in double quotes."""
    inner = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _UNPRINTABLE.sub(lambda found: _escape(found[0]), inner) + '"'


def _escape(character: str) -> str:
    if character in "\n\t\r":
        return json.dumps(character)[1:-1]
    return f"\\u{ord(character):04x}"


def _may_be_plain(value: str, *, is_flow: bool) -> bool:
    if not value or value != value.strip() or _UNPRINTABLE.search(value):
        return False
    if ": " in value or " #" in value or value.endswith(":"):
        return False
    if value.startswith(("---", "...")):
        return False
    # A minus in front of something that is no space begins a number or a word like any other.
    is_signed = value[0] == "-" and value[1:2] not in ("", " ") and not is_flow
    if value[0] in _INDICATORS and not is_signed:
        return False
    return not (is_flow and any(c in value for c in ",[]{}?"))


def _is_text(word: str) -> bool:
    """Whether every reader takes a word without quotes for text."""
    try:
        value = resolve(word)
    except EndlessNumber:
        return False
    is_text_to_others: bool = _OTHERS.resolve(yaml.ScalarNode, word, (True, False)) == _TEXT
    return isinstance(value, str) and is_text_to_others


@dataclass(frozen=True)
class Block:
    """A value of several lines below a `|` or `>`, from its sign to the last line that belongs."""

    text: str
    start: int
    end: int
    sign: str

    def content(self, value: str) -> str:
        """The value without the line breaks at its end, which the file keeps."""
        return value.rstrip("\n")

    def written(self, new: str) -> Iterator[Splice]:
        lines = [found[0] for found in _LINE.finditer(self.text, self.start, self.end)]
        header, body = lines[0], [line for line in lines[1:] if line]
        while body and not body[-1].strip():
            body.pop()
        first = self.start + len(header)
        last = first + sum(map(len, body))
        told = next((line for line in body if line.strip()), "")
        indent = told[: len(told) - len(told.lstrip(" "))]
        if not indent or not self._fits(new, header):
            # The comment behind the sign stays where it is.
            sign = _SIGN.match(header)
            yield Splice(self.start, self.start + (sign.end() if sign else 1), quoted(new))
            yield Splice(first, last, "")
            return
        line_break = _LINE_BREAK.search(header)
        ends = _LINE_BREAK.search(body[-1])
        joined = (line_break[0] if line_break else "\n").join(
            indent + line if line else "" for line in new.split("\n")
        )
        yield Splice(first, last, joined + (ends[0] if ends else ""))

    def _fits(self, new: str, header: str) -> bool:
        """Whether a value can stand below the sign as it is."""
        if any(c.isdigit() for c in header.partition("#")[0]):
            return False
        if not new or _UNPRINTABLE.search(new.replace("\n", "")):
            return False
        is_regular = new == new.strip("\n") and not new.startswith((" ", "\t"))
        return is_regular and (self.sign == "|" or "\n" not in new)
