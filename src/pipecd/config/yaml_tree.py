# SPDX-License-Identifier: Apache-2.0
"""Reads YAML into a tree whose nodes have line and column, in the dialect of upstream."""

import base64
import binascii
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import yaml

DEEPEST = 100
"""The most levels of values inside values."""

Value: TypeAlias = bool | int | float | str | None


class Mark(NamedTuple):
    """A place in a file; line and column count from 1, 0 is no place."""

    line: int
    column: int


NOWHERE = Mark(0, 0)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value."""

    value: Value
    mark: Mark = NOWHERE


@dataclass(frozen=True, slots=True)
class List:
    """Values in order."""

    items: tuple["Node", ...]
    mark: Mark = NOWHERE


class Entry(NamedTuple):
    """One key of an object with its value."""

    key: str
    value: "Node"
    mark: Mark = NOWHERE


@dataclass(frozen=True, slots=True)
class Map:
    """Values by key, every key once."""

    entries: tuple[Entry, ...]
    mark: Mark = NOWHERE

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def get(self, key: str) -> Entry | None:
        """Return the entry spelled exactly so."""
        return next((entry for entry in self.entries if entry.key == key), None)


Node: TypeAlias = Scalar | List | Map


def to_plain(node: Node) -> Any:
    """Return the values of a tree as `json.loads` would."""
    match node:
        case Scalar():
            return node.value
        case List():
            return [to_plain(item) for item in node.items]
        case Map():
            return {entry.key: to_plain(entry.value) for entry in node.entries}


def of_plain(value: object, depth: int = 0) -> Node:
    """Return the tree of values that `json.loads` returned; raise ValueError for any others."""
    if depth > DEEPEST:
        raise ValueError(f"values are nested more than {DEEPEST} deep")
    match value:
        case Mapping():
            pairs: Mapping[Any, object] = value  # pyright: ignore[reportUnknownVariableType]
            return Map(
                tuple(Entry(_checked_key(k), of_plain(v, depth + 1)) for k, v in pairs.items())
            )
        case list() | tuple():
            items: list[object] | tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return List(tuple(of_plain(item, depth + 1) for item in items))
        case None | bool() | int() | str():
            return Scalar(value)
        case float() if math.isfinite(value):
            return Scalar(int(value) if value.is_integer() else value)
        case _:
            raise ValueError(f"a {type(value).__name__} cannot stand in a configuration")


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError("a key must be a string")  # noqa: TRY004
    return key


_YES = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_NO = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_NULL = ("", "~", "null", "Null", "NULL")
_WORDS: dict[str, Value] = {
    **dict.fromkeys(_YES, True),
    **dict.fromkeys(_NO, False),
    **dict.fromkeys(_NULL, None),
}
_ENDLESS = re.compile(r"[+-]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|0[oO]?(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))"
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
# A number of so many digits is beyond 64 bits in any base above 2.
_MOST_DIGITS = 64
_EXPONENT_FORM = 1e21


class EndlessNumber(ValueError):
    """The word is an infinity or no number at all, which JSON cannot say."""


def resolve(word: str) -> Value:
    """Return the value of an unquoted word; raise EndlessNumber for `.inf` and `.nan`."""
    if word in _WORDS:
        return _WORDS[word]
    if word[0] not in "+-.0123456789":
        return word
    if _ENDLESS.fullmatch(word):
        raise EndlessNumber(f"{word} is no number that can be used here")
    digits = word if word[0] == "." else word.replace("_", "")
    number = _integer(digits)
    if number is None and _FLOAT.fullmatch(digits):
        number = _fraction(digits)
    return word if number is None else number


def _integer(digits: str) -> int | None:
    """Return an integer that fits 64 bits, as larger ones become fractions."""
    match = _INTEGER.fullmatch(digits)
    if match is None:
        return None
    for name, base in _BASES.items():
        text = (match[name] or "").lstrip("0") if match[name] is not None else None
        if text is not None and len(text) <= _MOST_DIGITS:
            number = int(match["sign"] + (text or "0"), base)
            return number if -(2**63) <= number < 2**64 else None
    return None


def _fraction(digits: str) -> int | float | None:
    number = float(digits)
    if math.isinf(number):
        return None
    # A whole number written as a fraction, such as 1.0 or 1e3, is that whole number.
    if number.is_integer() and abs(number) < _EXPONENT_FORM:
        return int(number)
    return number


LARGEST = 100_000
"""The most values a file may stand for once its aliases are followed."""

_TAG = "tag:yaml.org,2002:"
_TYPED = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}


class YamlMistake(ValueError):
    """The file is no YAML that can be used; `mark` is the place."""

    def __init__(self, what: str, mark: Mark) -> None:
        super().__init__(what)
        self.what = what
        self.mark = mark


def read_yaml(text: bytes | str) -> Node:
    """Return the first document of a file, null for an empty one; raise YamlMistake."""
    raw = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    try:
        parser = yaml.CSafeLoader(raw)
        try:
            return _Composer(parser).document()
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
    """Builds a tree from events, with a limit on its depth and on its size."""

    def __init__(self, parser: yaml.CSafeLoader) -> None:
        self._parser = parser
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
        if self._size > LARGEST:
            raise YamlMistake(f"the file stands for more than {LARGEST} values", mark)

    def _node(self, event: Any, depth: int) -> Node:
        mark = _mark(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, mark)
        if depth > DEEPEST:
            raise YamlMistake(f"values are nested more than {DEEPEST} deep", mark)
        self._count(1, mark)
        before = self._size
        if event.anchor:
            self._anchors[event.anchor] = None
        node = self._collection(event, mark, depth)
        if event.anchor:
            self._anchors[event.anchor] = node, self._size - before + 1
        return node

    def _alias(self, anchor: Any, mark: Mark) -> Node:
        if anchor not in self._anchors:
            raise YamlMistake(f"no value before this one is marked &{anchor}", mark)
        marked = self._anchors[anchor]
        if marked is None:
            raise YamlMistake(f"the value marked &{anchor} contains itself", mark)
        node, size = marked
        self._count(size, mark)
        return node

    def _collection(self, event: Any, mark: Mark, depth: int) -> Node:
        match event:
            case yaml.SequenceStartEvent():
                return List(tuple(self._node(e, depth + 1) for e in self._inside()), mark)
            case yaml.MappingStartEvent():
                return _object(list(self._pairs(depth)), mark)
            case _:
                return _scalar(event, mark)

    def _inside(self) -> Iterator[Any]:
        while not isinstance(event := self._next(), yaml.CollectionEndEvent):
            yield event

    def _pairs(self, depth: int) -> Iterator[tuple[Entry, bool]]:
        """Yield every key with its value, and whether it is the key that merges."""
        for event in self._inside():
            mark = _mark(event.start_mark)
            is_merge = isinstance(event, yaml.ScalarEvent) and _is_merge(event)
            key = "<<" if is_merge else _key(self._node(event, depth + 1), mark)
            yield Entry(key, self._node(self._next(), depth + 1), mark), is_merge


def _object(pairs: list[tuple[Entry, bool]], mark: Mark) -> Map:
    """Return an object: the last of equal keys wins, `<<` fills in keys that are not there."""
    own = {entry.key: entry for entry, is_merge in pairs if not is_merge}
    merged: dict[str, Entry] = {}
    for entry, is_merge in pairs:
        if is_merge:
            for source in _merge_sources(entry):
                merged = {e.key: e for e in source} | merged
    return Map(tuple((merged | own).values()), mark)


def _merge_sources(entry: Entry) -> Iterator[Map]:
    sources = entry.value.items if isinstance(entry.value, List) else (entry.value,)
    for source in sources:
        if not isinstance(source, Map):
            raise YamlMistake("<< takes an object or a list of objects", entry.mark)
        yield source


def _is_merge(event: Any) -> bool:
    return event.value == "<<" and (event.implicit[0] or event.tag == f"{_TAG}merge")


def _key(node: Node, mark: Mark) -> str:
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
            raise YamlMistake("a key must be a single word, not a list or an object", mark)


def _scalar(event: Any, mark: Mark) -> Scalar:
    """Return the value of a scalar by its tag, or by its spelling when it is unquoted."""
    tag: str = (event.tag or "").removeprefix(_TAG)
    try:
        if tag in _TYPED:
            value = resolve(event.value)
            if not isinstance(value, _TYPED[tag]):
                raise YamlMistake(f"this is no !!{tag}", mark)
            return Scalar(value, mark)
        if tag == "binary":
            return Scalar(base64.b64decode(event.value).decode(), mark)
        return Scalar(resolve(event.value) if not tag and event.implicit[0] else event.value, mark)
    except EndlessNumber as e:
        raise YamlMistake(str(e), mark) from e
    except (binascii.Error, UnicodeDecodeError) as e:
        raise YamlMistake("this is no text in base64", mark) from e
