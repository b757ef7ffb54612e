# SPDX-License-Identifier: Apache-2.0
"""Atomic, durable file writes: temporary file, fsync, rename."""

import errno
import os
from pathlib import Path


def write_atomic(
    path: Path, content: bytes, *, mode: int = 0o666, scratch: Path | None = None
) -> None:
    """Replaces a file; readers see the old content or the new one, also after a power cut.

    Concurrent writers of one file need a scratch file each, on the same file system.
    """
    scratch = scratch or path.with_name(f"{path.name}.new")
    # A leftover of a crashed writer may have wider permissions.
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
    # The rename itself survives a power cut only after the directory is synced.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as e:
        # Some network file systems do not support this and order renames by themselves.
        if e.errno != errno.EINVAL:
            raise
    finally:
        os.close(directory)


def write_private(path: Path, content: bytes, *, scratch: Path | None = None) -> None:
    """Replaces a file like `write_atomic`; only its owner can read it."""
    write_atomic(path, content, mode=0o600, scratch=scratch)
