# SPDX-License-Identifier: Apache-2.0
"""What a rendering is made from: files, and perhaps what the network has today."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PINNED = re.compile(r"v?\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HISTORY = ".git"


@dataclass(frozen=True)
class Inputs:
    """The files and directories that are read, by names that are the same in each working copy.

    `is_open` means that the same files may be rendered to something else tomorrow: the newest
    version of a chart, the head of a branch, a page of the network.
    """

    places: Mapping[str, Path]
    is_open: bool = False


def merged(first: Inputs, second: Inputs) -> Inputs:
    """Returns what a rendering is made from that reads both."""
    return Inputs({**first.places, **second.places}, first.is_open or second.is_open)


def is_pinned(version: str) -> bool:
    """Reports whether a version of a chart is one version, not the newest of a range."""
    return _PINNED.fullmatch(version) is not None


def is_commit(ref: str) -> bool:
    """Reports whether a ref of a repository can never mean something else."""
    return _COMMIT.fullmatch(ref) is not None


def digest(inputs: Inputs, *, within: Path) -> str:
    """Returns a sum over names and content; links are followed.

    What lies outside of the working copy `within` is not of its commit and never the same.
    """
    found, root = hashlib.sha256(), within.resolve()
    for name in sorted(inputs.places):
        for label, content in _contents(name, inputs.places[name], root, frozenset()):
            found.update(f"{label}\0{len(content)}\0".encode(errors="surrogateescape"))
            found.update(content)
    return found.hexdigest()


def _contents(
    name: str, path: Path, root: Path, above: frozenset[Path]
) -> Iterator[tuple[str, bytes]]:
    real = path.resolve()
    if not real.is_relative_to(root):
        yield name, os.urandom(16)
    elif real in above:
        yield name, bytes(path.readlink())
    elif real.is_dir():
        for child in sorted(path.iterdir()):
            if child.name != _HISTORY:
                yield from _contents(f"{name}/{child.name}", child, root, above | {real})
    elif real.is_file():
        yield name, real.read_bytes()
