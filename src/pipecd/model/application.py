# SPDX-License-Identifier: Apache-2.0
"""What an application can be in."""

from enum import IntEnum


class ApplicationKind(IntEnum):
    """The platforms of the first generation; behind the border it is only a label."""

    KUBERNETES = 0
    TERRAFORM = 1
    LAMBDA = 3
    CLOUDRUN = 4
    ECS = 5


class SyncStatus(IntEnum):
    """Whether what runs is what Git says."""

    UNKNOWN = 0
    SYNCED = 1
    DEPLOYING = 2
    OUT_OF_SYNC = 3
    INVALID_CONFIG = 4
