# SPDX-License-Identifier: Apache-2.0
"""Kinds and sync statuses of applications."""

from enum import IntEnum

MAX_NAME_LENGTH = 36
"""The wire has no limit. The tables of upstream hold so many characters with each deployment."""


def name_problem(name: str) -> str:
    """Returns why a name cannot be that of an application; empty if it can."""
    if not name:
        return "an application needs a name"
    if len(name) > MAX_NAME_LENGTH:
        return (
            f"the name of an application has at most {MAX_NAME_LENGTH} characters, "
            f"this one has {len(name)}"
        )
    return ""


class ApplicationKind(IntEnum):
    """The platforms of v0; for v1 it is only a label."""

    KUBERNETES = 0
    TERRAFORM = 1
    LAMBDA = 3
    CLOUDRUN = 4
    ECS = 5


class SyncStatus(IntEnum):
    """Whether the live state matches Git."""

    UNKNOWN = 0
    SYNCED = 1
    DEPLOYING = 2
    OUT_OF_SYNC = 3
    INVALID_CONFIG = 4
