# SPDX-License-Identifier: Apache-2.0
"""Where the programs are that tests run, and what becomes of a test without its program."""

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

# Programs that the tests of a run in CI may miss: their names, or `all`.
LEFT_OUT = "PIPECD_TESTBED_SKIP"


class NotInstalled(Exception):
    """A program is missing on this machine."""

    def __init__(self, program: str, cure: str) -> None:
        super().__init__(f"{program} is not installed: {cure}")
        self.program = program


def find(program: str, *places: str) -> str:
    """The path of a program that the system's package tool installs."""
    # Debian keeps servers where only root looks for programs.
    looked_in = (None, *reversed(places), "/usr/sbin")
    found = next((w for p in looked_in if (w := shutil.which(program, path=p))), None)
    if found is None:
        raise NotInstalled(program, "tools/test_packages.sh installs it")
    return found


def built(program: str) -> str:
    """The path of a program in the testbed's cache, else on this machine, else as told."""
    asked = subprocess.run(
        [sys.executable, TESTBED, "path", program], capture_output=True, text=True, check=True
    )
    variable = f"PIPECD_{program.upper().replace('-', '_')}"
    found = asked.stdout.strip() or shutil.which(program) or os.environ.get(variable)
    if not found:
        raise NotInstalled(program, f"make testbed builds it, or {variable} names its path")
    return found


def do_without(missing: NotInstalled) -> NoReturn:
    """Skips a test; in CI, which must not skip what nobody left out, fails it."""
    left_out = os.environ.get(LEFT_OUT, "").replace(",", " ").split()
    if os.environ.get("CI") == "true" and not {"all", missing.program} & set(left_out):
        pytest.fail(str(missing))
    pytest.skip(str(missing))
