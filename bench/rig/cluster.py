# SPDX-License-Identifier: Apache-2.0
"""The cluster and the programs of the tests, for benchmarks."""

import importlib
import sys
from pathlib import Path
from typing import Any

# The servers are those of the tests.
sys.path.append(str(Path(__file__).parents[2] / "tests"))
_programs: Any = importlib.import_module("servers.programs")
NotInstalled: type[Exception] = _programs.NotInstalled


def cluster() -> Any:
    """Returns a running cluster; NotInstalled when its program is missing."""
    return importlib.import_module("servers.kubernetes").Kubernetes()


def program(name: str) -> str:
    """Returns the path of a program; NotInstalled when it is missing."""
    return _programs.built_program(name)


def token() -> str:
    """Returns the token of the administrator of the cluster."""
    return importlib.import_module("servers.kubernetes").TOKEN
