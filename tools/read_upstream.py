# SPDX-License-Identifier: Apache-2.0
"""Reads every configuration file of a checkout of upstream, and prints what our readers lose.

    python tools/read_upstream.py DIR [--list]

A field is unknown if no type of ours has its key: upstream should ignore it too. A field is lost if
its key is known, but the result has its value less often than the file. `--list` also prints every
refused document and every unknown or lost field. The program ends with 1 if a field is lost.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.envelope import API_VERSION, Generation, open_envelope
from pipecd.config.piped_notifications import SUBTEAM
from pipecd.config.read import ConfigMistake, read_file
from pipecd.config.report import Path as YamlPath
from pipecd.config.report import dotted
from pipecd.config.spec import plain
from pipecd.config.units import Duration
from pipecd.config.yaml_tree import List, Map, Node, Scalar, of_plain

MANIFEST_KINDS = frozenset({"LambdaFunction", "CloudRunService"})
"""Kinds of manifests that have our `apiVersion` too; platforms read them, not these readers."""
READERS = {
    "config": Generation.V0,
    "piped": Generation.V0,
    "configv1": Generation.V1,
    "pipedv1": Generation.V1,
}
"""The rules that upstream's packages of these names read their test data by."""

TITLES = (
    *("directory", "kind", "files", "documents", "read", "refused"),
    *("fields", "unknown", "lost"),
)

Leaf = tuple[str, str]
"""A key and a value, written so that equal values have equal texts."""


@dataclass(frozen=True)
class ReadDocument:
    """A configuration document, and what became of it."""

    file: Path
    kind: str
    fields: int = 0
    unknown: tuple[str, ...] = ()
    """The paths of the fields that are ignored."""
    lost: tuple[str, ...] = ()
    """The paths of the fields whose value the result lacks."""
    refusal: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--list", action="store_true", help="print refusals and lost fields")
    arguments = parser.parse_args()
    documents = read_tree(arguments.directory)
    print(table(documents))
    for document in documents if arguments.list else ():
        if document.refusal:
            print(f"refused: {document.refusal}")
        for path in document.unknown:
            print(f"unknown: {document.file}: {path}")
        for path in document.lost:
            print(f"lost: {document.file}: {path}")
    sys.exit(any(document.lost for document in documents))


def read_tree(root: Path) -> list[ReadDocument]:
    """Read every configuration document below a directory; `file` is relative to it."""
    catalog = load_catalog()
    files = sorted(path for path in root.rglob("*") if path.suffix in (".yaml", ".yml"))
    return [
        document
        for path in files
        for document in _read(path.relative_to(root), path.read_bytes(), catalog)
    ]


def _read(file: Path, text: bytes, catalog: Catalog) -> Iterator[ReadDocument]:
    """Read the configuration documents of a file; like upstream, readers read only the first."""
    for i, document in enumerate(_documents(text)):
        kind = str(document.get("kind", ""))
        if document.get("apiVersion") != API_VERSION or kind in MANIFEST_KINDS:
            continue
        if i > 0:
            yield ReadDocument(
                file, kind, refusal=f"{file}: document {i + 1}: only the first of a file is read"
            )
            continue
        try:
            config = read_file(text, file=str(file), catalog=catalog, reader=_reader_of(file))
        except ConfigMistake as e:
            yield ReadDocument(file, kind, refusal=str(e))
            continue
        spec = open_envelope(text, file=str(file)).spec
        unknown = tuple(w.path for w in config.warnings if w.what.startswith("unknown field"))
        lost = lost_fields(spec, of_plain(plain(config.spec)), unknown, catalog)
        yield ReadDocument(file, kind, _count_fields(spec), unknown, lost)


def _documents(text: bytes) -> list[Mapping[str, Any]]:
    """Return the objects in a file; none of a file that is not YAML, such as a template."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return []
    return [document for document in documents if isinstance(document, dict)]


def _reader_of(file: Path) -> Generation | None:
    """Return the rules that upstream reads a file by; None if its content decides."""
    return next((READERS[part] for part in file.parts if part in READERS), None)


def lost_fields(
    written: Node, result: Node, unknown: Sequence[str], catalog: Catalog
) -> tuple[str, ...]:
    """Return the paths of known fields whose value the result has less often than the file."""
    available = Counter(leaf for _, leaf in _leaves(result))
    # Several deploy targets share one plugin.
    names, translated = frozenset(available), _translated(catalog)
    lost: list[str] = []
    for path, leaf in _leaves(written):
        where = dotted(("spec", *path))
        if any(where == each or where.startswith((f"{each}.", f"{each}[")) for each in unknown):
            continue
        if available[leaf] > 0:
            available[leaf] -= 1
        elif translated.get(leaf) not in names:
            lost.append(where)
    return tuple(lost)


def _translated(catalog: Catalog) -> dict[Leaf, Leaf]:
    """Return the values of v0 files that have another name in a file with plugins."""
    stages = {
        ("name", old): ("name", stage.name)
        for old, stage in catalog.v0_stages.items()
        if stage.name
    }
    providers = {
        ("type", plugin.v0.provider_type): ("name", plugin.name)
        for plugin in catalog.plugins
        if plugin.v0
    }
    return stages | providers


def _leaves(node: Node, path: YamlPath = (), key: str = "") -> Iterator[tuple[YamlPath, Leaf]]:
    """Yield every scalar with its path; keys are equal in upper and lower case."""
    match node:
        case Map():
            for entry in node:
                yield from _leaves(entry.value, (*path, entry.key), entry.key)
        case List():
            for i, item in enumerate(node.items):
                yield from _leaves(item, (*path, i), key)
        case Scalar(value=None):
            pass
        case Scalar():
            yield path, (key.lower(), _canonical(key, node.value))


def _canonical(key: str, value: object) -> str:
    """Return a value as text that all spellings of it share."""
    match value:
        case bool():
            return str(value)
        case int() | float():
            return f"{value:g}"
        case str() if key in ("mentionedAccounts", "mentionedGroups"):
            return value.strip("@<>").removeprefix(SUBTEAM)
        case str():
            try:
                return str(Duration.parse(value))
            except ValueError:
                return value
        case _:
            return str(value)


def _count_fields(node: Node) -> int:
    match node:
        case Map():
            return sum(1 + _count_fields(entry.value) for entry in node)
        case List():
            return sum(_count_fields(item) for item in node.items)
        case Scalar():
            return 0


def table(documents: Sequence[ReadDocument]) -> str:
    """Return the counts per directory and kind, and their sums."""
    groups: dict[tuple[str, str], list[ReadDocument]] = {}
    for document in documents:
        groups.setdefault((_group_of(document.file), document.kind), []).append(document)
    rows = [(*group, *_counts(groups[group])) for group in sorted(groups)]
    lines = [TITLES, ["---"] * len(TITLES), *rows, ("all", "", *_counts(documents))]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def _counts(documents: Sequence[ReadDocument]) -> tuple[int, ...]:
    refused = sum(1 for document in documents if document.refusal)
    return (
        len({document.file for document in documents}),
        len(documents),
        len(documents) - refused,
        refused,
        sum(document.fields for document in documents),
        sum(len(document.unknown) for document in documents),
        sum(len(document.lost) for document in documents),
    )


def _group_of(file: Path) -> str:
    """Return the directory that a file is counted in: its test data or its platform's examples."""
    parts = file.parent.parts
    for end in ("testdata", "example"):
        if end in parts:
            return "/".join(parts[: parts.index(end) + 1])
    return "/".join(parts[:3])


if __name__ == "__main__":
    main()
