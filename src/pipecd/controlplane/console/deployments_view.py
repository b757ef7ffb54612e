# SPDX-License-Identifier: Apache-2.0
"""Deployments as people read them: rows of a list and the page of one."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pipecd.controlplane.console.formatting import (
    Moment,
    duration,
    label_texts,
    moment,
    safe_link,
    sentence,
)
from pipecd.controlplane.console.generation import (
    is_quick_sync,
    is_rollback,
    platform,
    targets,
)
from pipecd.controlplane.console.piped_status import Agent
from pipecd.controlplane.console.pipeline_view import (
    Approval,
    Elapsed,
    Pipeline,
    StageView,
    approvals,
    is_skippable,
    pipeline,
    waits_for_approval,
)
from pipecd.controlplane.console.status_badge import Mark, Tone, deployment_mark
from pipecd.controlplane.console.status_text import Story, story
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus, SyncStrategy, triggered_by
from pipecd.proto.model.chain_pb2 import (
    ChainBlock,
    ChainBlockStatus,
    ChainNode,
    ChainStatus,
    DeploymentChain,
)
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Commit, Deployment


@dataclass(frozen=True)
class CommitView:
    """The commit something was made from."""

    hash: str
    short: str
    url: str
    subject: str
    author: str
    branch: str
    pull_request: int
    at: Moment | None


@dataclass(frozen=True)
class Version:
    """One artifact; `url` is empty when there is nothing to open."""

    text: str
    short: str
    url: str


@dataclass(frozen=True)
class Strategy:
    """How it is carried out and why."""

    word: str
    why: str


@dataclass(frozen=True)
class DeploymentRow:
    """One line of a list."""

    id: str
    application_id: str
    application_name: str
    mark: Mark
    labels: tuple[str, ...]
    platform: str
    summary: str
    commit: CommitView
    triggered_by: str
    segments: tuple[StageView, ...]
    elapsed: Elapsed
    created: Moment | None
    created_at: int


@dataclass(frozen=True)
class DeploymentPage:
    """Everything the page of one deployment says."""

    row: DeploymentRow
    state: str
    story: Story
    versions: tuple[Version, ...]
    running: str
    compare_url: str
    strategy: Strategy
    because: str
    agent: Agent
    targets: str
    pipeline: Pipeline
    approvals: tuple[Approval, ...]
    skippable: tuple[StageView, ...]
    completed: bool


@dataclass(frozen=True)
class ChainStep:
    """One application of a block; `deployment_id` is empty before it is deployed."""

    name: str
    deployment_id: str
    mark: Mark


@dataclass(frozen=True)
class ChainView:
    """The chain that a deployment is part of; `number` is that of its block, from one."""

    mark: Mark
    number: int
    blocks: tuple[tuple[ChainStep, ...], ...]


def chain_view(chain: DeploymentChain, block_index: int) -> ChainView:
    status = ChainStatus.Name(chain.status).removeprefix("DEPLOYMENT_CHAIN_")
    return ChainView(
        mark=deployment_mark(DeploymentStatus[status]),
        number=block_index + 1,
        blocks=tuple(
            tuple(_chain_step(node, block) for node in block.nodes) for block in chain.blocks
        ),
    )


def _chain_step(node: ChainNode, block: ChainBlock) -> ChainStep:
    """An application that was not deployed stands where its block does."""
    if node.HasField("deployment_ref"):
        status = DeploymentStatus(node.deployment_ref.status)
    else:
        name = ChainBlockStatus.Name(block.status).removeprefix("DEPLOYMENT_BLOCK_")
        status = DeploymentStatus[name]
    return ChainStep(
        name=node.application_ref.application_name,
        deployment_id=node.deployment_ref.deployment_id,
        mark=deployment_mark(status),
    )


def deployment_row(deployment: Deployment, now: datetime) -> DeploymentRow:
    status = DeploymentStatus(deployment.status)
    return DeploymentRow(
        id=deployment.id,
        application_id=deployment.application_id,
        application_name=deployment.application_name,
        mark=deployment_mark(status, waiting=waits_for_approval(deployment)),
        labels=label_texts(deployment.labels),
        platform=platform(deployment),
        summary=deployment.summary,
        commit=commit_view(deployment.trigger.commit, now),
        triggered_by=triggered_by(deployment),
        segments=pipeline(deployment, now).stages,
        elapsed=_elapsed(deployment, status, now),
        created=moment(deployment.created_at, now),
        created_at=deployment.created_at,
    )


def deployment_page(
    deployment: Deployment, agent: Agent, reader: str, now: datetime
) -> DeploymentPage:
    row = deployment_row(deployment, now)
    drawn = pipeline(deployment, now)
    status = DeploymentStatus(deployment.status)
    skippable = {stage.id for stage in deployment.stages if is_skippable(stage)}
    return DeploymentPage(
        row=row,
        state="WAITING" if row.mark.tone is Tone.WAIT else status.name.replace("_", " "),
        story=story(deployment, drawn, agent, now),
        versions=versions(deployment.versions),
        running=deployment.running_commit_hash[:7],
        compare_url=_compare_url(deployment),
        strategy=strategy(deployment),
        because=trigger_reason(deployment),
        agent=agent,
        targets=targets(deployment),
        pipeline=drawn,
        approvals=approvals(deployment, reader, now),
        skippable=tuple(stage for stage in drawn.stages if stage.id in skippable),
        completed=status.is_completed,
    )


def chosen_stage(page: DeploymentPage, wanted: str) -> StageView | None:
    """Which log to show: the one asked for, else what runs, else what failed, else the last."""
    started = [stage for stage in page.pipeline.stages if stage.started]
    for stage in page.pipeline.stages:
        if stage.id == wanted:
            return stage
    if running := [stage for stage in started if stage.running]:
        return running[0]
    if failed := [stage for stage in started if stage.mark.tone is Tone.BAD]:
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
        at=moment(commit.created_at, now),
    )


def versions(artifacts: Iterable[ArtifactVersion]) -> tuple[Version, ...]:
    """Each artifact once, with its name where it has one."""
    found = {
        f"{artifact.name}:{artifact.version}" if artifact.name else artifact.version: artifact
        for artifact in artifacts
        # A piped that cannot tell the version says so in a word.
        if artifact.version and artifact.version != "unknown"
    }
    return tuple(Version(text, a.version, safe_link(a.url)) for text, a in found.items())


def strategy(deployment: Deployment) -> Strategy:
    """What was planned, or what was asked for as long as nothing is planned."""
    why = sentence(deployment.summary)
    asked = SyncStrategy(deployment.trigger.sync_strategy)
    forward = [stage for stage in deployment.stages if not is_rollback(stage)]
    if asked is SyncStrategy.QUICK_SYNC:
        return Strategy("Quick sync", why)
    if asked is SyncStrategy.PIPELINE:
        return Strategy("Pipeline", why)
    if not forward:
        return Strategy("Not planned yet", why)
    quick = len(forward) == 1 and is_quick_sync(forward[0])
    return Strategy("Quick sync" if quick else "Pipeline", why)


def trigger_reason(deployment: Deployment) -> str:
    """Why it was made, where the plan does not say the same."""
    told = deployment.trigger.strategy_summary
    return "" if told == deployment.summary else sentence(told)


def _elapsed(deployment: Deployment, status: DeploymentStatus, now: datetime) -> Elapsed:
    if status.is_completed and deployment.completed_at:
        return Elapsed(duration(deployment.completed_at - deployment.created_at))
    at = moment(deployment.created_at, now)
    return Elapsed(duration(to_unix(now) - deployment.created_at), at.iso if at else "")


def _compare_url(deployment: Deployment) -> str:
    """The page of the Git host that shows what changes, where its address can be known."""
    commit, running = deployment.trigger.commit, deployment.running_commit_hash
    before, found, _ = safe_link(commit.url).partition(f"/commit/{commit.hash}")
    if not found or not running or running == commit.hash:
        return ""
    return f"{before}/compare/{running}...{commit.hash}"
