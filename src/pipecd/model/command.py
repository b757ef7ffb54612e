# SPDX-License-Identifier: Apache-2.0
"""Kinds and statuses of commands for a piped."""

from enum import IntEnum

# In the metadata of a chain sync command: the commit of the first deployment of the chain.
CHAIN_COMMIT_KEY = "DeploymentChainCommit"
# In the metadata of a handled sync command: the deployment that it triggered.
TRIGGERED_KEY = "TriggeredDeploymentID"
# In the metadata of a failed command: why it failed.
REASON_KEY = "Reason"
# In the metadata of a SKIP_STAGE command, which makes it a rejection: why a user does not approve.
# The API has no command for it, and stages that wait for approval ignore a skip.
REJECTION_KEY = "RejectionReason"
# In the metadata of an approval or rejection by API key: the name of the key, and its id. The
# commander is the user who created the key, because approvals are counted by person.
API_KEY_NAME = "ApiKeyName"
API_KEY_ID = "ApiKeyID"
# In the metadata of a handled plan preview: how many applications it has, by what became of them.
PREVIEW_COUNTS_KEY = "PreviewCounts"
# What stays in the metadata of a command after its piped has reported the result.
KEPT_KEYS = (REJECTION_KEY, API_KEY_NAME, API_KEY_ID)


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
