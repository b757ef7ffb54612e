# SPDX-License-Identifier: Apache-2.0
"""An exclusive lock on a directory: one process at a time may use it."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipecd.model.errors import UserMistake


class DirectoryInUse(UserMistake):
    """A running process holds the lock of the directory."""


@contextmanager
def lock_directory(directory: Path, *, program: str, elsewhere: str) -> Generator[None, None, None]:
    """Creates the directory and locks it until the block ends.

    The kernel releases the lock when the process ends, also when it is killed. `elsewhere` is the
    hint for the user: how to choose another directory.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (directory / "lock").open("a+b", buffering=0)
    except OSError as e:
        raise UserMistake(f"cannot write to {directory}: {e.strerror}", hint=elsewhere) from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "unknown"
            raise DirectoryInUse(
                f"another {program} (process {holder}) is using {directory}",
                hint=f"stop it or {elsewhere}",
            ) from e
        file.truncate(0)
        # Only a hint for users, for which a full disk may have no space.
        with suppress(OSError):
            file.write(str(os.getpid()).encode())
        yield
