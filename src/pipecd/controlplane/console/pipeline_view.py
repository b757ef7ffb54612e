# SPDX-License-Identifier: Apache-2.0
"""The stages of a deployment: in which columns they stand and what each of them says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipecd.controlplane.console.formatting import duration, joined, moment, sentence
from pipecd.controlplane.console.generation import is_rollback, is_shown
from pipecd.controlplane.console.status_badge import Mark, stage_mark
from pipecd.controlplane.usecases.deployments import approvers_of
from pipecd.model.clock import to_unix
from pipecd.model.deployment import (
    APPROVED_USERS_KEY,
    DISPLAY_KEY,
    ManualOperation,
    StageStatus,
)
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

_APPROVED = (APPROVED_USERS_KEY, "ApprovedBy")
_SHARES = (("Primary", "primary"), ("Canary", "canary"), ("Baseline", "baseline"))


@dataclass(frozen=True)
class Elapsed:
    """How long something took; `since` is set while it runs, for the browser to count on."""

    text: str
    since: str = ""


@dataclass(frozen=True)
class StageView:
    """One stage of the pipeline."""

    id: str
    name: str
    desc: str
    status: str
    mark: Mark
    line: str
    elapsed: Elapsed | None
    reason: str
    started: bool
    running: bool
    retried_count: int


@dataclass(frozen=True)
class Pipeline:
    """Stages in columns, one after the other; stages of one column run side by side."""

    columns: tuple[tuple[StageView, ...], ...]
    rollback: tuple[StageView, ...]
    has_cycle: bool = False

    @property
    def stages(self) -> tuple[StageView, ...]:
        return (*(stage for column in self.columns for stage in column), *self.rollback)


@dataclass(frozen=True)
class Approval:
    """What a stage that waits for a person wants; an empty `why_not` means that the reader may."""

    stage: StageView
    leads_to: str
    approvers: tuple[str, ...]
    approved_by: tuple[str, ...]
    why_not: str = ""


def is_waiting(stage: PipelineStage) -> bool:
    """Whether the stage stands still until a person approves."""
    asks = stage.available_operation == ManualOperation.APPROVE or stage.name == "WAIT_APPROVAL"
    return stage.status == StageStatus.RUNNING and asks


def is_skippable(stage: PipelineStage) -> bool:
    """Whether a person may end the running stage early."""
    offers = stage.available_operation == ManualOperation.SKIP or stage.name == "ANALYSIS"
    return stage.status == StageStatus.RUNNING and offers


def waits_for_approval(deployment: Deployment) -> bool:
    return any(is_waiting(stage) for stage in deployment.stages)


def pipeline(deployment: Deployment, now: datetime) -> Pipeline:
    """Everything to draw, each stage exactly once."""
    shown = [stage for stage in deployment.stages if is_shown(stage)]
    forward = [stage for stage in shown if not is_rollback(stage)]
    layers, has_cycle = _layers(forward)
    views = {stage.id: stage_view(stage, deployment, now) for stage in shown}
    depth = max(layers.values(), default=-1) + 1
    columns = tuple(
        tuple(views[stage.id] for stage in forward if layers[stage.id] == layer)
        for layer in range(depth)
    )
    rollback = tuple(views[stage.id] for stage in shown if is_rollback(stage))
    return Pipeline(columns, rollback, has_cycle)


def _layers(stages: Sequence[PipelineStage]) -> tuple[dict[str, int], bool]:
    """The longest way from a first stage to each; what is left over waits for itself."""
    layers: dict[str, int] = {}
    waiting = {stage.id: {r for r in stage.requires if r != stage.id} for stage in stages}
    known = set(waiting)
    while waiting:
        ready = [id for id, requires in waiting.items() if not requires & waiting.keys()]
        if not ready:
            last = max(layers.values(), default=-1) + 1
            return layers | dict.fromkeys(waiting, last), True
        for id in ready:
            required = waiting.pop(id) & known
            layers[id] = max((layers[r] + 1 for r in required), default=0)
    return layers, False


def stage_view(stage: PipelineStage, deployment: Deployment, now: datetime) -> StageView:
    status = StageStatus(stage.status)
    elapsed = _elapsed(stage, deployment, now)
    return StageView(
        id=stage.id,
        name=stage.name,
        desc=stage.desc,
        status=status.name,
        mark=stage_mark(status, waiting=is_waiting(stage)),
        line=_line(stage, status),
        elapsed=elapsed,
        reason=sentence(stage.status_reason),
        started=status is not StageStatus.NOT_STARTED_YET,
        running=status is StageStatus.RUNNING,
        retried_count=stage.retried_count,
    )


def started_at(stage: PipelineStage, deployment: Deployment) -> int:
    """When a stage began: the wire does not say it, but the end of what it waited for does."""
    before = set(stage.requires)
    if is_rollback(stage):
        before = {other.id for other in deployment.stages if not is_rollback(other)}
    ends = [other.completed_at for other in deployment.stages if other.id in before]
    return max([stage.created_at, *ends])


def _elapsed(stage: PipelineStage, deployment: Deployment, now: datetime) -> Elapsed | None:
    start = started_at(stage, deployment)
    status = StageStatus(stage.status)
    if status is StageStatus.RUNNING:
        at = moment(start, now)
        return Elapsed(duration(to_unix(now) - start), at.iso if at else "")
    if status.is_completed and status is not StageStatus.SKIPPED and stage.completed_at:
        return Elapsed(duration(stage.completed_at - start))
    return None


def _line(stage: PipelineStage, status: StageStatus) -> str:
    """What the stage itself has to tell, in a few words."""
    parts = [_told(stage.metadata), _traffic(stage.metadata)]
    if status is StageStatus.NOT_STARTED_YET:
        parts.append("not started")
    elif status in (StageStatus.SKIPPED, StageStatus.CANCELLED, StageStatus.EXITED):
        parts.append(stage_mark(status).word.lower())
    return " · ".join(part for part in parts if part)


def _told(metadata: Mapping[str, str]) -> str:
    if told := metadata.get(DISPLAY_KEY):
        return told.replace("SkippedBy:", "Skipped by:")
    if approved := metadata.get("ApprovedBy"):
        return f"Approved by: {approved}"
    if skipped := metadata.get("SkippedBy"):
        return f"Skipped by: {skipped}"
    return ""


def _traffic(metadata: Mapping[str, str]) -> str:
    if promoted := metadata.get("promote-percentage"):
        return f"{promoted} % promoted"
    shares = [(word, metadata.get(f"{key}-percentage", "")) for word, key in _SHARES]
    return ", ".join(f"{word} {share} %" for word, share in shares if share)


def approved_by(stage: PipelineStage) -> tuple[str, ...]:
    """Who has approved so far."""
    text = next(filter(None, (stage.metadata.get(key) for key in _APPROVED)), "")
    return tuple(name.strip() for name in text.split(",") if name.strip())


def approvals(deployment: Deployment, reader: str, now: datetime) -> tuple[Approval, ...]:
    """One for each stage that waits for a person, with the reason why the reader may not."""
    return tuple(
        Approval(
            stage=stage_view(stage, deployment, now),
            leads_to=_leads_to(stage, deployment),
            approvers=(names := approvers_of(stage)),
            approved_by=(given := approved_by(stage)),
            why_not=_why_not(reader, names, given),
        )
        for stage in deployment.stages
        if is_waiting(stage)
    )


def _leads_to(stage: PipelineStage, deployment: Deployment) -> str:
    """The names of the stages that start next, or what happens without any."""
    following = [one.name for one in deployment.stages if stage.id in one.requires]
    return f"continue with {joined(following)}" if following else "finish the deployment"


def _why_not(reader: str, approvers: Sequence[str], given: Sequence[str]) -> str:
    if reader in given:
        return "You have approved already."
    if approvers and reader not in approvers:
        return f"You are signed in as {reader}, who is not one of the approvers."
    return ""
