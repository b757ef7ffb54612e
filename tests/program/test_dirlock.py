# SPDX-License-Identifier: Apache-2.0
"""One process at a time locks a directory, also on a full disk."""

import os
from pathlib import Path

import pytest

from faults.disk import SmallDisk
from pipecd.model.errors import Unsupported
from pipecd.program.dirlock import DirectoryInUse, lock_directory

ELSEWHERE = "choose another one"


def test_a_directory_in_use_names_the_process_that_holds_it(tmp_path: Path) -> None:
    with (
        lock_directory(tmp_path, program="piped", elsewhere=ELSEWHERE),
        pytest.raises(DirectoryInUse, match=f"another piped .process {os.getpid()}. is using"),
        lock_directory(tmp_path, program="piped", elsewhere=ELSEWHERE),
    ):
        pass
    with lock_directory(tmp_path, program="piped", elsewhere=ELSEWHERE):
        pass


def test_a_directory_on_a_full_disk_is_locked(tmp_path: Path) -> None:
    try:
        disk = SmallDisk.mount(tmp_path / "full", megabytes=1)
    except Unsupported as e:
        pytest.skip(str(e))
    try:
        disk.fill()
        with (
            lock_directory(disk.directory, program="piped", elsewhere=ELSEWHERE),
            pytest.raises(DirectoryInUse, match="process unknown"),
            lock_directory(disk.directory, program="piped", elsewhere=ELSEWHERE),
        ):
            pass
    finally:
        disk.unmount()
