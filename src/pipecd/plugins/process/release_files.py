# SPDX-License-Identifier: Apache-2.0
"""The list of the files of a release, and what somebody has changed since it was copied."""

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.plugins.process.json_codec import from_json, to_json


@dataclass(frozen=True)
class ReleaseLimits:
    """How many files a release may have, and how many bytes all of them."""

    files: int = 100_000
    size: int = 4 * 1024**3


@dataclass(frozen=True)
class ReleaseFile:
    """A file or, with a target, a link of a release."""

    digest: str = ""
    is_executable: bool = False
    link: str = ""
    size: int = 0
    modified: int = 0
    """Nanoseconds; it tells cheaply that a file is as it was."""

    def has_content_of(self, other: "ReleaseFile") -> bool:
        """Reports whether another copy has the same content, mode and target."""
        return (self.digest, self.is_executable, self.link) == (
            other.digest,
            other.is_executable,
            other.link,
        )


@dataclass(frozen=True)
class Manifest:
    """The files of a release by their path in it; `digest` identifies their content."""

    digest: str
    files: Mapping[str, ReleaseFile] = field(default_factory=dict[str, ReleaseFile])


def content_digest(files: Mapping[str, ReleaseFile]) -> str:
    """Returns the digest of names, contents and modes."""
    parts = [[name, f.digest, f.is_executable, f.link] for name, f in sorted(files.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Returns the digest of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_path(release: Path) -> Path:
    """Returns the place of the manifest of a release."""
    return release.with_name(f"{release.name}.json")


def read_manifest(release: Path) -> Manifest | None:
    """Returns the manifest of a complete release."""
    try:
        return from_json(Manifest, json.loads(manifest_path(release).read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_manifest(release: Path, manifest: Manifest) -> None:
    """Marks a release as complete."""
    scratch = manifest_path(release).with_suffix(".new")
    scratch.write_bytes(json.dumps(to_json(manifest)).encode())
    scratch.chmod(0o600)
    scratch.replace(manifest_path(release))


def changed_files(release: Path) -> tuple[str, ...]:
    """Returns the files of a release that were changed or removed since it was copied.

    New files do not count: programs write caches beside their code.
    """
    manifest = read_manifest(release)
    if manifest is None:
        return (".",)
    return tuple(name for name, file in manifest.files.items() if _is_changed(release / name, file))


def _is_changed(path: Path, file: ReleaseFile) -> bool:
    try:
        status = path.lstat()
        if file.link:
            return not stat.S_ISLNK(status.st_mode) or str(path.readlink()) != file.link
        if not stat.S_ISREG(status.st_mode):
            return True
        if bool(status.st_mode & stat.S_IXUSR) != file.is_executable:
            return True
        is_untouched = (status.st_size, status.st_mtime_ns) == (file.size, file.modified)
        return not is_untouched and file_digest(path) != file.digest
    except OSError:
        return True
