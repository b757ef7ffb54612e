# SPDX-License-Identifier: Apache-2.0
"""What holds in spite of all faults, as functions over what was seen from outside."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from faults.installation import Run
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment

ContentOf = Callable[[str, str], str]
"""Returns what identifies the content of an application at a commit."""


@dataclass
class StatusHistory:
    """The statuses of deployments and their stages, none of which may go back."""

    statuses: dict[str, DeploymentStatus] = field(default_factory=dict[str, DeploymentStatus])
    _stages: dict[str, dict[str, StageStatus]] = field(
        default_factory=dict[str, dict[str, StageStatus]]
    )

    def observe(self, deployment: Deployment) -> list[str]:
        """Returns what is wrong with a deployment after what was seen of it before."""
        id_, status = deployment.id, DeploymentStatus(deployment.status)
        before = self.statuses.get(id_, DeploymentStatus.PENDING)
        wrong: list[str] = []
        if status < before or (before.is_completed and status is not before):
            wrong.append(f"deployment {id_} went from {before.name} to {status.name}")
        stages = {stage.id: StageStatus(stage.status) for stage in deployment.stages}
        for stage, was in self._stages.get(id_, {}).items():
            now = stages.get(stage)
            if now is None:
                wrong.append(f"stage {stage} of {id_}, which was {was.name}, is gone")
            elif now < was or (was.is_completed and now is not was):
                wrong.append(f"stage {stage} of {id_} went from {was.name} to {now.name}")
        wrong += [
            f"stage {stage} of {id_} is RUNNING although the deployment is {status.name}"
            for stage, now in stages.items()
            if status.is_completed and now is StageStatus.RUNNING
        ]
        self.statuses[id_], self._stages[id_] = status, stages
        return wrong


def not_completed(deployments: Iterable[Deployment]) -> list[str]:
    """The deployments that are not completed."""
    return [
        f"deployment {each.id} of {each.application_name} is {DeploymentStatus(each.status).name}"
        for each in deployments
        if not DeploymentStatus(each.status).is_completed
    ]


def not_at_head(
    applications: Collection[str],
    runs: Sequence[Run],
    deployments: Iterable[Deployment],
    content_of: ContentOf,
) -> list[str]:
    """The applications whose last run is not a successful one of the head commit."""
    statuses = {each.id: DeploymentStatus(each.status) for each in deployments}
    wrong: list[str] = []
    for name in applications:
        last = max((r for r in runs if r.application == name), key=lambda r: r.began, default=None)
        if last is None:
            wrong.append(f"{name} never ran")
        elif content_of(last.commit, name) != content_of("HEAD", name):
            wrong.append(f"the last run of {name} is that of {last.commit}, not of the head commit")
        elif not last.ended:
            wrong.append(f"the last run of {name} has not ended")
        elif (status := statuses.get(last.deployment)) is not DeploymentStatus.SUCCESS:
            known = status.name if status is not None else "unknown"
            wrong.append(f"{last.deployment}, the last deployment of {name}, is {known}")
    return wrong


async def wait_until_settled(
    unsettled: Callable[[], Awaitable[list[str]]], *, within: float, stays: float, pause: float
) -> tuple[float, list[str]]:
    """Waits until nothing is left, and stays so; returns the seconds and what is left."""
    started = time.monotonic()
    settled_at: float | None = None
    while True:
        left, now = await unsettled(), time.monotonic()
        if left:
            if settled_at is not None:
                return settled_at - started, [f"after everything had settled: {e}" for e in left]
            if now - started > within:
                return now - started, left
        elif settled_at is None:
            settled_at = now
        elif now - settled_at >= stays:
            return settled_at - started, []
        await asyncio.sleep(pause)
