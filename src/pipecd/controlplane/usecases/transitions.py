# SPDX-License-Identifier: Apache-2.0
"""What the reports of a piped do to a stored deployment; everything here is pure.

Requests arrive late, twice and in the wrong order. A report therefore only moves a deployment or a
stage forward: one that is late or repeated changes nothing, and its caller is told that it worked.
Only a report that contradicts the end of a deployment is refused.
"""

from collections.abc import Iterable, Mapping

from pipecd.model.deployment import DeploymentStatus, StageStatus, can_transition
from pipecd.model.errors import Conflict, UserMistake
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import piped_pb2 as rpc

_LAST_STATUS_OF_A_RUNNING_STAGE = {
    DeploymentStatus.SUCCESS: pb.STAGE_SUCCESS,
    DeploymentStatus.FAILURE: pb.STAGE_FAILURE,
    DeploymentStatus.CANCELLED: pb.STAGE_CANCELLED,
}


def apply_plan(deployment: Deployment, report: rpc.ReportDeploymentPlannedRequest) -> None:
    """Stores a plan, which only a pending deployment takes."""
    if not _moves_forward(deployment, DeploymentStatus.PLANNED):
        return
    deployment.status = pb.DEPLOYMENT_PLANNED
    deployment.summary = report.summary
    deployment.status_reason = report.status_reason
    deployment.trigger.sync_strategy = report.sync_strategy
    deployment.running_commit_hash = report.running_commit_hash
    deployment.running_config_filename = report.running_config_filename
    del deployment.versions[:], deployment.stages[:]
    deployment.versions.extend(report.versions)
    deployment.stages.extend(report.stages)


def apply_status(deployment: Deployment, status: DeploymentStatus, reason: str) -> None:
    """Moves a deployment forward; an earlier status than the stored one is a late report."""
    if _moves_forward(deployment, status):
        deployment.status = pb.DeploymentStatus.ValueType(status)
        deployment.status_reason = reason


def apply_completion(deployment: Deployment, report: rpc.ReportDeploymentCompletedRequest) -> None:
    """Completes a deployment with the statuses that its stages have reached.

    A stage whose end is not reported ends with its deployment: upstream's piped makes no more calls
    for a stage after a stop signal, and its end could never be reported later.
    """
    if not _moves_forward(deployment, DeploymentStatus(report.status)):
        return
    deployment.status = report.status
    deployment.status_reason = report.status_reason
    deployment.completed_at = report.completed_at
    for stage in deployment.stages:
        if not StageStatus(stage.status).is_completed:
            stage.status = max(stage.status, report.stage_statuses.get(stage.id, stage.status))
        if StageStatus(stage.status) is StageStatus.RUNNING:
            stage.status = _LAST_STATUS_OF_A_RUNNING_STAGE[DeploymentStatus(report.status)]
            stage.completed_at = report.completed_at


def apply_stage_status(deployment: Deployment, report: rpc.ReportStageStatusChangedRequest) -> None:
    """Moves a stage forward, while its deployment is not completed."""
    stage = stage_of(deployment, report.stage_id)
    current, status = StageStatus(stage.status), StageStatus(report.status)
    is_completed = DeploymentStatus(deployment.status).is_completed or current.is_completed
    if is_completed or status < current:
        return
    if status > current:
        # What is reported again about a running stage does not change when it started.
        stage.status = report.status
        stage.retried_count = report.retried_count
        stage.completed_at = report.completed_at
    stage.status_reason = report.status_reason
    stage.visible = report.visible
    if report.requires:
        del stage.requires[:]
        stage.requires.extend(report.requires)


def is_deploying(deployments: Iterable[Deployment], application_id: str, reported: bool) -> bool:
    """Whether an application is deploying, given its piped's deployments that are not completed.

    The flag belongs to a deployment: it ends with the last one that was planned, and nothing sets
    it without a deployment that is not completed.
    """
    statuses = [
        DeploymentStatus(d.status) for d in deployments if d.application_id == application_id
    ]
    if any(status is not DeploymentStatus.PENDING for status in statuses):
        return True
    return reported and bool(statuses)


def is_newer(deployment_id: str, than: str, sequences: Mapping[str, int]) -> bool:
    """Whether a deployment was triggered after another one of its application, which may be empty.

    Deployments from before there were sequence numbers have the number 0; among them the last
    report counts.
    """
    if not than or deployment_id == than:
        return not than
    return sequences[deployment_id] > sequences[than] or not sequences[than]


def stage_of(deployment: Deployment, stage_id: str) -> PipelineStage:
    for stage in deployment.stages:
        if stage.id == stage_id:
            return stage
    raise UserMistake(f"stage {stage_id} is not part of the deployment")


def _moves_forward(deployment: Deployment, to: DeploymentStatus) -> bool:
    current = DeploymentStatus(deployment.status)
    if current.is_completed and current is not to:
        raise Conflict(f"deployment {deployment.id} was already completed: {current.name}")
    return current is not to and can_transition(current, to)
