# SPDX-License-Identifier: Apache-2.0
"""View models of the stages of a deployment: the columns of the pipeline, and approvals."""
# v0 stages use fields that the protobuf files call deprecated.
# pyright: reportDeprecated=false

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pipecd.controlplane.console.formatting import (
    Timestamp,
    clause,
    duration,
    join_words,
    timestamp,
)
from pipecd.controlplane.console.status_badge import Badge, stage_badge
from pipecd.controlplane.usecases.deployments import approvers_of, is_waiting_for_approval
from pipecd.model.clock import to_unix
from pipecd.model.count import parse_count
from pipecd.model.deployment import (
    APPROVED_USERS_KEY,
    DISPLAY_KEY,
    REQUIRED_APPROVALS_KEY,
    TIMEOUT_KEY,
    ManualOperation,
    StageStatus,
    is_rollback,
    running_since,
)
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

_APPROVED_KEYS = (APPROVED_USERS_KEY, "ApprovedBy")
_VARIANTS = (("Primary", "primary"), ("Canary", "canary"), ("Baseline", "baseline"))


@dataclass(frozen=True)
class Elapsed:
    """A duration; `since` is set while it still grows, so that times.js can update it."""

    text: str
    since: str = ""


@dataclass(frozen=True)
class StageView:
    """One stage of the pipeline.

    `facts` is what its plugin says about it, `detail` the same with the status where the icon
    does not suffice.
    """

    id: str
    name: str
    desc: str
    status: str
    badge: Badge
    facts: str
    detail: str
    elapsed: Elapsed | None
    reason: str
    started: bool
    running: bool
    retried_count: int


@dataclass(frozen=True)
class PipelineView:
    """Stages in columns, one after the other; the stages of a column run in parallel."""

    columns: tuple[tuple[StageView, ...], ...]
    rollback: tuple[StageView, ...]
    has_cycle: bool = False

    @property
    def forward(self) -> tuple[StageView, ...]:
        """The stages without those of the rollback."""
        return tuple(stage for column in self.columns for stage in column)

    @property
    def stages(self) -> tuple[StageView, ...]:
        return (*self.forward, *self.rollback)


@dataclass(frozen=True)
class ApprovalView:
    """A stage that waits for approval; the user may decide if `disabled_reason` is empty.

    `required` is 0 if the piped does not say how many approvals it waits for.
    """

    stage: StageView
    next_step: str
    approvers: tuple[str, ...]
    approved_by: tuple[str, ...]
    required: int
    expires: Timestamp | None
    # How long it still waits, if it has a timeout.
    time_left: str
    user: str
    disabled_reason: str = ""

    @property
    def has_approved(self) -> bool:
        return self.user in self.approved_by

    @property
    def can_approve(self) -> tuple[str, ...]:
        """The approvers who have not approved yet."""
        return tuple(name for name in self.approvers if name not in self.approved_by)

    @property
    def progress(self) -> str:
        """How many of the required approvals there are."""
        return f"{len(self.approved_by)} of {self.required}" if self.required > 1 else ""


def is_skippable(stage: PipelineStage) -> bool:
    """Whether the stage is running and a user may skip the rest of it."""
    skippable = stage.available_operation == ManualOperation.SKIP
    return stage.status == StageStatus.RUNNING and (skippable or stage.name == "ANALYSIS")


def is_shown(stage: PipelineStage) -> bool:
    """Whether the pipeline shows the stage; rollback and predefined ones only once started."""
    started = stage.status != StageStatus.NOT_STARTED_YET
    return started or not (stage.rollback or (stage.predefined and not stage.visible))


def is_quick_sync(stage: PipelineStage) -> bool:
    """Whether a deployment that consists of this stage is a quick sync."""
    return stage.predefined or stage.name.endswith("_SYNC")


def has_pending_approval(deployment: Deployment) -> bool:
    return any(is_waiting_for_approval(stage) for stage in deployment.stages)


def pipeline_view(deployment: Deployment, now: datetime) -> PipelineView:
    """The stages to show, each exactly once."""
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
    return PipelineView(columns, rollback, has_cycle)


def _layers(stages: Sequence[PipelineStage]) -> tuple[dict[str, int], bool]:
    """The column of each stage, by its longest path from a first stage; whether there is a cycle.

    The stages of a cycle share the last column.
    """
    layers: dict[str, int] = {}
    waiting = {stage.id: {r for r in stage.requires if r != stage.id} for stage in stages}
    ids = set(waiting)
    while waiting:
        ready = [id for id, requires in waiting.items() if not requires & waiting.keys()]
        if not ready:
            last = max(layers.values(), default=-1) + 1
            return layers | dict.fromkeys(waiting, last), True
        for id in ready:
            required = waiting.pop(id) & ids
            layers[id] = max((layers[r] + 1 for r in required), default=0)
    return layers, False


