# SPDX-License-Identifier: Apache-2.0
"""Finds the programs that tests run; without one a test is skipped, or fails in CI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

TESTBED = Path(__file__).parents[2] / "tools" / "testbed" / "testbed.py"
# Our own, as they are installed beside the interpreter.
OUR_LAUNCHER, OUR_PIPECD, OUR_PIPECTL, OUR_PIPED = (
    Path(sys.executable).parent / name for name in ("launcher", "pipecd", "pipectl", "piped")
)

# Names the programs that may be missing in CI, or `all`.
LEFT_OUT = "PIPECD_TESTBED_SKIP"


class NotInstalled(Exception):
    """A program is missing on this machine."""

    def __init__(self, program: str, remedy: str) -> None:
        super().__init__(f"{program} is not installed: {remedy}")
        self.program = program


def find(program: str, *paths: str) -> str:
    """The path of a program that the system's package tool installs."""
    # Debian installs servers in a directory that only root has on its PATH.
    search_paths = (None, *reversed(paths), "/usr/sbin")
    found = next((w for p in search_paths if (w := shutil.which(program, path=p))), None)
    if found is None:
        raise NotInstalled(program, "tools/test_packages.sh installs it")
    return found


def built_program(program: str) -> str:
    """Returns the path of a program: in the testbed, on the PATH, or from its variable."""
    looked_up = subprocess.run(
        [sys.executable, TESTBED, "path", program], capture_output=True, text=True, check=True
    )
    variable = f"PIPECD_{program.upper().replace('-', '_')}"
    found = looked_up.stdout.strip() or shutil.which(program) or os.environ.get(variable)
    if not found:
        raise NotInstalled(program, f"make testbed builds it, or {variable} names its path")
    return found


def skip_or_fail(missing: NotInstalled) -> NoReturn:
    """Skips a test; fails it in CI unless the program is listed in PIPECD_TESTBED_SKIP."""
    left_out = os.environ.get(LEFT_OUT, "").replace(",", " ").split()
    if os.environ.get("CI") == "true" and not {"all", missing.program} & set(left_out):
        pytest.fail(str(missing))
    pytest.skip(str(missing))
