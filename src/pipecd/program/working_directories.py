# SPDX-License-Identifier: Apache-2.0
"""The working directories of the programs that run on this machine."""

from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def working_directories() -> frozenset[Path]:
    """Returns the working directories of all processes that may be read; none without /proc."""
    found: set[Path] = set()
    with suppress(OSError):
        for process in _PROC.iterdir():
            # A process may end at any time, and those of other users are closed.
            with suppress(OSError):
                if process.name.isdigit():
                    found.add((process / "cwd").readlink())
    return frozenset(found)
