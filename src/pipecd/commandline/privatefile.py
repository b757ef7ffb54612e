# SPDX-License-Identifier: Apache-2.0
"""Files that hold secrets."""

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Writes a file for its owner only; a reader sees the old or the new one."""
    scratch = path.with_name(f"{path.name}.new")
    # One that was left behind may be open to others.
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
