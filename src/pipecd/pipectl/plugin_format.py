# SPDX-License-Identifier: Apache-2.0
"""Rewrites the text of an application file for plugins: comments, block scalars and order stay.

Keys keep their lines. Those of a plugin move below `spec.plugins` and are indented further. A file
whose `spec` is written in another style than indented blocks is written anew, without its comments.
"""

import re
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


@dataclass(frozen=True)
class Rewritten:
    """The new text of a file; `lost` are the lines of the old one whose comments it lacks."""

    text: str
    lost: tuple[int, ...] = ()


class _OtherStyle(Exception):
    """The file is not written in indented blocks."""


@dataclass(frozen=True)
class _Entry:
    """A key of a mapping, or an item of a list, with its lines and the comments above it."""

    key: str
    value: Node
    start: int
    end: int


def rewrite_text(text: str, target: PluginFormat) -> Rewritten:
    """Returns the new text; its content is `target.document` in any case.

    Line breaks stay those of the file.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace(newline, "\n")
    try:
        new = _Rewriter(lines, target).text()
        if yaml.safe_load(new) == target.document:
            return Rewritten(new.replace("\n", newline), _lost_comments(lines, new))
    except (_OtherStyle, yaml.YAMLError):
        # An alias may stand before its anchor now.
        pass
    new = _dump(target.document)
    return Rewritten(new.replace("\n", newline), _lost_comments(lines, new))


_COMMENT = re.compile(r"(?:^|\s)(#.*)$")


def _lost_comments(old: str, new: str) -> tuple[int, ...]:
    """The numbers of the lines whose comments are not in the new text; some may be none."""
    kept = {found[1] for line in new.splitlines() if (found := _COMMENT.search(line))}
    numbered = enumerate(old.splitlines(), start=1)
    found = ((number, _COMMENT.search(line)) for number, line in numbered)
    return tuple(number for number, comment in found if comment and comment[1] not in kept)


class _Rewriter:
    """Moves the lines of one file."""

    def __init__(self, text: str, target: PluginFormat) -> None:
        if "\r" in text:
            raise _OtherStyle
        self._lines = text.splitlines(keepends=True)
        if self._lines and not self._lines[-1].endswith("\n"):
            self._lines[-1] += "\n"
        self._target = target
        document = "".join(self._lines)
        self._root = _block_mapping(cast("Any", yaml).compose(document, Loader=yaml.SafeLoader))

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
        added = _added_fields(pipeline.value, self._target.document["spec"]["pipeline"]["stages"])
        lines: list[str] = self._lines[pipeline.start : pipeline.end]
        # From the end, so that earlier positions stay valid.
        for stage, fields in reversed(added):
            if stage.flow_style:
                first: Node = stage.value[0][1]
                at = first.end_mark.line - pipeline.start
                lines[at] = _with_flow_fields(lines[at], first.end_mark.column, fields)
            else:
                column = stage.value[0][0].start_mark.column
                after = self._last_line(stage) + 1 - pipeline.start
                text = _dump(fields).splitlines(keepends=True)
                lines[after:after] = _indented(text, column)
        yield from lines

    def _last_line(self, block: Node) -> int:
        """The last line of a block; comments that are indented less belong to what follows."""
        line = block.end_mark.line - 1
        while _is_between(self._lines[line], block.start_mark.column):
            line -= 1
        return line

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


def _added_fields(
    pipeline: Node, documents: Sequence[Mapping[str, Any]]
) -> list[tuple[MappingNode, dict[str, Any]]]:
    """The stages that get fields, with those; a pipeline of another form is not rewritten."""
    if not isinstance(pipeline, MappingNode) or [k.value for k, _ in pipeline.value] != ["stages"]:
        raise _OtherStyle
    stages = pipeline.value[0][1]
    if not isinstance(stages, SequenceNode):
        raise _OtherStyle
    added: list[tuple[MappingNode, dict[str, Any]]] = []
    for node, document in zip(stages.value, documents, strict=True):
        if not isinstance(node, MappingNode) or not node.value:
            raise _OtherStyle
        keys = {key.value for key, _ in node.value}
        if fields := {key: value for key, value in document.items() if key not in keys}:
            added.append((node, fields))
    return added


def _with_flow_fields(line: str, at: int, fields: Mapping[str, Any]) -> str:
    """The line of a mapping in braces with the fields after one that ends there."""
    written = yaml.safe_dump(
        fields, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return f"{line[:at]}, {written.strip()[1:-1]}{line[at:]}"


def _is_between(line: str, column: int) -> bool:
    """Whether the line is empty, or a comment that is indented less than the column."""
    return not line.strip() or (line.lstrip(" ").startswith("#") and _indent(line) < column)


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
    """Writes texts of several lines as block scalars, and repeated values without aliases."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    style = "|" if "\n" in text else None
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", text, style=style)


_BlockDumper.add_representer(str, _represent_text)


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True)