def stage_view(stage: PipelineStage, deployment: Deployment, now: datetime) -> StageView:
    status = StageStatus(stage.status)
    elapsed: Elapsed | None = None
    if status is StageStatus.RUNNING:
        elapsed = elapsed_time(started_at(stage, deployment), 0, now)
    elif status.is_completed and status is not StageStatus.SKIPPED and stage.completed_at:
        elapsed = elapsed_time(started_at(stage, deployment), stage.completed_at, now)
    facts = _facts(stage)
    return StageView(
        id=stage.id,
        name=stage.name,
        desc=stage.desc,
        status=status.name,
        badge=stage_badge(status, waiting=is_waiting_for_approval(stage)),
        facts=facts,
        detail=_detail(facts, status),
        elapsed=elapsed,
        reason=clause(stage.status_reason),
        started=status is not StageStatus.NOT_STARTED_YET,
        running=status is StageStatus.RUNNING,
        retried_count=stage.retried_count,
    )


def started_at(stage: PipelineStage, deployment: Deployment) -> int:
    """When a stage started.

    Of a stage that has ended the API does not say it, so it is the end of those it requires.
    """
    if since := running_since(stage):
        return since
    before = set(stage.requires)
    if is_rollback(stage):
        before = {other.id for other in deployment.stages if not is_rollback(other)}
    ends = [other.completed_at for other in deployment.stages if other.id in before]
    return max([stage.created_at, *ends])


def elapsed_time(start: int, end: int, now: datetime) -> Elapsed:
    """The time between two Unix times; it still grows if `end` is zero."""
    if end:
        return Elapsed(duration(end - start))
    at = timestamp(start, now)
    return Elapsed(duration(to_unix(now) - start), at.iso if at else "")


def _facts(stage: PipelineStage) -> str:
    """What the metadata of the stage says."""
    metadata, parts = stage.metadata, list[str]()
    if text := metadata.get(DISPLAY_KEY):
        parts.append(text.replace("SkippedBy:", "Skipped by:"))
    elif approved := metadata.get("ApprovedBy"):
        parts.append(f"Approved by: {approved}")
    elif skipped := metadata.get("SkippedBy"):
        parts.append(f"Skipped by: {skipped}")
    if promoted := metadata.get("promote-percentage"):
        parts.append(f"{promoted} % promoted")
    else:
        shares = [(variant, metadata.get(f"{key}-percentage")) for variant, key in _VARIANTS]
        parts.append(", ".join(f"{variant} {share} %" for variant, share in shares if share))
    return " · ".join(filter(None, parts))


def _detail(facts: str, status: StageStatus) -> str:
    text = ""
    if status is StageStatus.NOT_STARTED_YET:
        text = "not started"
    elif status in (StageStatus.SKIPPED, StageStatus.CANCELLED, StageStatus.EXITED):
        text = stage_badge(status).text.lower()
    return " · ".join(filter(None, (facts, text)))


def approved_by(stage: PipelineStage) -> tuple[str, ...]:
    """The users who have approved the stage."""
    text = next(filter(None, (stage.metadata.get(key) for key in _APPROVED_KEYS)), "")
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _required_approvals(stage: PipelineStage) -> int:
    return parse_count(stage.metadata.get(REQUIRED_APPROVALS_KEY, "")) or 0


def missing_approvals(stage: PipelineStage) -> int:
    """How many approvals the stage still needs; 0 if its piped does not say."""
    return max(_required_approvals(stage) - len(approved_by(stage)), 0)


def approval_views(deployment: Deployment, user: str, now: datetime) -> tuple[ApprovalView, ...]:
    """One for each stage that waits for approval, as this user sees it."""
    views: list[ApprovalView] = []
    for stage in filter(is_waiting_for_approval, deployment.stages):
        approvers, approved = approvers_of(stage), approved_by(stage)
        disabled_reason = ""
        if approvers and user not in approvers:
            disabled_reason = f"You are signed in as {user}, who is not one of the approvers."
        timeout = parse_count(stage.metadata.get(TIMEOUT_KEY, ""))
        deadline = started_at(stage, deployment) + timeout if timeout else 0
        following = [other.name for other in deployment.stages if stage.id in other.requires]
        views.append(
            ApprovalView(
                stage=stage_view(stage, deployment, now),
                next_step=(
                    f"continue with {join_words(following)}"
                    if following
                    else "finish the deployment"
                ),
                approvers=approvers,
                approved_by=approved,
                required=_required_approvals(stage),
                expires=timestamp(deadline, now),
                time_left=duration(deadline - to_unix(now)),
                user=user,
                disabled_reason=disabled_reason,
            )
        )
    return tuple(views)
