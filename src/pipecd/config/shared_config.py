# SPDX-License-Identifier: Apache-2.0
"""What a repository keeps for all of its applications: the files under `.pipe/`."""

from collections.abc import Mapping
from pathlib import Path

from pipecd.config.catalog import Catalog, SpecT
from pipecd.config.decode import Level
from pipecd.config.envelope import open_envelope
from pipecd.config.read import read_kind
from pipecd.config.report import ConfigMistake
from pipecd.config.spec import Reference, plain

SHARED_CONFIG = ".pipe"

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def read_shared(directory: Path, kind: str, to: type[SpecT]) -> SpecT | None:
    """Return the `spec` of the first file of a kind, by name, or None.

    A file that cannot be read is a mistake only if none of the others is of the kind.
    """
    unreadable: ConfigMistake | None = None
    for path in _files_in(directory):
        text, file = path.read_bytes(), f"{SHARED_CONFIG}/{path.name}"
        try:
            found = open_envelope(text, file=file, unknown=Level.IGNORED).kind
        except ConfigMistake as e:
            unreadable = unreadable or e
            continue
        if found == kind:
            return read_kind(text, file=file, kind=kind, to=to)
    if unreadable is not None:
        raise unreadable
    return None


def not_found(reference: Reference, directory: Path, catalog: Catalog) -> str:
    """Return what keeps a reference from being followed, nothing when it leads somewhere."""
    try:
        found = read_shared(directory, reference.kind, catalog.kinds[reference.kind])
    except ConfigMistake as e:
        return f"cannot be looked up: {e.report.mistakes[0]}"
    known: Mapping[str, object] = plain(found).get(reference.section, {}) if found else {}
    if reference.name in known:
        return ""
    where = f"a file of kind {reference.kind} under {SHARED_CONFIG}/"
    what = f'there is no {reference.section} "{reference.name}" in {where}'
    return f"{what}, known are: {', '.join(sorted(known))}" if known else what


def _files_in(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.suffix in _SUFFIXES and p.is_file())
