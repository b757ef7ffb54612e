# SPDX-License-Identifier: Apache-2.0
"""Compares every answer about deployments with the answers before it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from faults.violation import Violation
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment


@dataclass
class StatusObserver:
    """Checks every answer of a control plane against the ones before it."""

    deployments: dict[str, DeploymentStatus] = field(default_factory=dict[str, DeploymentStatus])
    stages: dict[tuple[str, str], StageStatus] = field(
        default_factory=dict[tuple[str, str], StageStatus]
    )
    first_seen: dict[str, float] = field(default_factory=dict[str, float])
    completed_at: dict[str, float] = field(default_factory=dict[str, float])
    completed_stages: dict[tuple[str, str], float] = field(
        default_factory=dict[tuple[str, str], float]
    )

    def observe(self, listed: Sequence[Deployment], *, at: float) -> list[Violation]:
        """Takes one answer, which came at a time."""
        running = Counter(
            deployment.application_name
            for deployment in listed
            if DeploymentStatus(deployment.status)
            in (DeploymentStatus.RUNNING, DeploymentStatus.ROLLING_BACK)
        )
        wrong = [
            Violation("one running deployment", f"{name} has {count} running deployments", name)
            for name, count in running.items()
            if count > 1
        ]
        for deployment in listed:
            wrong += self._observe(deployment, at)
        return wrong

    def _observe(self, deployment: Deployment, at: float) -> Iterable[Violation]:
        id_, name, status = deployment.id, deployment.application_name, DeploymentStatus(deployment.status)  # fmt: skip
        before = self.deployments.get(id_, DeploymentStatus.PENDING)
        if status < before or (before.is_completed and status is not before):
            text = f"deployment {id_} went from {before.name} to {status.name}"
            yield Violation("no status goes back", text, name)
        self.deployments[id_] = status
        self.first_seen.setdefault(id_, at)
        if status.is_completed:
            self.completed_at.setdefault(id_, at)
        for stage in deployment.stages:
            key, now = (id_, stage.id), StageStatus(stage.status)
            was = self.stages.get(key, StageStatus.NOT_STARTED_YET)
            if now < was or (was.is_completed and now is not was):
                text = f"stage {stage.name} of {id_} went from {was.name} to {now.name}"
                yield Violation("no status goes back", text, name)
            self.stages[key] = now
            if now.is_completed:
                self.completed_stages.setdefault(key, at)
            if status.is_completed and now is StageStatus.RUNNING:
                text = f"{id_} is {status.name} although its stage {stage.name} is RUNNING"
                yield Violation("no open stage in the end", text, name)
        if deployment.stages:
            planned = {(id_, stage.id) for stage in deployment.stages}
            for key in [k for k in self.stages if k[0] == id_ and k not in planned]:
                yield Violation("no status goes back", f"a stage of {id_} is gone", name)
                del self.stages[key]
