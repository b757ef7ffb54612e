# SPDX-License-Identifier: Apache-2.0
"""Which files of a repository are application files."""

import posixpath

DEFAULT = "app.pipecd.yaml"
"""The name for new applications."""
LEGACY = ".pipe.yaml"
"""The name of an application that was registered without one."""


def is_application_file(path: str) -> bool:
    """Say whether a file is an application file by its name when a repository is searched."""
    return path.endswith(".pipecd.yaml") or posixpath.basename(path) == LEGACY


def filename_of(registered: str) -> str:
    """Return the name of the file of a registered application, which may be any."""
    return registered or LEGACY
