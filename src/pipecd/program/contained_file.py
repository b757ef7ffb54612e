# SPDX-License-Identifier: Apache-2.0
"""Reads files that a repository names, and only those inside of its working copy.

A path may be absolute or contain `..`, and a link may point anywhere. Neither lets the content of
a repository read a file of the host, a device, or more than fits into memory. The errors speak of
the file as "it": the caller names the file as the user wrote it. They show no path of the host.
"""

import os
import stat
from pathlib import Path

from pipecd.model.errors import UserMistake

# Bundles of manifests, such as the resource definitions of an operator, have a few megabytes.
FILE_LIMIT = 16 * 1024 * 1024
# Git's own files are no content of a repository, and decide which programs git starts.
_GIT_DIRECTORY = ".git"


def contained_path(root: Path, path: Path | str) -> Path:
    """Returns the resolved path, which lies inside of `root`; a relative path starts there."""
    try:
        real, real_root = (root / path).resolve(), root.resolve()
    except (OSError, ValueError, RuntimeError) as e:
        # A loop of links, a name that is too long, or one with a NUL.
        raise UserMistake("it is not a path of a file") from e
    if not real.is_relative_to(real_root):
        raise UserMistake("it leads outside of the repository")
    if _GIT_DIRECTORY in real.relative_to(real_root).parts:
        raise UserMistake("it leads into the directory .git")
    return real


def read_contained(root: Path, path: Path | str, *, limit: int = FILE_LIMIT) -> bytes:
    """Returns the content of a regular file inside of `root` with at most `limit` bytes."""
    real = contained_path(root, path)
    try:
        # Some devices act on being opened, and a FIFO would wait for its writer.
        _require_regular(real.lstat())
        file = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as opened:
            _require_regular(os.fstat(opened.fileno()))
            content = opened.read(limit + 1)
    except FileNotFoundError as e:
        raise UserMistake("it does not exist") from e
    except OSError as e:
        raise UserMistake(f"it cannot be read: {e.strerror}") from e
    if len(content) > limit:
        raise UserMistake(f"it is larger than {_size(limit)}")
    return content


def validate_tree(root: Path, directory: Path | str) -> None:
    """Refuses a directory from which a program would read something outside of `root`.

    Every link in it must stay inside of `root`, and everything else must be a file or a directory.
    The directories that links point to are validated as well.
    """
    queue, visited = [contained_path(root, directory)], set[Path]()
    while queue:
        current = queue.pop()
        if current in visited:
            continue
        visited.add(current)
        for entry in current.iterdir():
            if entry.name == _GIT_DIRECTORY:
                continue
            name = os.path.relpath(entry, root.resolve())
            try:
                path = contained_path(root, entry) if entry.is_symlink() else entry
            except UserMistake as e:
                raise UserMistake(f"it contains the link {name}: {e.message}") from e
            if path.is_dir():
                queue.append(path)
            elif path.exists() and not path.is_file():
                raise UserMistake(f"it contains {name}, which is neither a file nor a directory")


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UserMistake("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise UserMistake("it is not a regular file")


def _size(limit: int) -> str:
    return f"{limit // 1024**2} MiB" if limit >= 1024**2 else f"{limit} bytes"
