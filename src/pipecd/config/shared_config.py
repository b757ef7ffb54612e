# SPDX-License-Identifier: Apache-2.0
"""The files under `.pipe/`, which all applications of a repository share."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pipecd.config.catalog import Catalog, SpecT
from pipecd.config.envelope import open_envelope
from pipecd.config.read import read_kind
from pipecd.config.report import ConfigMistake
from pipecd.config.spec import Reference, plain

SHARED_CONFIG = ".pipe"

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def read_shared(
    directory: Path, kind: str, to: type[SpecT], *, read: Callable[[Path], bytes] = Path.read_bytes
) -> SpecT | None:
    """Return the `spec` of the first file of a kind, by name, or None.

    A file that cannot be parsed is an error only if no other file has the kind. `read` returns the
    content of a file, and decides which files may be read.
    """
    unreadable: ConfigMistake | None = None
    files = directory.iterdir() if directory.is_dir() else ()
    for path in sorted(p for p in files if p.suffix in _SUFFIXES and p.is_file()):
        text, file = read(path), f"{SHARED_CONFIG}/{path.name}"
        try:
            file_kind = open_envelope(text, file=file).kind
        except ConfigMistake as e:
            unreadable = unreadable or e
            continue
        if file_kind == kind:
            return read_kind(text, file=file, kind=kind, to=to)
    if unreadable is not None:
        raise unreadable
    return None


def unresolved(reference: Reference, directory: Path, catalog: Catalog) -> str:
    """Return why a reference cannot be resolved, or "" if it can."""
    try:
        shared = read_shared(directory, reference.kind, catalog.kinds[reference.kind])
    except ConfigMistake as e:
        return f"cannot be resolved: {e.report.mistakes[0]}"
    entries: Mapping[str, object] = plain(shared).get(reference.section, {}) if shared else {}
    if reference.name in entries:
        return ""
    where = f"a file of kind {reference.kind} under {SHARED_CONFIG}/"
    what = f'there is no {reference.section} "{reference.name}" in {where}'
    return f"{what}, it has: {', '.join(sorted(entries))}" if entries else what
