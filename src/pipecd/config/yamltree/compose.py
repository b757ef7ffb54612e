# SPDX-License-Identifier: Apache-2.0
"""The first document of a YAML file as a tree.

It is built from the events of libyaml: its own composer recurses without a limit and takes the
process down on a deeply nested file.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import yaml

from pipecd.config.yamltree.node import DEEPEST, Entry, List, Map, Mark, Node, Scalar
from pipecd.config.yamltree.scalar import EndlessNumber, resolve

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
