# SPDX-License-Identifier: Apache-2.0
"""YAML documents as plain values, read as the Go tools around Kubernetes read them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from pipecd.config.yaml_tree import YamlMistake, read_yaml, to_plain
from pipecd.model.errors import UserMistake

_SEPARATOR = re.compile(r"^---(?=[ \t]|$).*$", re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """One document of a file and the line where it begins."""

    value: Any
    line: int


def read_documents(text: str, *, file: str) -> list[Document]:
    """Returns the documents that are not empty; an error has file, line and column."""
    documents: list[Document] = []
    for line, part in _parts(text):
        try:
            value = to_plain(read_yaml(part))
        except YamlMistake as e:
            at = f"{file}:{e.mark.line + line - 1}:{e.mark.column}"
            raise UserMistake(f"{at}: {e.what}") from e
        if value is not None:
            documents.append(Document(value, line))
    return documents


def plain_documents(text: str, file: str) -> list[tuple[Any, int]]:
    """Returns the documents with their lines as plain values, which a worker can return."""
    return [(document.value, document.line) for document in read_documents(text, file=file)]


def write_yaml(value: Any) -> str:
    """Writes a value with sorted keys and no flow style."""
    return yaml.dump(
        value, Dumper=_Plain, default_flow_style=False, allow_unicode=True, width=2**30
    )


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Yields every document with its first line; content may follow a separator on its line."""
    line, begin = 1, 0
    for separator in _SEPARATOR.finditer(text):
        part = text[begin : separator.start()]
        if part.strip():
            yield line, part
        line += part.count("\n")
        begin = separator.start() + len("---")
    if text[begin:].strip():
        yield line, text[begin:]


class _Plain(yaml.CSafeDumper):
    """A dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
