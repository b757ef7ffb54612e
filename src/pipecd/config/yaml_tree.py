# SPDX-License-Identifier: Apache-2.0
"""Reads YAML, in the dialect of upstream, into a tree whose nodes have line and column."""

import base64
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import yaml

MAX_DEPTH = 100
"""The most levels of nested values."""

Value: TypeAlias = bool | int | float | str | None


class Mark(NamedTuple):
    """A position in a file; line and column count from 1, 0 is no position."""

    line: int
    column: int


NO_MARK = Mark(0, 0)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A string, number, boolean or null."""

    value: Value
    mark: Mark = NO_MARK


@dataclass(frozen=True, slots=True)
class List:
    """A list of nodes."""

    items: tuple["Node", ...]
    mark: Mark = NO_MARK


class Entry(NamedTuple):
    """One key of an object with its value."""

    key: str
    value: "Node"
    mark: Mark = NO_MARK


@dataclass(frozen=True, slots=True)
class Map:
    """An object; every key occurs once."""

    entries: tuple[Entry, ...]
    mark: Mark = NO_MARK

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def get(self, key: str) -> Entry | None:
        """Return the entry of a key, in exactly this spelling."""
        return next((entry for entry in self.entries if entry.key == key), None)


Node: TypeAlias = Scalar | List | Map


def to_plain(node: Node) -> Any:
    """Return a tree as plain values, like those of `json.loads`."""
    match node:
        case Scalar():
            return node.value
        case List():
            return [to_plain(item) for item in node.items]
        case Map():
            return {entry.key: to_plain(entry.value) for entry in node.entries}


def of_plain(value: object, depth: int = 0) -> Node:
    """Return the tree of plain values; raise ValueError for what JSON cannot represent."""
    if depth > MAX_DEPTH:
        raise ValueError(f"values are nested more than {MAX_DEPTH} deep")
    match value:
        case Mapping():
            pairs: Mapping[Any, object] = value  # pyright: ignore[reportUnknownVariableType]
            if not all(isinstance(key, str) for key in pairs):
                raise ValueError("a key must be a string")
            return Map(tuple(Entry(k, of_plain(v, depth + 1)) for k, v in pairs.items()))
        case list() | tuple():
            items: list[object] | tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return List(tuple(of_plain(item, depth + 1) for item in items))
        case None | bool() | int() | str():
            return Scalar(value)
        case float() if math.isfinite(value):
            return Scalar(int(value) if value.is_integer() else value)
        case _:
            raise ValueError(f"a configuration cannot contain a {type(value).__name__}")


_YES = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_NO = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_NULL = ("", "~", "null", "Null", "NULL")
_WORDS: dict[str, Value] = {
    **dict.fromkeys(_YES, True),
    **dict.fromkeys(_NO, False),
    **dict.fromkeys(_NULL, None),
}
_NOT_FINITE = re.compile(r"[+-]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|0[oO]?(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))"
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
# A number with more digits does not fit 64 bits in any base.
_MAX_DIGITS = 64
# Go prints larger floats with an exponent.
_MIN_EXPONENT_FORM = 1e21


class NotFinite(ValueError):
    """The word is an infinity or NaN, which JSON cannot represent."""


def resolve(word: str) -> Value:
    """Return the value of an unquoted word; raise NotFinite for `.inf` and `.nan`."""
    if word in _WORDS:
        return _WORDS[word]
    if word[0] not in "+-.0123456789":
        return word
    if _NOT_FINITE.fullmatch(word):
        raise NotFinite(f"{word} cannot be used, write a finite number")
    digits = word if word[0] == "." else word.replace("_", "")
    if (integer := _integer(digits)) is not None:
        return integer
    if not _FLOAT.fullmatch(digits) or math.isinf(number := float(digits)):
        return word
    # A whole number written as a fraction, such as 1.0 or 1e3, is an integer.
    is_integer = number.is_integer() and abs(number) < _MIN_EXPONENT_FORM
    return int(number) if is_integer else number


def _integer(digits: str) -> int | None:
    """Return an integer that fits 64 bits; larger ones are read as floats."""
    match = _INTEGER.fullmatch(digits)
    if match is None:
        return None
    for name, base in _BASES.items():
        text = (match[name] or "").lstrip("0") if match[name] is not None else None
        if text is not None and len(text) <= _MAX_DIGITS:
            number = int(match["sign"] + (text or "0"), base)
            return number if -(2**63) <= number < 2**64 else None
    return None


MAX_VALUES = 100_000
"""The most values of a file, counted with its aliases expanded."""

_TAG = "tag:yaml.org,2002:"
_TYPED = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}


class YamlMistake(ValueError):
    """The file is not valid YAML; `mark` is the position."""

    def __init__(self, what: str, mark: Mark) -> None:
        super().__init__(what)
        self.what = what
        self.mark = mark


def read_yaml(text: bytes | str, *, max_values: int = MAX_VALUES) -> Node:
    """Return the first document of a file, null for an empty one; raise YamlMistake."""
    raw = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    try:
        parser = yaml.CSafeLoader(raw)
        try:
            return _Composer(parser, max_values).document()
        finally:
            parser.dispose()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        what = ", ".join(part for part in (e.context, e.problem) if part)
        if "cannot start any token" in what:
            what += ", indent with spaces, not tabs, and quote text that begins with @ ` or %"
        raise YamlMistake(f"not valid YAML: {what}", _mark(mark) if mark else Mark(1, 1)) from e
    except (yaml.YAMLError, UnicodeError) as e:
        raise YamlMistake("not valid YAML: the file must be text in UTF-8", Mark(1, 1)) from e


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


class _Composer:
    """Builds a tree from the events of the parser, with limits on its depth and size."""

    def __init__(self, parser: yaml.CSafeLoader, max_values: int) -> None:
        self._parser, self._max_values = parser, max_values
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        self._size = 0

    def document(self) -> Node:
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            return Scalar(None, Mark(1, 1))
        return self._node(self._next(), 0)

    def _next(self) -> Any:
        return self._parser.get_event()

    def _count(self, values: int, mark: Mark) -> None:
        self._size += values
        if self._size > self._max_values:
            raise YamlMistake(
                f"the file has more than {self._max_values} values with its aliases expanded", mark
            )

    def _node(self, event: Any, depth: int) -> Node:
        mark = _mark(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            anchor: Any = event.anchor
            if anchor not in self._anchors:
                raise YamlMistake(f"no value before this alias has the anchor &{anchor}", mark)
            anchored = self._anchors[anchor]
            if anchored is None:
                raise YamlMistake(f"the value of the anchor &{anchor} contains itself", mark)
            node, size = anchored
            self._count(size, mark)
            return node
        if depth > MAX_DEPTH:
            raise YamlMistake(f"values are nested more than {MAX_DEPTH} deep", mark)
        self._count(1, mark)
        before = self._size
        if event.anchor:
            self._anchors[event.anchor] = None
        match event:
            case yaml.SequenceStartEvent():
                node = List(tuple(self._node(e, depth + 1) for e in self._inside()), mark)
            case yaml.MappingStartEvent():
                node = self._map(mark, depth)
            case _:
                node = _scalar(event, mark)
        if event.anchor:
            self._anchors[event.anchor] = node, self._size - before + 1
        return node

    def _inside(self) -> Iterator[Any]:
        """Yield the events up to the end of the current collection."""
        while not isinstance(event := self._next(), yaml.CollectionEndEvent):
            yield event

    def _map(self, mark: Mark, depth: int) -> Map:
        """Return an object: of equal keys the last wins, `<<` adds keys that are missing."""
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for event in self._inside():
            key_mark = _mark(event.start_mark)
            if (
                isinstance(event, yaml.ScalarEvent)
                and event.value == "<<"
                and (event.implicit[0] or event.tag == f"{_TAG}merge")
            ):
                value = self._node(self._next(), depth + 1)
                for source in value.items if isinstance(value, List) else (value,):
                    if not isinstance(source, Map):
                        raise YamlMistake("<< takes an object or a list of objects", key_mark)
                    merged = {e.key: e for e in source} | merged
            else:
                key = _key_text(self._node(event, depth + 1), key_mark)
                own[key] = Entry(key, self._node(self._next(), depth + 1), key_mark)
        return Map(tuple((merged | own).values()), mark)


def _key_text(node: Node, mark: Mark) -> str:
    match node:
        case Scalar(value=bool() as value):
            return "true" if value else "false"
        case Scalar(value=str() as value):
            return value
        case Scalar(value=int() | float() as value):
            return f"{value:.8g}" if isinstance(value, float) else str(value)
        case Scalar():
            raise YamlMistake("a key must not be null, put it in quotes", mark)
        case _:
            raise YamlMistake("a key must be a scalar, not a list or an object", mark)


def _scalar(event: Any, mark: Mark) -> Scalar:
    """Return the value of a scalar: by its tag, or resolved if it is unquoted."""
    tag: str = (event.tag or "").removeprefix(_TAG)
    if tag == "binary":
        try:
            return Scalar(base64.b64decode(event.value).decode(), mark)
        except ValueError as e:
            raise YamlMistake("this is not UTF-8 text in base64", mark) from e
    try:
        if tag in _TYPED:
            value = resolve(event.value)
            if not isinstance(value, _TYPED[tag]):
                raise YamlMistake(f"this is not a valid !!{tag}", mark)
            return Scalar(value, mark)
        return Scalar(resolve(event.value) if not tag and event.implicit[0] else event.value, mark)
    except NotFinite as e:
        raise YamlMistake(str(e), mark) from e
