# SPDX-License-Identifier: Apache-2.0
"""The logs of programs: kept, rotated, and read back for the reason of a failure.

A program writes into its log itself, so that it needs nobody to run. A large log is therefore
copied and emptied; the lines of the moment in between are in neither file.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

MAX_SIZE = 10 * 1024 * 1024
KEPT = 5
_TAIL = 64 * 1024


def rotate(log: Path, *, max_size: int = MAX_SIZE, kept: int = KEPT) -> bool:
    """Moves the content of a large log to `<name>.1` and older ones up; returns whether it did."""
    try:
        if log.stat().st_size <= max_size:
            return False
    except FileNotFoundError:
        return False
    for number in range(kept - 1, 0, -1):
        with suppress(FileNotFoundError):
            log.with_name(f"{log.name}.{number}").replace(log.with_name(f"{log.name}.{number + 1}"))
    copy = os.open(log.with_name(f"{log.name}.1"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with log.open("rb") as source, os.fdopen(copy, "wb") as target:
        shutil.copyfileobj(source, target)
    os.truncate(log, 0)
    return True


def last_lines(log: Path, offset: int, count: int) -> list[str]:
    """Returns the last lines that were written after an offset; none if there is no log."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # The log was emptied since.
            begin = offset if offset <= end else 0
            file.seek(max(begin, end - _TAIL))
            text = file.read(_TAIL).decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-count:]
