# SPDX-License-Identifier: Apache-2.0
"""What processes use: memory, threads and open files."""

import re
from contextlib import suppress
from pathlib import Path

from faults.evidence import Resources


def used_by(pid: int) -> Resources | None:
    """What a process uses now; None if it does not run."""
    with suppress(OSError, LookupError):
        status = Path(f"/proc/{pid}/status").read_text()
        memory = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024
        threads = int(re.findall(r"Threads:\s+(\d+)", status)[0])
        return Resources(pid, memory, threads, len([*Path(f"/proc/{pid}/fd").iterdir()]))
    return None
