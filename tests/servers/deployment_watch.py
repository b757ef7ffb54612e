# SPDX-License-Identifier: Apache-2.0
"""Waits for what happens to the deployments of a control plane."""

from dataclasses import dataclass
from typing import Any

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus, StageStatus
from servers.control_plane import LocalControlPlane
from servers.polling import eventually

SECONDS = 45


@dataclass(frozen=True)
class DeploymentWatch:
    """The deployments of the project `demo`, the newest first."""

    plane: LocalControlPlane

    async def deployments(self) -> list[Any]:
        listed = await self.plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=self.plane.admin
        )
        return sorted(listed.items, key=lambda deployment: -deployment.created_at)

    async def approval(self) -> tuple[str, str]:
        """Waits for a stage that waits for its approval, and returns deployment and stage."""

        async def waiting() -> Any:
            return next(
                (
                    (deployment.id, stage.id)
                    for deployment in await self.deployments()
                    for stage in deployment.stages
                    if stage.name == "WAIT_APPROVAL" and stage.status == StageStatus.RUNNING
                ),
                None,
            )

        return await eventually(waiting, SECONDS)

    async def approve(self) -> None:
        """Approves the next stage that waits for it."""
        await self.plane.cases.deployments.approve(*await self.approval(), by=self.plane.admin)

    async def cancel_with_rollback(self) -> None:
        """Cancels the newest deployment."""
        newest = (await self.deployments())[0]
        await self.plane.cases.deployments.cancel(newest.id, True, False, by=self.plane.admin)

    async def ended(self, count: int, *, seconds: float = SECONDS) -> Any:
        """Waits until so many deployments have ended, and returns the newest of them."""

        async def newest() -> Any:
            listed = await self.deployments()
            done = [each for each in listed if DeploymentStatus(each.status).is_completed]
            return done[0] if len(done) == count else None

        return await eventually(newest, seconds)


def statuses(deployment: Any) -> dict[str, StageStatus]:
    """Returns the status of each stage by its name; of several with one name, that of the last."""
    return {stage.name: StageStatus(stage.status) for stage in deployment.stages}
