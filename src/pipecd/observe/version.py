# SPDX-License-Identifier: Apache-2.0
"""The version of this build."""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Releases have it, with the commit and its time; `make dist` writes it.
BUILD = Path(__file__).parents[1] / "build.json"


@cache
def build_version() -> str:
    """Returns the version of the installed package with a leading `v`, like release tags."""
    try:
        return f"v{version('pipecd')}"
    except PackageNotFoundError:
        return "unspecified"


def version_line() -> str:
    """Returns the line that `version` prints."""
    build: dict[str, str] = json.loads(BUILD.read_text()) if BUILD.exists() else {}
    commit, date = (build.get(name, "unspecified") for name in ("commit", "date"))
    return f"Version: {build_version()}, GitCommit: {commit}, BuildDate: {date}"
