# SPDX-License-Identifier: Apache-2.0
"""The private directory of the Unix sockets through which piped and its plugins call each other."""

import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pipecd.model.errors import UserMistake

_NAME = "sockets"
# The kernel's limit for the path of a socket, without its final zero byte.
_LONGEST_PATH = 107
# The longest name that piped gives to a socket, with its slash.
_LONGEST_NAME = len("/plugin-9999.sock")


@contextmanager
def socket_directory(workspace: Path | None) -> Generator[Path, None, None]:
    """Creates an empty directory that only this user can enter, and removes it after the block.

    It is inside of the workspace, unless its path is too long for a socket or another user could
    replace it there.
    """
    if workspace is not None and _is_suitable(workspace):
        directory = workspace / _NAME
        _create_empty(directory)
    else:
        directory = Path(tempfile.mkdtemp(prefix="piped-"))
        if not _fits(directory):
            directory.rmdir()
            directory = Path(tempfile.mkdtemp(prefix="piped-", dir="/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _is_suitable(workspace: Path) -> bool:
    if not _fits(workspace / _NAME):
        return False
    workspace.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = workspace.stat()
    is_shared = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return status.st_uid in (os.geteuid(), 0) and not is_shared


def _fits(directory: Path) -> bool:
    return len(os.fsencode(directory.absolute())) + _LONGEST_NAME <= _LONGEST_PATH


def _create_empty(directory: Path) -> None:
    """Creates the directory; what a killed piped left there is removed."""
    try:
        status = directory.lstat()
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise UserMistake(
                f"{directory} is not a directory of the user that piped runs as",
                hint="remove it, or choose another directory with --workspace-dir",
            )
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700)
