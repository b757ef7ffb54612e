# SPDX-License-Identifier: Apache-2.0
"""The inputs that manifests are rendered from, and a digest of them as a cache key."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipecd.sdk import UserMistake
from pipecd.sdk.files import contained_path

_PINNED = re.compile(r"v?\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class RenderInputs:
    """The files and directories that are read, by names that are equal in every working copy.

    `depends_on_network` means that the same files may render differently later: a version range of
    a chart, a branch, a URL.
    """

    paths: Mapping[str, Path]
    depends_on_network: bool = False


def merge_inputs(first: RenderInputs, second: RenderInputs) -> RenderInputs:
    """Returns the inputs of a rendering that reads both."""
    return RenderInputs(
        {**first.paths, **second.paths}, first.depends_on_network or second.depends_on_network
    )


def is_pinned(version: str) -> bool:
    """Reports whether a chart version is one version and no range."""
    return _PINNED.fullmatch(version) is not None


def is_commit(ref: str) -> bool:
    """Reports whether a Git ref is a full commit hash."""
    return _COMMIT.fullmatch(ref) is not None


def digest(inputs: RenderInputs, *, within: Path) -> str:
    """Returns a hash over the names and the content of all inputs; links are followed.

    What is rendered must be part of the commit: anything outside of the working copy `within`, and
    anything that is neither a file nor a directory, is refused.
    """
    result, root = hashlib.sha256(), within.resolve()
    for name in sorted(inputs.paths):
        for label, content in _digests(name, inputs.paths[name], root, frozenset()):
            result.update(f"{label}\0".encode(errors="surrogateescape"))
            result.update(content)
    return result.hexdigest()


def _digests(
    name: str, path: Path, root: Path, parents: frozenset[Path]
) -> Iterator[tuple[str, bytes]]:
    try:
        resolved = contained_path(root, path)
    except UserMistake as e:
        raise UserMistake(f"{name} cannot be rendered: {e.message}") from e
    if resolved in parents:
        yield name, bytes(path.readlink())
    elif resolved.is_dir():
        for child in sorted(path.iterdir()):
            if child.name != ".git":
                yield from _digests(f"{name}/{child.name}", child, root, parents | {resolved})
    elif resolved.is_file():
        with resolved.open("rb") as file:
            yield name, hashlib.file_digest(file, "sha256").digest()
    elif resolved.exists():
        raise UserMistake(f"{name} cannot be rendered: it is neither a file nor a directory")
