# SPDX-License-Identifier: Apache-2.0
"""What a piped can be asked to do, and how that went."""

from enum import IntEnum

# In the metadata of a command to follow in a chain: the commit that the chain began with.
CHAIN_COMMIT_KEY = "DeploymentChainCommit"
# In that of a handled one to sync: the deployment that it led to.
TRIGGERED_KEY = "TriggeredDeploymentID"


class CommandKind(IntEnum):
    """The types of a command."""

    SYNC_APPLICATION = 0
    UPDATE_APPLICATION_CONFIG = 1
    CANCEL_DEPLOYMENT = 2
    APPROVE_STAGE = 3
    BUILD_PLAN_PREVIEW = 4
    CHAIN_SYNC_APPLICATION = 5
    SKIP_STAGE = 6
    RESTART_PIPED = 7


class CommandStatus(IntEnum):
    """How a command ended."""

    NOT_HANDLED_YET = 0
    SUCCEEDED = 1
    FAILED = 2
    TIMEOUT = 3
