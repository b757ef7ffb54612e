# SPDX-License-Identifier: Apache-2.0
"""Deployments with real durations for the project of the pictures, as they are stored."""
# Applications of v0 use fields that the protobuf files call deprecated.
# pyright: reportDeprecated=false

import hashlib
from dataclasses import dataclass
from random import Random

from pipecd.model.deployment import (
    APPROVED_USERS_KEY,
    DISPLAY_KEY,
    REQUIRED_APPROVALS_KEY,
    TIMEOUT_KEY,
    DeploymentStatus,
    ManualOperation,
    StageStatus,
    SyncStrategy,
)
from pipecd.model.ids import new_id
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, PipelineStage
from servers.pictured_applications import AUTHORS, DAY, HOUR, PicturedApplication, PicturedStage

FAILURES = {
    "ANALYSIS": "The error rate of the canary was 4.1 %, above the limit of 1 %",
    "K8S_SYNC": "Deployment web did not become ready in 10m: 1 of 3 pods is CrashLoopBackOff",
    "TERRAFORM_APPLY": "Error: creating EC2 NAT Gateway: NatGatewayLimitExceeded",
    "WAIT_APPROVAL": "Rejected by kenji: not before the sale is over",
    "ECS_PRIMARY_ROLLOUT": "The service did not become stable in 15m: 2 of 4 tasks are running",
}
_DEFAULT_FAILURE = "The request timed out after 30s"


