# SPDX-License-Identifier: Apache-2.0
"""The deploy targets of an application."""

from collections.abc import Sequence

from pipecd.model.errors import UserMistake
from pipecd.sdk.deployment import DeployTarget


def only_target(targets: Sequence[DeployTarget], platform: str) -> DeployTarget:
    """Returns the deploy target of an application on a platform that deploys to exactly one."""
    if len(targets) != 1:
        names = ", ".join(target.name for target in targets)
        raise UserMistake(
            f"an application of {platform} has one deploy target, and this one has "
            f"{names or 'none'}",
            hint="choose one of the deploy targets of piped for the application",
        )
    return targets[0]
