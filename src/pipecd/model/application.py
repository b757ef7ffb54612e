# SPDX-License-Identifier: Apache-2.0
"""Kinds and sync statuses of applications."""

from enum import IntEnum


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
