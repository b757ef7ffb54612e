# SPDX-License-Identifier: Apache-2.0
"""The error for content of a repository that exceeds a limit, and what a program uses."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from pipecd.model.errors import UserMistake

MEBIBYTE = 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLL_SECONDS = 0.25
_PROC = Path("/proc")
# The fields of /proc/<pid>/stat after the name, counted from the state of the process.
_GROUP_FIELD, _USER_FIELD, _SYSTEM_FIELD, _PAGES_FIELD = 2, 11, 12, 21


class LimitExceeded(UserMistake):
    """The content of a repository takes more time, memory or output than it may, or crashes."""

    def __init__(
        self, message: str, *, hint: str = "simplify it, or raise the limits of spec.rendering"
    ) -> None:
        super().__init__(message, hint=hint)


def memory_text(memory: int) -> str:
    """Returns the words for a limit of memory."""
    return f"the memory limit of {memory // MEBIBYTE} MiB"


def output_text(output: int) -> str:
    """Returns the words for a limit of output."""
    return f"the output limit of {output // MEBIBYTE} MiB"


async def kill_when_larger(group: int, memory: int) -> None:
    """Kills a process group once its resident memory exceeds a limit; until then it polls.

    A limit of the address space would be exact, but programs in Go reserve much more than they use.
    """
    with suppress(OSError):
        # When the machine runs out of memory, this program is ended first.
        (_PROC / f"{group}/oom_score_adj").write_text("1000")
    await asyncio.sleep(_POLL_SECONDS)
    # No event reports how large a process has become.
    while await asyncio.to_thread(resident_memory, group) <= memory:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def resident_memory(group: int) -> int:
    """Returns the resident memory of a process group; 0 where the system has no /proc."""
    pages = 0
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = _process_fields(entry.name)
                pages += fields[_PAGES_FIELD] if fields[_GROUP_FIELD] == group else 0
    return pages * _PAGE


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process; raises OSError where the system has no /proc."""
    fields = _process_fields(str(pid))
    return (fields[_USER_FIELD] + fields[_SYSTEM_FIELD]) / os.sysconf("SC_CLK_TCK")


def _process_fields(pid: str) -> list[int]:
    # The name of the program is in parentheses and may contain blanks; the state is a letter.
    state, *fields = (_PROC / pid / "stat").read_bytes().rpartition(b")")[2].split()
    return [ord(state), *map(int, fields)]
