# SPDX-License-Identifier: Apache-2.0
"""Which build this is."""

from importlib.metadata import PackageNotFoundError, version


def build_version() -> str:
    """The version of the installed package, with a leading `v` as releases are tagged."""
    try:
        return f"v{version('pipecd')}"
    except PackageNotFoundError:
        return "unspecified"


def version_line() -> str:
    """The one line that `version` prints."""
    return f"Version: {build_version()}, GitCommit: unspecified, BuildDate: unspecified"
