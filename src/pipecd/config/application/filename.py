# SPDX-License-Identifier: Apache-2.0
"""Which files of a repository are application files."""

DEFAULT = "app.pipecd.yaml"
"""The name for new applications."""
LEGACY = ".pipe.yaml"
"""The name of an application that was registered without one."""


def is_application_file(name: str) -> bool:
    """Say whether a file of this name is an application file when a repository is searched."""
    return name.endswith(".pipecd.yaml") or name == LEGACY


def filename_of(registered: str) -> str:
    """Return the name of the file of a registered application, which may be any."""
    return registered or LEGACY