def commit_hash(*seed: object) -> str:
    return hashlib.sha1(repr(seed).encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Release:
    """One version of an application, and how its deployment went.

    `fails_at` is the name of the stage that fails; `stops_at` that of the stage that still runs.
    """

    number: int
    at: int
    subject: str
    author: str
    fails_at: str = ""
    stops_at: str = ""
    commander: str = ""
    is_cancelled: bool = False
    slowness: float = 1.0


class History:
    """Builds the deployments of one application, each after the one before."""

    def __init__(self, pictured: PicturedApplication, application: Application) -> None:
        self.pictured, self.application = pictured, application
        self.running_commit = commit_hash(pictured.name, "first")
        self.next_number = 0

    def releases(self, now: int, days: int) -> list[Release]:
        """Those of so many days on working hours, oldest first."""
        spec, random, releases = self.pictured, Random(self.pictured.name), list[Release]()
        if not spec.every:
            return releases
        at, number = now - days * DAY + random.random() * spec.every * DAY, 0
        while at < now - 6 * HOUR:
            hour = 8 + 9 * random.random()
            moment = int(at // DAY * DAY + hour * HOUR)
            if moment < now - 5 * HOUR and (at // DAY + 4) % 7 not in (0, 6):
                names = [stage.name for stage in spec.pipeline.stages]
                likely = [name for name in names if name in FAILURES] or names
                has_failed = number % spec.fails == spec.fails - 1
                releases.append(
                    Release(
                        number,
                        moment,
                        spec.subjects[number % len(spec.subjects)],
                        random.choice(AUTHORS),
                        fails_at=random.choice(likely) if has_failed else "",
                        commander="maria" if number % 11 == 6 else "",
                        is_cancelled=number % 17 == 12,
                        slowness=0.6 + random.random() * 1.3,
                    )
                )
                number += 1
            at += spec.every * DAY * (0.4 + 1.2 * random.random())
        self.next_number = number
        return releases

    def deployment(self, release: Release, now: int) -> Deployment:
        """The deployment of a release as it is stored now."""
        spec, application = self.pictured, self.application
        hash = commit_hash(spec.name, release.number)
        deployment = Deployment(
            id=new_id(),
            application_id=application.id,
            application_name=application.name,
            piped_id=application.piped_id,
            project_id=application.project_id,
            kind=application.kind,
            git_path=application.git_path,
            platform_provider=application.platform_provider,
            cloud_provider=application.platform_provider,
            labels=application.labels,
            summary=spec.pipeline.summary,
            versions=[self._version(release)],
            running_commit_hash=self.running_commit,
            running_config_filename="app.pipecd.yaml",
            created_at=release.at,
        )
        for plugin, targets in application.deploy_targets_by_plugin.items():
            deployment.deploy_targets_by_plugin[plugin].CopyFrom(targets)
        trigger = deployment.trigger
        trigger.commander, trigger.timestamp = release.commander, release.at
        strategy = (
            SyncStrategy.PIPELINE if len(spec.pipeline.stages) > 1 else SyncStrategy.QUICK_SYNC
        )
        trigger.sync_strategy = int(strategy)  # pyright: ignore[reportAttributeAccessIssue]
        trigger.strategy_summary = "Sync requested by a user" if release.commander else ""
        trigger.commit.CopyFrom(
            Commit(
                hash=hash,
                message=f"{release.subject}\n\nReviewed by Maria Souza.",
                author=release.author,
                branch="main",
                pull_request=400 + release.number * 7 + len(spec.name),
                url=f"https://git.example/shop/apps/commit/{hash}",
                # What the lead time of the insights starts with.
                created_at=release.at - int(25 + release.slowness * 2400),
            )
        )
        self._run(deployment, release, now)
        if deployment.status == pb.DEPLOYMENT_SUCCESS:
            self.running_commit = hash
        deployment.updated_at = min(now, deployment.completed_at or now)
        return deployment

    def _version(self, release: Release) -> ArtifactVersion:
        major, minor = self.pictured.version
        name = f"v{major}.{minor + release.number}.{release.number % 3}"
        image = f"registry.example/shop/{self.pictured.name}:{name}"
        return ArtifactVersion(
            kind=ArtifactVersion.CONTAINER_IMAGE,
            version=name,
            name=self.pictured.name,
            url=f"https://{image}",
        )

    def _run(self, deployment: Deployment, release: Release, now: int) -> None:
        """Adds the stages with their statuses and times."""
        at, status, previous = release.at + 11, DeploymentStatus.RUNNING, ""
        is_over = False
        for index, spec in enumerate(self.pictured.pipeline.stages):
            stage = _stage(spec, f"s{index + 1}", index, previous, release.at)
            deployment.stages.append(stage)
            stage, previous = deployment.stages[-1], stage.id
            if is_over:
                continue
            took = max(int(spec.seconds * release.slowness), 2)
            if spec.name == release.stops_at:
                stage.status, stage.completed_at = pb.STAGE_RUNNING, at
                is_over = True
                continue
            stage.metadata.update(spec.metadata)
            if spec.name == release.fails_at:
                stage.status, status = pb.STAGE_FAILURE, DeploymentStatus.FAILURE
                stage.status_reason = FAILURES.get(spec.name, _DEFAULT_FAILURE)
                is_over = True
            elif release.is_cancelled and index == min(1, len(self.pictured.pipeline.stages) - 1):
                stage.status, status = pb.STAGE_CANCELLED, DeploymentStatus.CANCELLED
                is_over = True
            else:
                stage.status = pb.STAGE_SUCCESS
                _approve(stage)
            at += took
            stage.completed_at = at
        self._complete(deployment, status, at, is_still_running=bool(release.stops_at))

    def _complete(
        self, deployment: Deployment, status: DeploymentStatus, at: int, *, is_still_running: bool
    ) -> None:
        rollback = PipelineStage(
            id="rollback",
            name=self.pictured.pipeline.rollback,
            rollback=True,
            created_at=deployment.created_at,
            updated_at=at,
        )
        if is_still_running:
            deployment.stages.append(rollback)
            deployment.status = pb.DEPLOYMENT_RUNNING
            return
        if status is DeploymentStatus.RUNNING:
            status = DeploymentStatus.SUCCESS
        else:
            at += 23
            rollback.status, rollback.completed_at = pb.STAGE_SUCCESS, at
            deployment.status_reason = next(
                (
                    f"Stage {s.name} failed: {s.status_reason}"
                    for s in deployment.stages
                    if s.status == pb.STAGE_FAILURE
                ),
                "Cancelled by kenji while executing the pipeline",
            )
        deployment.stages.append(rollback)
        deployment.status = int(status)  # pyright: ignore[reportAttributeAccessIssue]
        deployment.completed_at = at + 2


def reference(deployment: Deployment) -> ApplicationDeploymentReference:
    """What an application stores of its most recent deployments."""
    return ApplicationDeploymentReference(
        deployment_id=deployment.id,
        trigger=deployment.trigger,
        summary=deployment.summary,
        version=deployment.versions[0].version,
        versions=deployment.versions,
        config_filename="app.pipecd.yaml",
        started_at=deployment.created_at,
        completed_at=deployment.completed_at,
    )


def _stage(
    spec: PicturedStage, id: str, index: int, previous: str, planned_at: int
) -> PipelineStage:
    stage = PipelineStage(
        id=id,
        name=spec.name,
        desc=spec.description,
        index=index,
        requires=[previous] if previous else [],
        visible=True,
        created_at=planned_at,
        updated_at=planned_at,
        available_operation=int(spec.operation),  # pyright: ignore[reportArgumentType]
        authorized_operators=spec.operators,
    )
    if spec.operation is ManualOperation.APPROVE:
        stage.metadata[REQUIRED_APPROVALS_KEY] = "2"
        stage.metadata[TIMEOUT_KEY] = str(6 * HOUR)
    return stage


def _approve(stage: PipelineStage) -> None:
    if stage.available_operation == ManualOperation.APPROVE:
        assert StageStatus(stage.status).is_completed
        stage.metadata[APPROVED_USERS_KEY] = "kenji, maria"
        stage.metadata[DISPLAY_KEY] = "Approved by: kenji, maria"
