# SPDX-License-Identifier: Apache-2.0
"""A disk of its own for a directory, small enough to be filled."""

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipecd.model.errors import Unsupported

_BALLAST = "ballast"


@dataclass(frozen=True)
class SmallDisk:
    """A file system in memory, mounted on a directory until it is unmounted."""

    directory: Path

    @classmethod
    def mount(cls, directory: Path, *, megabytes: int) -> "SmallDisk":
        """Raises Unsupported if this user may not mount a file system."""
        directory.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
        if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
            raise Unsupported("only root may mount a file system")
        return cls(directory)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.directory)], check=True)

    def set_read_only(self, is_read_only: bool) -> None:
        mode = "ro" if is_read_only else "rw"
        # While a file is open for writing, the kernel refuses it.
        mount = ["mount", "-o", f"remount,{mode}", str(self.directory)]
        subprocess.run(mount, capture_output=True, check=not is_read_only)

    def fill(self) -> None:
        """Leaves no space at all."""
        with (self.directory / _BALLAST).open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 512):
                with suppress(OSError):
                    while True:
                        file.write(b"x" * size)

    def empty(self) -> None:
        (self.directory / _BALLAST).unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """The files that programs have written; directories may vanish meanwhile."""
        return [
            Path(directory, name)
            for directory, _, names in os.walk(self.directory)
            for name in names
            if name != _BALLAST
        ]


def mounted(directory: Path, *, megabytes: int) -> SmallDisk | None:
    """A small disk, or none if this user may not mount one."""
    try:
        return SmallDisk.mount(directory, megabytes=megabytes)
    except Unsupported:
        return None


def clear(directory: Path) -> None:
    """Removes what is in a directory, which may be the root of a disk."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def back_up(workspace: Path, backup: Path) -> None:
    """Copies a workspace that is in use; what vanishes meanwhile is not copied."""
    shutil.rmtree(backup, ignore_errors=True)
    with suppress(OSError, shutil.Error):
        shutil.copytree(workspace, backup, symlinks=True)
