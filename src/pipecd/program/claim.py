# SPDX-License-Identifier: Apache-2.0
"""A directory that one process at a time may use."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pipecd.model.errors import UserMistake


class InUse(UserMistake):
    """Another process has claimed the directory and lives."""


@contextmanager
def claimed(directory: Path, *, program: str, elsewhere: str) -> Generator[None, None, None]:
    """Makes the directory and keeps the same program out of it until the block ends.

    The claim ends with the process, also when that is killed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (directory / "lock").open("a+")
    except OSError as e:
        raise UserMistake(f"cannot write to {directory}: {e.strerror}", hint=elsewhere) from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise InUse(
                f"another {program} (process {holder}) is using {directory}",
                hint=f"stop it or {elsewhere}",
            ) from e
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
