# SPDX-License-Identifier: Apache-2.0
"""The timeline of a deployment: what happened when, by whom and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pipecd.controlplane.console.formatting import (
    Timestamp,
    clause,
    duration,
    sentence,
    timestamp,
)
from pipecd.controlplane.console.pipeline_view import (
    Elapsed,
    approved_by,
    elapsed_time,
    is_shown,
    stage_view,
    started_at,
)
from pipecd.controlplane.console.status_badge import Badge, Tone, deployment_badge
from pipecd.controlplane.console.usual_durations import (
    is_slow,
    usual_by_stage,
    usual_durations,
)
from pipecd.model.clock import to_unix
from pipecd.model.command import API_KEY_NAME, REASON_KEY, REJECTION_KEY, CommandKind, CommandStatus
from pipecd.model.deployment import (
    DeploymentStatus,
    StageStatus,
    SyncStrategy,
    triggered_by,
    with_stage_names,
)
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment

_PERSON = Badge(Tone.OFF, "person", "")
_STRATEGIES = {SyncStrategy.QUICK_SYNC: "quick sync", SyncStrategy.PIPELINE: "pipeline"}


@dataclass(frozen=True)
class Bar:
    """Where a step lies between the start and the end of the deployment, in thousandths."""

    start: int
    width: int


@dataclass(frozen=True)
class TimelineStep:
    """One step; `who` and `why` are empty where nobody or nothing is known.

    `usual` is how long the stage took in earlier deployments, if it is known.
    """

    seconds: int
    at: Timestamp | None
    badge: Badge
    what: str
    who: str = ""
    why: str = ""
    desc: str = ""
    stage_id: str = ""
    elapsed: Elapsed | None = None
    bar: Bar | None = None
    usual: str = ""
    is_slow: bool = False


def deployment_timeline(
    deployment: Deployment,
    commands: Iterable[Command],
    now: datetime,
    earlier: Sequence[Deployment] = (),
) -> tuple[TimelineStep, ...]:
    """The steps so far, oldest first; `earlier` are deployments to compare the durations with."""
    beginning, end = _beginning(deployment, now), _end(deployment, now)
    usual = usual_by_stage(deployment, usual_durations(earlier))
    stages = _stages(deployment, now, usual)
    requests = [_command(command, deployment, now) for command in commands]
    concerned = {(step.stage_id, step.seconds) for step in requests}

    def is_cause(stage: TimelineStep) -> bool:
        return (stage.stage_id, stage.seconds) in concerned

    # The sort is stable: of two in the same second the cause comes first. A request comes after
    # the stage that it is about, and before the others, which it lets start.
    steps = [
        *beginning,
        *filter(is_cause, stages),
        *requests,
        *(stage for stage in stages if not is_cause(stage)),
        *end,
    ]
    return tuple(sorted(steps, key=lambda step: step.seconds))


def _beginning(deployment: Deployment, now: datetime) -> list[TimelineStep]:
    trigger, created = deployment.trigger, deployment.created_at
    subject = trigger.commit.message.strip().split("\n", 1)[0]
    steps = [
        TimelineStep(
            created,
            timestamp(created, now),
            Badge(Tone.OFF, "dot", ""),
            "Triggered",
            triggered_by(deployment),
            sentence(trigger.strategy_summary) or (f"Commit “{subject}”." if subject else ""),
        )
    ]
    if deployment.stages:
        planned = max(created, min(stage.created_at for stage in deployment.stages))
        name = _STRATEGIES.get(SyncStrategy(trigger.sync_strategy), "")
        steps.append(
            TimelineStep(
                planned,
                timestamp(planned, now),
                Badge(Tone.OFF, "dot", ""),
                f"Planned a {name}" if name else "Planned",
                why=sentence(deployment.summary),
            )
        )
    return steps


def _stages(deployment: Deployment, now: datetime, usual: Mapping[str, int]) -> list[TimelineStep]:
    first, last = _span(deployment, now)
    steps: list[TimelineStep] = []
    for stage in filter(is_shown, deployment.stages):
        status = StageStatus(stage.status)
        if status is StageStatus.NOT_STARTED_YET:
            continue
        view = stage_view(stage, deployment, now)
        start = started_at(stage, deployment)
        end = stage.completed_at if status.is_completed else to_unix(now)
        scale = 1000 / max(last - first, 1)
        who = ", ".join(approved_by(stage)) or stage.metadata.get("SkippedBy", "")
        offset = min(max(round((start - first) * scale), 0), 990)
        width = min(max(round((end - start) * scale), 10), 1000 - offset)
        steps.append(
            TimelineStep(
                start,
                timestamp(start, now),
                view.badge,
                view.name,
                "" if view.running else who,
                (f"Approved by {who} so far." if view.running and who else "")
                or sentence(view.reason),
                desc=view.desc,
                stage_id=view.id,
                elapsed=view.elapsed,
                bar=Bar(offset, width),
                usual=duration(usual[stage.id]) if stage.id in usual else "",
                is_slow=stage.id in usual and is_slow(end - start, usual[stage.id]),
            )
        )
    return steps


def _span(deployment: Deployment, now: datetime) -> tuple[int, int]:
    is_completed = DeploymentStatus(deployment.status).is_completed
    end = deployment.completed_at if is_completed else to_unix(now)
    return deployment.created_at, max(end, deployment.created_at + 1)


def _sender(command: Command) -> str:
    """The user who sent a command, and the API key if it was sent with one."""
    key = command.metadata.get(API_KEY_NAME, "")
    return f"{command.commander} (API key {key})" if key else command.commander


def _command(command: Command, deployment: Deployment, now: datetime) -> TimelineStep:
    """What a user requested, and why it failed if it did."""
    stage = next((s.name for s in deployment.stages if s.id == command.stage_id), "the stage")
    rejection = command.metadata.get(REJECTION_KEY, "")
    match CommandKind(command.type):
        case CommandKind.CANCEL_DEPLOYMENT if command.cancel_deployment.force_rollback:
            what = "Cancel and roll back"
        case CommandKind.CANCEL_DEPLOYMENT if command.cancel_deployment.force_no_rollback:
            what = "Cancel without rollback"
        case CommandKind.CANCEL_DEPLOYMENT:
            what = "Cancel"
        case CommandKind.APPROVE_STAGE:
            what = f"Approve {stage}"
        case CommandKind.SKIP_STAGE if rejection:
            what = f"Reject {stage}"
        case CommandKind.SKIP_STAGE:
            what = f"Skip {stage}"
        case kind:
            what = kind.name.replace("_", " ").capitalize()
    step = TimelineStep(
        command.created_at,
        timestamp(command.created_at, now),
        _PERSON,
        what,
        _sender(command),
        f"“{rejection}”" if rejection else "",
        stage_id=command.stage_id,
    )
    match CommandStatus(command.status):
        case CommandStatus.FAILED:
            reason = clause(command.metadata.get(REASON_KEY, ""))
            why = f"Failed: {reason}" if reason else "The piped could not do it."
            return replace(step, badge=Badge(Tone.BAD, "cross", ""), why=why)
        case CommandStatus.TIMEOUT:
            return replace(step, why="The piped did not handle it in time.")
        case CommandStatus.NOT_HANDLED_YET:
            return replace(step, why="The piped has not handled it yet.")
        case CommandStatus.SUCCEEDED:
            return step


def _end(deployment: Deployment, now: datetime) -> list[TimelineStep]:
    status = DeploymentStatus(deployment.status)
    if not status.is_completed:
        return []
    badge = deployment_badge(status)
    return [
        TimelineStep(
            deployment.completed_at,
            timestamp(deployment.completed_at, now),
            badge,
            badge.text,
            why=sentence(with_stage_names(deployment.status_reason, deployment)),
            elapsed=elapsed_time(deployment.created_at, deployment.completed_at, now),
        )
    ]
