# SPDX-License-Identifier: Apache-2.0
"""Files that are whole whenever they are read, also after a power cut."""

import errno
import os
from pathlib import Path


def write_whole(
    path: Path, content: bytes, *, mode: int = 0o666, scratch: Path | None = None
) -> None:
    """Writes a file; whoever reads it sees the old one or the new one.

    Two who may write it at once need a scratch file each, on the same file system.
    """
    scratch = scratch or path.with_name(f"{path.name}.new")
    # One that was left behind may be open to others.
    scratch.unlink(missing_ok=True)
    try:
        opened = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(opened, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_private(path: Path, content: bytes, *, scratch: Path | None = None) -> None:
    """Writes a whole file that only its owner can read."""
    write_whole(path, content, mode=0o600, scratch=scratch)


def _sync_directory(directory: Path) -> None:
    """Makes a rename last through a power cut, where the file system can do that."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as e:
        # Some file systems of networks keep the order of renames by themselves.
        if e.errno != errno.EINVAL:
            raise
    finally:
        os.close(opened)
