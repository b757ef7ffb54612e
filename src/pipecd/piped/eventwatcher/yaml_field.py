# SPDX-License-Identifier: Apache-2.0
"""Parses YAML into a tree of values, with the positions that the parser reports."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
import yaml.resolver

from pipecd.config.field_tree import (
    MAX_DEPTH,
    ListNode,
    Node,
    ObjectNode,
    ReadOnlyNode,
    TextEdit,
    ValueNode,
)
from pipecd.config.yaml_tree import NotFinite, resolve
from pipecd.model.errors import UserMistake

# An anchor or a tag in front of a value, with the space behind it.
_PROPERTY = re.compile(r"[&!][^\s]*(?:[ \t]+|[ \t]*(?:#[^\r\n]*)?\r?\n)*")
# Characters that YAML does not allow unescaped.
_UNPRINTABLE = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_INDICATORS = frozenset("!&*#?|>@`\"'%,[]{}:-")
# A string to upstream's parser may be a date or a time to other parsers.
_OTHERS: Any = yaml.resolver.Resolver()
_TEXT = "tag:yaml.org,2002:str"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_SIGN = re.compile(r"[|>][-+0-9]*")


def parse_yaml(text: str) -> list[Node]:
    """The root of the value tree of each document in a YAML file."""
    parser = yaml.CSafeLoader(text.encode())
    try:
        return list(_YamlParser(text, parser).documents())
    except yaml.MarkedYAMLError as e:
        line = f" in line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise UserMistake(f"it is not valid YAML: {e.problem or e.context}{line}") from e
    except yaml.YAMLError as e:
        raise UserMistake("it is not valid YAML: it contains characters that YAML forbids") from e
    finally:
        parser.dispose()


@dataclass
class _YamlParser:
    """Builds the value tree from the events of the YAML parser."""

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
        if depth > MAX_DEPTH:
            raise UserMistake(f"its values are nested more than {MAX_DEPTH} deep")
        anchor, start, end = event.anchor, event.start_mark.index, event.end_mark.index
        match event:
            case yaml.MappingStartEvent():
                self._mark(event)
                is_flow = is_flow or bool(event.flow_style)
                entries: list[tuple[str, Node]] = []
                for key_event in self._inside():
                    key = self._node(key_event, depth + 1, is_flow=is_flow)
                    child = self._node(self.parser.get_event(), depth + 1, is_flow=is_flow)
                    # Only scalar keys can be part of a path.
                    if isinstance(key, ValueNode):
                        entries.append((key.value, child))
                return ObjectNode(tuple(entries))
            case yaml.SequenceStartEvent():
                self._mark(event)
                is_flow = is_flow or bool(event.flow_style)
                items = [self._node(e, depth + 1, is_flow=is_flow) for e in self._inside()]
                return ListNode(tuple(items))
            case yaml.AliasEvent():
                value = self._anchors.get(anchor)
                if value is None:
                    return ReadOnlyNode(f"is an alias of &{anchor}; use the path of the anchor")
                # Only this value changes, so it is no longer an alias.
                return _scalar_node(value, start, end, "", is_flow=is_flow)
            case _:
                return self._scalar(event, is_flow=is_flow)

    def _inside(self) -> Iterator[Any]:
        while not isinstance(event := self.parser.get_event(), yaml.CollectionEndEvent):
            yield event

    def _mark(self, event: Any, value: str | None = None) -> None:
        if event.anchor:
            self._anchors[event.anchor] = value

    def _scalar(self, event: Any, *, is_flow: bool) -> Node:
        value: str = event.value
        self._mark(event, value)
        start, end = event.start_mark.index, event.end_mark.index
        while self.text.startswith(("&", "!"), start) and (
            match := _PROPERTY.match(self.text, start, end)
        ):
            start = match.end()
        if not event.style and _resolve(value) is None:
            return ReadOnlyNode("is null; give it a first value")
        if event.style in ("|", ">"):
            block = _BlockScalar(self.text, start, end, event.style)
            # The trailing line breaks of the value stay in the file.
            return ValueNode(value.rstrip("\n"), block.write)
        return _scalar_node(value, start, end, event.style or "", is_flow=is_flow)


def _scalar_node(value: str, start: int, end: int, style: str, *, is_flow: bool) -> ValueNode:
    def write(new: str) -> Iterator[TextEdit]:
        yield TextEdit(start, end, _format_scalar(style, value, new, is_flow=is_flow))

    return ValueNode(value, write)


def _resolve(word: str) -> Any:
    """The value of a plain scalar."""
    try:
        return resolve(word)
    except NotFinite:
        return math.inf


def _format_scalar(style: str, old: str, new: str, *, is_flow: bool) -> str:
    """Formats a value in the style of the old one: plain, single-quoted or double-quoted.

    A string that would be read as a number, boolean, date or null if plain is quoted, so that it
    stays a string; a number may become another number.
    """
    if style == "'" and not _UNPRINTABLE.search(new):
        return "'" + new.replace("'", "''") + "'"
    if style or not _may_be_plain(new, is_flow=is_flow):
        return quoted(new)
    return quoted(new) if _is_text(old) and not _is_text(new) else new


def quoted(value: str) -> str:
    """Formats a value in double quotes."""
    inner = value.replace("\\", "\\\\").replace('"', '\\"')
    for character, name in (("\n", "n"), ("\t", "t"), ("\r", "r")):
        inner = inner.replace(character, f"\\{name}")
    return '"' + _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", inner) + '"'


def _may_be_plain(value: str, *, is_flow: bool) -> bool:
    if not value or value != value.strip() or _UNPRINTABLE.search(value):
        return False
    if ": " in value or " #" in value or value.endswith(":"):
        return False
    if value.startswith(("---", "...")):
        return False
    # A minus before another character than a space begins a number or plain text.
    is_signed = value[0] == "-" and value[1:2] not in ("", " ") and not is_flow
    if value[0] in _INDICATORS and not is_signed:
        return False
    return not (is_flow and any(c in value for c in ",[]{}?"))


def _is_text(word: str) -> bool:
    """Whether every YAML parser reads a plain scalar as a string."""
    is_text_to_others: bool = _OTHERS.resolve(yaml.ScalarNode, word, (True, False)) == _TEXT
    return is_text_to_others and isinstance(_resolve(word), str)


@dataclass(frozen=True)
class _BlockScalar:
    """A block scalar below a `|` or `>`, from its indicator to its last line."""

    text: str
    start: int
    end: int
    sign: str

    def write(self, new: str) -> Iterator[TextEdit]:
        """Replaces the lines of the block, or the whole block by a quoted value."""
        lines = [match[0] for match in _LINE.finditer(self.text, self.start, self.end)]
        header, body = lines[0], [line for line in lines[1:] if line]
        while body and not body[-1].strip():
            body.pop()
        first = self.start + len(header)
        last = first + sum(map(len, body))
        first_line = next((line for line in body if line.strip()), "")
        indent = first_line[: len(first_line) - len(first_line.lstrip(" "))]
        if not indent or not self._fits(new, header):
            # The comment after the indicator stays.
            sign = _SIGN.match(header)
            yield TextEdit(self.start, self.start + (sign.end() if sign else 1), quoted(new))
            yield TextEdit(first, last, "")
            return
        line_break = _LINE_BREAK.search(header)
        ends = _LINE_BREAK.search(body[-1])
        joined = (line_break[0] if line_break else "\n").join(
            indent + line if line else "" for line in new.split("\n")
        )
        yield TextEdit(first, last, joined + (ends[0] if ends else ""))

    def _fits(self, new: str, header: str) -> bool:
        """Whether a value can be written below the indicator as it is."""
        if any(c.isdigit() for c in header.partition("#")[0]):
            return False
        if not new or _UNPRINTABLE.search(new.replace("\n", "")):
            return False
        is_regular = new == new.strip("\n") and not new.startswith((" ", "\t"))
        return is_regular and (self.sign == "|" or "\n" not in new)
