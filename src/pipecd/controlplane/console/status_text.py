# SPDX-License-Identifier: Apache-2.0
"""What is going on with a deployment, in a sentence or two: the first thing people read."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from pipecd.controlplane.console.formatting import duration, joined, plural, sentence
from pipecd.controlplane.console.piped_status import Agent
from pipecd.controlplane.console.pipeline_view import (
    Pipeline,
    StageView,
    approved_by,
    is_waiting,
)
from pipecd.controlplane.console.status_badge import Tone
from pipecd.controlplane.usecases.deployments import approvers_of
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment


@dataclass(frozen=True)
class Story:
    """The text, and the stage a reader wants to see next if there is one."""

    text: str
    stage: StageView | None = None


def story(deployment: Deployment, drawn: Pipeline, agent: Agent, now: datetime) -> Story:
    """Why it stands where it stands."""
    status = DeploymentStatus(deployment.status)
    if not status.is_completed and agent.is_away:
        return Story(
            f"Nothing moves: piped {agent.name} is {agent.mark.word.lower()}. "
            "It goes on where it stopped once that piped is back."
        )
    waits_for = sentence(deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, ""))
    if not status.is_completed and waits_for:
        return Story(waits_for)
    tell: dict[DeploymentStatus, Callable[[], Story]] = {
        DeploymentStatus.PENDING: lambda: Story(f"Waiting for piped {agent.name} to plan it."),
        DeploymentStatus.PLANNED: lambda: _planned(drawn),
        DeploymentStatus.RUNNING: lambda: _running(deployment, drawn),
        DeploymentStatus.ROLLING_BACK: lambda: _rolling_back(deployment, drawn),
        DeploymentStatus.SUCCESS: lambda: _succeeded(deployment, drawn),
        DeploymentStatus.FAILURE: lambda: _failed(deployment, drawn),
        DeploymentStatus.CANCELLED: lambda: _cancelled(deployment, drawn),
    }
    return tell[status]()


def _planned(drawn: Pipeline) -> Story:
    return Story(f"Planned with {plural(len(drawn.stages), 'stage')}; it starts next.")


def _running(deployment: Deployment, drawn: Pipeline) -> Story:
    for waiting in filter(is_waiting, deployment.stages):
        given, names = approved_by(waiting), approvers_of(waiting)
        told = f" Approved by {joined(given)} so far." if given else ""
        who = joined(names, "or") if names else "anyone who may change deployments"
        return Story(f"It goes on once {who} approves.{told}")
    for number, stage in enumerate(drawn.stages, 1):
        if stage.running:
            said = sentence(stage.desc or stage.name)
            return Story(f"Stage {number} of {len(drawn.stages)} is running: {said}", stage)
    return Story("The next stage starts in a moment.")


def _rolling_back(deployment: Deployment, drawn: Pipeline) -> Story:
    bad = _first(drawn.stages, Tone.BAD)
    return Story(f"{_cause(deployment, bad)} Rolling back{_to(deployment)} now.", bad)


def _succeeded(deployment: Deployment, drawn: Pipeline) -> Story:
    seconds = deployment.completed_at - deployment.created_at
    took = duration(seconds) if seconds > 0 else "less than a second"
    skipped = [stage.name for stage in drawn.stages if stage.status == "SKIPPED"]
    exited = [stage.name for stage in drawn.stages if stage.status == "EXITED"]
    text = f"Went through {plural(len(drawn.stages) - len(skipped), 'stage')} in {took}."
    if skipped:
        text += f" Skipped: {joined(skipped)}."
    if exited:
        text += f" {exited[0]} ended it early."
    return Story(text)


def _failed(deployment: Deployment, drawn: Pipeline) -> Story:
    bad = _first(drawn.stages, Tone.BAD)
    text = _cause(deployment, bad)
    if drawn.rollback:
        undone = all(stage.status == "SUCCESS" for stage in drawn.rollback)
        text += f" It was rolled back{_to(deployment)}." if undone else " The rollback failed too."
    return Story(text, bad)


def _cancelled(deployment: Deployment, drawn: Pipeline) -> Story:
    text = sentence(deployment.status_reason) or "Someone cancelled it."
    if drawn.rollback and all(stage.status == "SUCCESS" for stage in drawn.rollback):
        text += f" It was rolled back{_to(deployment)}."
    return Story(text, next((s for s in drawn.stages if s.status == "CANCELLED"), None))


def _cause(deployment: Deployment, bad: StageView | None) -> str:
    """The reason of the stage says more than that of the deployment."""
    if bad and bad.reason:
        return f"{bad.name} failed: {bad.reason}"
    told = sentence(deployment.status_reason)
    return told or (f"{bad.name} failed." if bad else "It failed without giving a reason.")


def _to(deployment: Deployment) -> str:
    return f" to {deployment.running_commit_hash[:7]}" if deployment.running_commit_hash else ""


def _first(stages: Iterable[StageView], tone: Tone) -> StageView | None:
    return next((stage for stage in stages if stage.mark.tone is tone), None)
