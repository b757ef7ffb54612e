# SPDX-License-Identifier: Apache-2.0
"""Git LFS: replaces the pointer files of a working copy by the files they point to."""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

from pipecd.git.command import REMOTE_TIMEOUT
from pipecd.git.tree_limits import TreeLimits, TreeSize, check_size
from pipecd.model.errors import Denied, Unavailable, UserMistake
from pipecd.program.run import capture

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*"
    rb"oid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n"
)
# Neither a pointer nor a .gitattributes file is longer.
_READ_LIMIT = 64 * 1024
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_PATTERNS = 300
# A copy of a small file costs nothing, and a large one is hardly ever written to.
_HARDLINK_MIN_SIZE = 1024 * 1024
_DEFAULT_LIMITS = TreeLimits()


@dataclass(frozen=True)
class Pointer:
    """A pointer file in a working copy and the object it points to."""

    file: Path
    oid: str
    size: int


@dataclass(frozen=True)
class LfsFiles:
    """The LFS objects of one clone; `name` is the repository as errors name it."""

    name: str
    repository: Path
    env: Mapping[str, str] = field(repr=False)
    limits: TreeLimits = _DEFAULT_LIMITS

    async def replace_pointers(self, commit: str, into: Path, *, paths: Sequence[str] = ()) -> None:
        """Replaces every pointer in a working copy, or at some paths; fetches missing objects."""
        pointers = await asyncio.to_thread(
            _find_pointers, into, [into / path for path in paths] or [into]
        )
        if not pointers:
            return
        total = TreeSize(len(pointers), sum(each.size for each in pointers))
        check_size(total, self.limits, what=f"Git LFS of {self.name}")
        missing = [each for each in pointers if not self._object(each.oid).is_file()]
        if missing:
            await self._fetch(commit, [each.file.relative_to(into) for each in missing])
        await asyncio.to_thread(self._replace, pointers)

    async def _fetch(self, commit: str, files: list[Path]) -> None:
        if shutil.which("git-lfs", path=self.env.get("PATH")) is None:
            raise UserMistake(
                f"{self.name}: {files[0]} is stored in Git LFS, and git-lfs is not installed",
                hint="install git-lfs on the machine, or in the image, of piped",
            )
        # Only the missing files, or all when they are too many for a command line. To git-lfs a
        # comma or a star in a name is syntax and a question mark matches any character.
        names = files if len(files) <= _MAX_PATTERNS else []
        include = ",".join(re.sub(r"[^A-Za-z0-9_./-]", "?", str(file)) for file in names)
        done = await capture(
            ["git", "lfs", "fetch", "origin", commit, f"--include={include}", "--exclude="],
            cwd=self.repository,
            env=self.env,
            at_most=REMOTE_TIMEOUT,
        )
        if done.code == 0:
            return
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no message"]
        message = f"{self.name}: files of Git LFS could not be fetched ({lines[-1]})"
        if re.search(r"authentication|authorization|credentials|\b40[13]\b", output, re.IGNORECASE):
            raise Denied(
                message, hint="check git.username and git.password in the piped configuration"
            )
        raise Unavailable(message)

    def _object(self, oid: str) -> Path:
        return self.repository / "lfs" / "objects" / oid[:2] / oid[2:4] / oid

    def _replace(self, pointers: list[Pointer]) -> None:
        for pointer in pointers:
            stored = self._object(pointer.oid)
            try:
                mode = pointer.file.stat().st_mode & 0o777
                pointer.file.unlink()
                stored.touch()
                if stored.stat().st_size < _HARDLINK_MIN_SIZE or mode & 0o111:
                    shutil.copyfile(stored, pointer.file)
                    pointer.file.chmod(mode)
                else:
                    pointer.file.hardlink_to(stored)
            except OSError as e:
                raise Unavailable(f"{pointer.file.name} of Git LFS is missing: {e.strerror}") from e


def _find_pointers(root: Path, searched: Sequence[Path]) -> list[Pointer]:
    """Reads files only if a .gitattributes file configures the LFS filter."""
    files: list[Path] = []
    for path in searched:
        if path != root and not path.parent.resolve().is_relative_to(root.resolve()):
            # A link on the way leads outside of the working copy.
            continue
        if path.is_dir() and not path.is_symlink():
            files += [Path(parent, name) for parent, _, names in os.walk(path) for name in names]
        else:
            files.append(path)
    above = {parent for path in searched for parent in path.parents if parent.is_relative_to(root)}
    attributes = {parent / ".gitattributes" for parent in above}
    attributes.update(file for file in files if file.name == ".gitattributes")
    if not any(b"filter=lfs" in _read_start(file) for file in attributes):
        return []
    matches = ((file, _POINTER.fullmatch(_read_start(file))) for file in files)
    return [Pointer(file, match[1].decode(), int(match[2])) for file, match in matches if match]


def _read_start(file: Path) -> bytes:
    try:
        # A link may lead to a device or a file of the host, which must not even be opened.
        with os.fdopen(os.open(file, _READ_FLAGS), "rb") as opened:
            return opened.read(_READ_LIMIT) if S_ISREG(os.fstat(opened.fileno()).st_mode) else b""
    except OSError:
        return b""
