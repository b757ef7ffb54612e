# SPDX-License-Identifier: Apache-2.0
"""The version of this build."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def build_version() -> str:
    """Returns the version of the installed package with a leading `v`, like release tags."""
    try:
        return f"v{version('pipecd')}"
    except PackageNotFoundError:
        return "unspecified"


def version_line() -> str:
    """Returns the line that `version` prints."""
    return f"Version: {build_version()}, GitCommit: unspecified, BuildDate: unspecified"
