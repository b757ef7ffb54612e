# SPDX-License-Identifier: Apache-2.0
"""What a program prints that meets a full disk where it starts."""

import errno
import os

import click
import pytest

from pipecd.commandline.main import run


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_program_that_cannot_start_on_a_full_disk_says_so_in_a_line(
    capsys: pytest.CaptureFixture[str], code: int
) -> None:
    @click.command()
    def start() -> None:
        raise OSError(code, os.strerror(code))

    assert run(start, []) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"cannot write to the disk: {os.strerror(code)}")


def test_other_errors_of_the_system_are_not_hidden() -> None:
    @click.command()
    def start() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(PermissionError):
        run(start, [])
