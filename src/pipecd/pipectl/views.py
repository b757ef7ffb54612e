# SPDX-License-Identifier: Apache-2.0
"""The tables of applications, deployments and pipeds."""

from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.deployment import (
    WAITING_FOR,
    DeploymentStatus,
    StageStatus,
    is_rollback,
    triggered_by,
)
from pipecd.pipectl.output import View, age
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

COMMIT_LENGTH = 7


def _kind(application: Application) -> str:
    """The plugins of an application, or its kind if it is of the first generation."""
    if application.platform_provider:
        return ApplicationKind(application.kind).name
    return ", ".join(sorted(application.deploy_targets_by_plugin))


def _labels(labelled: Application) -> str:
    return ",".join(f"{key}:{value}" for key, value in sorted(labelled.labels.items()))


def application_status(application: Application) -> str:
    """The sync status of an application, or why it has none."""
    if application.deleted:
        return "DELETED"
    return "DISABLED" if application.disabled else SyncStatus(application.sync_state.status).name


def deployment_status(deployment: Deployment) -> str:
    return DeploymentStatus(deployment.status).name


def stage_status(stage: PipelineStage) -> str:
    return StageStatus(stage.status).name


def waiting_stage(deployment: Deployment) -> str:
    """The names of the stages that run."""
    running = (s.name for s in deployment.stages if s.status == StageStatus.RUNNING)
    return ", ".join(running)


def sync_reason(application: Application) -> str:
    """Why an application has its sync state, in short if the piped says so."""
    state = application.sync_state
    if reason := state.short_reason or state.reason:
        return reason
    # A piped reports no reason if no plugin of the application reads a live state.
    has_none = state.timestamp and SyncStatus(state.status) is SyncStatus.UNKNOWN
    return "the application has no live state to compare" if has_none else ""


def shown_stages(deployment: Deployment) -> list[PipelineStage]:
    """The stages without those of a rollback that has not started, which may never run."""
    return [
        stage
        for stage in deployment.stages
        if stage.status != StageStatus.NOT_STARTED_YET or not is_rollback(stage)
    ]


def waiting_reason(deployment: Deployment) -> str:
    """What a deployment waits for before it goes on, as its piped reports it."""
    has_ended = DeploymentStatus(deployment.status).is_completed
    return "" if has_ended else deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, "")


APPLICATIONS = View(
    {
        "NAME": lambda a: a.name,
        "ID": lambda a: a.id,
        "KIND": _kind,
        "STATUS": application_status,
        "LABELS": _labels,
    },
    name=lambda a: a.id,
)
APPLICATION_SOURCES = View(
    {
        "REPOSITORY": lambda a: a.git_path.repo.id,
        "FILE": lambda a: f"{a.git_path.path}/{a.git_path.config_filename}",
        "PIPED": lambda a: a.piped_id,
        "LAST DEPLOYMENT": lambda a: a.most_recently_triggered_deployment.deployment_id,
    },
    name=lambda a: a.id,
)
SYNC_STATES = View(
    {
        "NAME": lambda a: a.name,
        "ID": lambda a: a.id,
        "STATUS": lambda a: SyncStatus(a.sync_state.status).name,
        "REASON": sync_reason,
    },
    name=lambda a: a.id,
)
DEPLOYMENTS = View(
    {
        "ID": lambda d: d.id,
        "APPLICATION": lambda d: d.application_name,
        "STATUS": deployment_status,
        "STAGE": waiting_stage,
        "COMMIT": lambda d: d.trigger.commit.hash[:COMMIT_LENGTH],
        "BY": triggered_by,
        "AGE": lambda d: age(d.created_at),
    },
    name=lambda d: d.id,
)
STAGES = View(
    {
        "STAGE": lambda s: s.name,
        "ID": lambda s: s.id,
        "STATUS": stage_status,
        "REASON": lambda s: s.status_reason,
    },
    name=lambda s: s.id,
)
PIPEDS = View(
    {
        "NAME": lambda p: p.name,
        "ID": lambda p: p.id,
        "VERSION": lambda p: p.version,
        "STATUS": lambda p: "DISABLED" if p.disabled else "ENABLED",
        "REPOSITORIES": lambda p: ", ".join(r.id for r in p.repositories),
    },
    name=lambda p: p.id,
)
