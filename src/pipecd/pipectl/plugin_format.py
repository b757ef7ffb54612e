# SPDX-License-Identifier: Apache-2.0
"""Rewrites the text of an application file for plugins: comments, block scalars and order stay.

Keys keep their lines. Those of a plugin move below `spec.plugins` and are indented further. A file
that is written in another style than indented blocks is written anew, without its comments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_STEP = 2


@dataclass(frozen=True)
class PluginFormat:
    """The content of the new file, and which keys of `spec` belong to which plugin."""

    document: Mapping[str, Any]
    plugin: str
    plugin_keys: Sequence[str]


class _OtherStyle(Exception):
    """The file is not written in indented blocks."""


@dataclass(frozen=True)
class _Entry:
    """A key of a mapping, or an item of a list, with its lines and the comments above it."""

    key: str
    value: Node
    start: int
    end: int


def rewrite_text(text: str, target: PluginFormat) -> str:
    """Returns the new text; its content is `target.document` in any case."""
    try:
        new = _Rewriter(text, target).text()
    except _OtherStyle:
        return _dump(target.document)
    try:
        is_right = yaml.safe_load(new) == target.document
    except yaml.YAMLError:
        # An alias may stand before its anchor now.
        is_right = False
    return new if is_right else _dump(target.document)


class _Rewriter:
    """Moves the lines of one file."""

    def __init__(self, text: str, target: PluginFormat) -> None:
        if "\r" in text or "\t" in text:
            raise _OtherStyle
        self._lines = text.splitlines(keepends=True)
        if self._lines and not self._lines[-1].endswith("\n"):
            self._lines[-1] += "\n"
        self._target = target
        self._root = _block_mapping(cast("Any", yaml).compose(text, Loader=yaml.SafeLoader))

    def text(self) -> str:
        entries = list(self._entries(self._root, len(self._lines)))
        written: list[str] = list(self._lines[: entries[0].start])
        keys = {entry.key for entry in entries}
        if "apiVersion" not in keys:
            written.append(f"apiVersion: {self._target.document['apiVersion']}\n")
        for entry in entries:
            if entry.key in ("apiVersion", "kind"):
                written += self._replaced(entry, self._target.document[entry.key])
            elif entry.key == "spec":
                written += self._spec(entry)
        return "".join(written)

    def _replaced(self, entry: _Entry, value: str) -> list[str]:
        scalar = entry.value
        if not isinstance(scalar, ScalarNode) or scalar.start_mark.line != scalar.end_mark.line:
            raise _OtherStyle
        lines = self._lines[entry.start : entry.end]
        at = scalar.start_mark.line - entry.start
        line = lines[at]
        lines[at] = line[: scalar.start_mark.column] + value + line[scalar.end_mark.column :]
        return lines

    def _spec(self, spec: _Entry) -> Iterator[str]:
        mapping, document = _block_mapping(spec.value), self._target.document["spec"]
        column = mapping.value[0][0].start_mark.column
        entries = list(self._entries(mapping, spec.end))
        yield from self._lines[spec.start : entries[0].start]
        of_plugin = [entry for entry in entries if entry.key in self._target.plugin_keys]
        position = of_plugin[0] if of_plugin else None
        for entry in entries:
            if entry is position:
                yield from self._plugins(of_plugin, column)
            if entry.key == "pipeline" and "pipeline" in document:
                yield from self._pipeline(entry)
            elif entry.key in document:
                yield from self._lines[entry.start : entry.end]
        if position is None:
            yield from self._plugins((), column)

    def _plugins(self, entries: Sequence[_Entry], column: int) -> Iterator[str]:
        plugins = self._target.document["spec"]["plugins"]
        indent = " " * column
        yield f"{indent}plugins:\n"
        if entries:
            yield f"{indent}{' ' * _STEP}{self._target.plugin}:\n"
        for entry in entries:
            yield from _indented(self._lines[entry.start : entry.end], 2 * _STEP)
        written = {self._target.plugin} if entries else set[str]()
        others = {name: value for name, value in plugins.items() if name not in written}
        if others:
            yield from _indented(_dump(others).splitlines(keepends=True), column + _STEP)

    def _pipeline(self, pipeline: _Entry) -> Iterator[str]:
        """The pipeline; options that every stage has now are repeated outside of `with`."""
        [stages] = list(self._entries(_block_mapping(pipeline.value), pipeline.end))
        if not isinstance(stages.value, SequenceNode) or stages.value.flow_style:
            raise _OtherStyle
        nodes: list[Node] = stages.value.value
        items = [("", node, node.start_mark.line) for node in nodes]
        done = pipeline.start
        documents = self._target.document["spec"]["pipeline"]["stages"]
        for item, document in zip(self._spans(items, stages.end), documents, strict=True):
            stage = _block_mapping(item.value)
            column = stage.value[0][0].start_mark.column
            keys = {key.value for key, _ in stage.value}
            added = {key: value for key, value in document.items() if key not in keys}
            yield from self._lines[done : item.end]
            done = item.end
            if added:
                yield from _indented(_dump(added).splitlines(keepends=True), column)
        yield from self._lines[done : pipeline.end]

    def _entries(self, mapping: MappingNode, end: int) -> Iterator[_Entry]:
        """The keys of a mapping whose lines end before `end`."""
        items = [(key.value, value, key.start_mark.line) for key, value in mapping.value]
        yield from self._spans(items, end)

    def _spans(self, items: Sequence[tuple[str, Node, int]], end: int) -> Iterator[_Entry]:
        starts = [self._with_comments(line) for _, _, line in items]
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise _OtherStyle
        ends = [*starts[1:], end]
        for (key, value, _), start, until in zip(items, starts, ends, strict=True):
            yield _Entry(key, value, start, until)

    def _with_comments(self, line: int) -> int:
        """The first line of the comments and empty lines directly above a line."""
        column = len(self._lines[line]) - len(self._lines[line].lstrip(" "))
        while line > 0:
            above = self._lines[line - 1]
            # A line of a block scalar is indented further than the key after it.
            is_comment = above.lstrip(" ").startswith("#") and _indent(above) <= column
            if above.strip() and not is_comment:
                break
            line -= 1
        return line


def _block_mapping(node: Node | None) -> MappingNode:
    if not isinstance(node, MappingNode) or node.flow_style or not node.value:
        raise _OtherStyle
    return node


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _indented(lines: Sequence[str], columns: int) -> Iterator[str]:
    for line in lines:
        yield " " * columns + line if line.strip() else line


class _BlockDumper(yaml.SafeDumper):
    """Writes texts of several lines as block scalars."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    style = "|" if "\n" in text else None
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", text, style=style)


_BlockDumper.add_representer(str, _represent_text)


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True)
