# SPDX-License-Identifier: Apache-2.0
"""View models of deployments: the list by day, the page of one, its deployment chain."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from pipecd.controlplane.console.deploy_targets import platform_name, platforms, target_names
from pipecd.controlplane.console.formatting import (
    Timestamp,
    day_heading,
    label_texts,
    safe_link,
    sentence,
    timestamp,
)
from pipecd.controlplane.console.list_filters import DeploymentQuery
from pipecd.controlplane.console.pipeline_view import (
    ApprovalView,
    Elapsed,
    PipelineView,
    StageView,
    approval_views,
    elapsed_time,
    has_pending_approval,
    is_quick_sync,
    is_skippable,
    pipeline_view,
)
from pipecd.controlplane.console.roll_back_view import RollBackView, roll_back_view
from pipecd.controlplane.console.status_badge import (
    WAITING,
    WAITING_FOR_APPROVAL,
    Badge,
    PipedStatus,
    StatusCount,
    Tone,
    deployment_badge,
)
from pipecd.controlplane.console.status_text import StatusText, deployment_status_text
from pipecd.model.deployment import DeploymentStatus, SyncStrategy, is_rollback, triggered_by
from pipecd.proto.model.chain_pb2 import (
    ChainBlockStatus,
    ChainStatus,
    DeploymentChain,
)
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Commit, Deployment

# The values of the status filter and what rows show for them, in the order of the filter.
STATUS_FILTERS = (
    (WAITING, WAITING_FOR_APPROVAL),
    *(
        (str(int(status)), deployment_badge(status))
        for status in (
            DeploymentStatus.ROLLING_BACK,
            DeploymentStatus.RUNNING,
            DeploymentStatus.PLANNED,
            DeploymentStatus.PENDING,
            DeploymentStatus.FAILURE,
            DeploymentStatus.CANCELLED,
            DeploymentStatus.SUCCESS,
        )
    ),
)


@dataclass(frozen=True)
class CommitView:
    """The commit that a deployment was triggered with."""

    hash: str
    short: str
    url: str
    subject: str
    author: str
    branch: str
    pull_request: int
    at: Timestamp | None


@dataclass(frozen=True)
class VersionView:
    """The version of one artifact; `url` is empty if there is no link."""

    text: str
    short: str
    url: str


@dataclass(frozen=True)
class StrategyView:
    """The sync strategy and its reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class DeploymentRow:
    """One row of a list of deployments."""

    id: str
    application_id: str
    application_name: str
    badge: Badge
    labels: tuple[str, ...]
    platform: str
    summary: str
    commit: CommitView
    triggered_by: str
    # Without rollback stages, whose success is no progress.
    segments: tuple[StageView, ...]
    elapsed: Elapsed
    created: Timestamp | None
    created_at: int


@dataclass(frozen=True)
class DeploymentView:
    """The page of one deployment.

    `title` is its status in the title of the browser tab, `news` what a browser notifies about.
    """

    row: DeploymentRow
    title: str
    news: str
    status: StatusText
    versions: tuple[VersionView, ...]
    running_commit: str
    compare_url: str
    strategy: StrategyView
    trigger_reason: str
    piped: PipedStatus
    targets: str
    pipeline: PipelineView
    approvals: tuple[ApprovalView, ...]
    skippable: tuple[StageView, ...]
    completed: bool
    roll_back: RollBackView


@dataclass(frozen=True)
class ChainStep:
    """One application of a block; `deployment_id` is empty before its deployment."""

    name: str
    deployment_id: str
    badge: Badge


@dataclass(frozen=True)
class ChainView:
    """The deployment chain of a deployment; `block_number` counts from one."""

    id: str
    badge: Badge
    block_number: int
    blocks: tuple[tuple[ChainStep, ...], ...]


