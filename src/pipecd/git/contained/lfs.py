# SPDX-License-Identifier: Apache-2.0
"""Files of Git LFS: a commit has only a note of each, the content is kept elsewhere."""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.git.contained.unused import unused
from pipecd.model.errors import Denied, PipecdError, Unavailable, UserMistake
from pipecd.program.capture import capture

_NOTE = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*"
    rb"oid sha256:([0-9a-f]{64})\nsize ([0-9]+)\n"
)
# Neither a note nor a list of attributes is longer.
_LONGEST_FILE = 64 * 1024
_FETCH_AT_MOST = 1800.0
_MOST_PATTERNS = 300
# A copy of a small file costs nothing, and a large one is hardly ever written to.
_LINKED_FROM = 1024 * 1024


@dataclass(frozen=True)
class Note:
    """What stands in a commit for a file of Git LFS."""

    file: Path
    oid: str


@dataclass(frozen=True)
class LargeFiles:
    """The files of Git LFS of one repository; `name` is what people call it."""

    name: str
    repository: Path
    env: Mapping[str, str] = field(repr=False)

    async def put(self, commit: str, into: Path, *, paths: Sequence[str] = ()) -> None:
        """Replaces every note in a working copy, or at some paths, by what it stands for."""
        notes = await asyncio.to_thread(_notes, into, [into / path for path in paths] or [into])
        missing = [note for note in notes if not _kept(self.repository, note.oid).is_file()]
        if missing:
            await self._fetch(commit, [note.file.relative_to(into) for note in missing])
        await asyncio.to_thread(_put, self.repository, notes)

    async def _fetch(self, commit: str, files: list[Path]) -> None:
        if shutil.which("git-lfs", path=self.env.get("PATH")) is None:
            raise UserMistake(
                f"{self.name}: {files[0]} is kept in Git LFS, and git-lfs is not installed",
                hint="install git-lfs on the machine, or in the image, of piped",
            )
        only = f"--include={_patterns(files)}"
        done = await capture(
            ["git", "lfs", "fetch", "origin", commit, only, "--exclude="],
            cwd=self.repository,
            env={**self.env, "GIT_DIR": str(self.repository)},
            at_most=_FETCH_AT_MOST,
        )
        if done.code:
            said = (done.stdout + done.stderr).decode("utf-8", "replace")
            raise _explained(said, self.name)


def _patterns(files: list[Path]) -> str:
    """Only the files that are needed, or everything when they are too many for a command."""
    if len(files) > _MOST_PATTERNS:
        return ""
    # A comma or a star in a name means something to git-lfs, a question mark any character.
    return ",".join(re.sub(r"[^A-Za-z0-9_./-]", "?", str(file)) for file in files)


def _explained(said: str, name: str) -> PipecdError:
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no message"]
    told = f"{name}: files of Git LFS could not be fetched ({lines[-1]})"
    if re.search(r"authentication|authorization|credentials|\b40[13]\b", said, re.IGNORECASE):
        return Denied(told, hint="check git.username and git.password in the piped configuration")
    return Unavailable(told)


def _kept(repository: Path, oid: str) -> Path:
    return repository / "lfs" / "objects" / oid[:2] / oid[2:4] / oid


def forget_unused(repository: Path) -> None:
    """Removes contents that no working copy has needed for a long time."""
    for kept in unused((repository / "lfs" / "objects").glob("??/??/*")):
        kept.unlink(missing_ok=True)


def _put(repository: Path, notes: list[Note]) -> None:
    for note in notes:
        kept = _kept(repository, note.oid)
        try:
            mode = note.file.stat().st_mode & 0o777
            note.file.unlink()
            kept.touch()
            if kept.stat().st_size < _LINKED_FROM or mode & 0o111:
                shutil.copyfile(kept, note.file)
                note.file.chmod(mode)
            else:
                note.file.hardlink_to(kept)
        except OSError as e:
            raise Unavailable(f"{note.file.name} of Git LFS is missing: {e.strerror}") from e


def _notes(root: Path, places: Sequence[Path]) -> list[Note]:
    """Only looked for where an attribute says that there are any."""
    files = [file for place in places for file in _files(place)]
    above = {parent for place in places for parent in place.parents if parent.is_relative_to(root)}
    attributes = {parent / ".gitattributes" for parent in above}
    attributes.update(file for file in files if file.name == ".gitattributes")
    if not any(b"filter=lfs" in _start(file) for file in attributes):
        return []
    matches = ((file, _NOTE.fullmatch(_start(file))) for file in files)
    return [Note(file, match[1].decode()) for file, match in matches if match]


def _files(place: Path) -> list[Path]:
    if not place.is_dir() or place.is_symlink():
        return [place]
    return [Path(parent, name) for parent, _, names in os.walk(place) for name in names]


def _start(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return b"" if file.is_symlink() else opened.read(_LONGEST_FILE)
    except OSError:
        return b""
