# SPDX-License-Identifier: Apache-2.0
"""The approvals that a stage has counted, and how they are saved with it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pipecd.sdk import APPROVED_USERS_KEY, DISPLAY_KEY, StageCommand

# The approvals as JSON; the names that upstream saves cannot be told apart if one has a comma.
APPROVALS_KEY = "pipecd/stage-approvals"


@dataclass(frozen=True)
class Approval:
    """An approval of a user, maybe by an API key that the user created."""

    user: str
    api_key: str = ""

    @classmethod
    def of(cls, command: StageCommand) -> "Approval":
        return cls(command.commander, command.api_key)

    def __str__(self) -> str:
        return f"{self.user} (API key {self.api_key})" if self.api_key else self.user


def has_approved(user: str, approvals: Sequence[Approval]) -> bool:
    """Whether an approval of this user counts already, whatever it was sent with."""
    return any(approval.user == user for approval in approvals)


def names(approvals: Sequence[Approval]) -> str:
    return ", ".join(map(str, approvals))


def to_metadata(approvals: Sequence[Approval]) -> Mapping[str, str]:
    """The metadata of the stage; two of the keys are those of upstream."""
    return {
        APPROVED_USERS_KEY: ", ".join(approval.user for approval in approvals),
        APPROVALS_KEY: json.dumps([asdict(approval) for approval in approvals]),
        DISPLAY_KEY: f"Approved by: {names(approvals)}",
    }


def from_metadata(approvals: str, approved_users: str) -> list[Approval]:
    """The saved approvals; those of upstream's plugin are names separated by commas."""
    if approvals:
        return [Approval(**saved) for saved in json.loads(approvals)]
    return [Approval(user) for user in approved_users.split(", ") if user]