def chain_view(chain: DeploymentChain, block_index: int) -> ChainView:
    status = ChainStatus.Name(chain.status).removeprefix("DEPLOYMENT_CHAIN_")
    blocks: list[tuple[ChainStep, ...]] = []
    for block in chain.blocks:
        # An application without a deployment has the status of its block.
        name = ChainBlockStatus.Name(block.status).removeprefix("DEPLOYMENT_BLOCK_")
        steps = (
            ChainStep(
                name=node.application_ref.application_name,
                deployment_id=node.deployment_ref.deployment_id,
                badge=deployment_badge(
                    DeploymentStatus(node.deployment_ref.status)
                    if node.HasField("deployment_ref")
                    else DeploymentStatus[name]
                ),
            )
            for node in block.nodes
        )
        blocks.append(tuple(steps))
    return ChainView(
        id=chain.id,
        badge=deployment_badge(DeploymentStatus[status]),
        block_number=block_index + 1,
        blocks=tuple(blocks),
    )


def deployment_row(deployment: Deployment, now: datetime) -> DeploymentRow:
    status = DeploymentStatus(deployment.status)
    return DeploymentRow(
        id=deployment.id,
        application_id=deployment.application_id,
        application_name=deployment.application_name,
        badge=deployment_badge(status, waiting=has_pending_approval(deployment)),
        labels=label_texts(deployment.labels),
        platform=platform_name(deployment),
        summary=deployment.summary,
        commit=commit_view(deployment.trigger.commit, now),
        triggered_by=triggered_by(deployment),
        segments=pipeline_view(deployment, now).forward,
        elapsed=elapsed_time(
            deployment.created_at, deployment.completed_at if status.is_completed else 0, now
        ),
        created=timestamp(deployment.created_at, now),
        created_at=deployment.created_at,
    )


_NEWS = {
    DeploymentStatus.SUCCESS: "has succeeded",
    DeploymentStatus.FAILURE: "has failed",
    DeploymentStatus.CANCELLED: "was cancelled",
}


def deployment_view(
    deployment: Deployment,
    piped: PipedStatus,
    user: str,
    now: datetime,
    later_commit: str = "",
) -> DeploymentView:
    row = deployment_row(deployment, now)
    pipeline = pipeline_view(deployment, now)
    status = DeploymentStatus(deployment.status)
    skippable = {stage.id for stage in deployment.stages if is_skippable(stage)}
    summary, trigger_summary = deployment.summary, deployment.trigger.strategy_summary
    return DeploymentView(
        row=row,
        title=row.badge.text,
        news="waits for an approval" if row.badge.tone is Tone.WAIT else _NEWS.get(status, ""),
        status=deployment_status_text(deployment, pipeline, piped),
        versions=version_views(deployment.versions),
        running_commit=deployment.running_commit_hash[:7],
        compare_url=_compare_url(deployment),
        strategy=strategy_view(deployment),
        # Empty where the planner repeats it.
        trigger_reason="" if trigger_summary == summary else sentence(trigger_summary),
        piped=piped,
        targets=target_names(deployment),
        pipeline=pipeline,
        approvals=approval_views(deployment, user, now),
        skippable=tuple(stage for stage in pipeline.stages if stage.id in skippable),
        completed=status.is_completed,
        roll_back=roll_back_view(deployment, pipeline, later_commit),
    )


def selected_stage(view: DeploymentView, stage_id: str) -> StageView | None:
    """The stage whose log is shown: the requested one, else running, failed, last started."""
    started = [stage for stage in view.pipeline.stages if stage.started]
    for stage in view.pipeline.stages:
        if stage.id == stage_id:
            return stage
    if running := [stage for stage in started if stage.running]:
        return running[0]
    if failed := [stage for stage in started if stage.badge.tone is Tone.BAD]:
        return failed[0]
    return started[-1] if started else None


def commit_view(commit: Commit, now: datetime) -> CommitView:
    return CommitView(
        hash=commit.hash,
        short=commit.hash[:7],
        url=safe_link(commit.url),
        subject=commit.message.strip().split("\n", 1)[0],
        author=commit.author,
        branch=commit.branch,
        pull_request=commit.pull_request,
        at=timestamp(commit.created_at, now),
    )


