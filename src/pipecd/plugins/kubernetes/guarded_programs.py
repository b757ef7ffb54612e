# SPDX-License-Identifier: Apache-2.0
"""Directories for PATH in which the programs that Kustomize starts check their arguments."""

import hashlib
import shlex
import shutil
import sys
from pathlib import Path

from pipecd.plugins.kubernetes import argument_guard

# Neither the environment nor installed packages decide what the guard runs.
_PYTHON = (sys.executable, "-I", "-S", argument_guard.__file__)


class GuardedPrograms:
    """Writes the scripts `git` and `helm`, which start the real programs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def directory(self, helm: Path | None) -> Path:
        """Returns the directory for PATH; `helm` is the program that a build may start."""
        git = shutil.which("git")
        programs = {"git": git, "helm": str(helm) if helm else None}
        key = hashlib.sha256(repr(programs).encode()).hexdigest()[:16]
        directory = self._directory / key
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, program in programs.items():
            script = directory / name
            if program and not script.exists():
                command = shlex.join((*_PYTHON, name, program))
                script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
                script.chmod(0o700)
        return directory