def version_views(artifacts: Iterable[ArtifactVersion]) -> tuple[VersionView, ...]:
    """Each artifact once, with its name where it has one."""
    by_text = {
        f"{artifact.name}:{artifact.version}" if artifact.name else artifact.version: artifact
        for artifact in artifacts
        # What pipeds send if a manifest has no version.
        if artifact.version and artifact.version != "unknown"
    }
    return tuple(VersionView(text, a.version, safe_link(a.url)) for text, a in by_text.items())


def strategy_view(deployment: Deployment) -> StrategyView:
    """The planned strategy; before planning, the requested one."""
    reason = sentence(deployment.summary)
    requested = SyncStrategy(deployment.trigger.sync_strategy)
    forward = [stage for stage in deployment.stages if not is_rollback(stage)]
    if requested is SyncStrategy.QUICK_SYNC:
        return StrategyView("Quick sync", reason)
    if requested is SyncStrategy.PIPELINE:
        return StrategyView("Pipeline", reason)
    if not forward:
        completed = DeploymentStatus(deployment.status).is_completed
        return StrategyView("Never planned" if completed else "Not planned yet", reason)
    quick = len(forward) == 1 and is_quick_sync(forward[0])
    return StrategyView("Quick sync" if quick else "Pipeline", reason)


def _compare_url(deployment: Deployment) -> str:
    """The diff at the Git host, if its URL follows from that of the commit."""
    commit, running = deployment.trigger.commit, deployment.running_commit_hash
    repository, separator, _ = safe_link(commit.url).partition(f"/commit/{commit.hash}")
    if not separator or not running or running == commit.hash:
        return ""
    return f"{repository}/compare/{running}...{commit.hash}"


@dataclass(frozen=True)
class DeploymentDay:
    """The deployments of a day."""

    heading: str
    rows: tuple[DeploymentRow, ...]


def matches(deployment: Deployment, query: DeploymentQuery) -> bool:
    """Whether a deployment that the datastore has found is in the list.

    The datastore does not know which of the running ones wait for an approval, nor the platforms.
    """
    if query.platforms and set(query.platforms).isdisjoint(platforms(deployment)):
        return False
    running = DeploymentStatus.RUNNING
    if deployment.status != running or not (query.statuses or query.waiting):
        return True
    return query.waiting if has_pending_approval(deployment) else running in query.statuses


def stuck_deployments(
    deployments: Iterable[Deployment], offline: Iterable[PipedStatus]
) -> frozenset[str]:
    """The ids of those that do not go on until their piped is back."""
    offline_ids = {piped.id for piped in offline}
    return frozenset(
        each.id
        for each in deployments
        if each.piped_id in offline_ids and not DeploymentStatus(each.status).is_completed
    )


def unfinished_counts(deployments: Iterable[Deployment]) -> tuple[StatusCount, ...]:
    """How many deployments are in progress, by status; those that need somebody come first."""
    counts = Counter(_status_value(deployment) for deployment in deployments)
    return tuple(
        StatusCount(value, badge, counts[value]) for value, badge in STATUS_FILTERS if counts[value]
    )


def _status_value(deployment: Deployment) -> str:
    waiting = deployment.status == DeploymentStatus.RUNNING and has_pending_approval(deployment)
    return WAITING if waiting else str(deployment.status)


def group_by_day(deployments: Sequence[Deployment], now: datetime) -> tuple[DeploymentDay, ...]:
    """Newest first, grouped by day in the time zone of `now`."""
    newest = sorted(deployments, key=lambda d: (-d.created_at, d.id))
    groups = groupby(newest, key=lambda d: day_heading(d.created_at, now))
    return tuple(
        DeploymentDay(heading, tuple(deployment_row(deployment, now) for deployment in group))
        for heading, group in groups
    )
