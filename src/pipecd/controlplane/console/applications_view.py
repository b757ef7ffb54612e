# SPDX-License-Identifier: Apache-2.0
"""Applications as people read them: rows of a list and the page of one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pipecd.controlplane.console.deployments_view import (
    CommitView,
    Version,
    commit_view,
    versions,
)
from pipecd.controlplane.console.formatting import (
    Moment,
    label_texts,
    moment,
    plural,
    safe_link,
    sentence,
)
from pipecd.controlplane.console.generation import platform, targets
from pipecd.controlplane.console.piped_status import Agent
from pipecd.controlplane.console.status_badge import DEPLOYED, NEVER_DEPLOYED, Mark, sync_mark
from pipecd.model.application import SyncStatus
from pipecd.model.ids import is_uuid
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.deployment_pb2 import DeploymentTrigger

_STORIES = {
    SyncStatus.UNKNOWN: "What runs has not been compared with Git yet.",
    SyncStatus.SYNCED: "What runs is what Git says.",
    SyncStatus.DEPLOYING: "A deployment is under way.",
    SyncStatus.OUT_OF_SYNC: "What runs differs from Git.",
    SyncStatus.INVALID_CONFIG: "Its configuration cannot be read, so nothing is deployed.",
}


@dataclass(frozen=True)
class LastDeployment:
    """What an application remembers of a deployment."""

    id: str
    commit: CommitView
    by: str
    started: Moment | None
    completed: Moment | None
    summary: str
    versions: tuple[Version, ...]


@dataclass(frozen=True)
class ApplicationRow:
    """One line of the list."""

    id: str
    name: str
    mark: Mark
    status: int
    disabled: bool
    labels: tuple[str, ...]
    platform: str
    triggered: LastDeployment | None
    running: LastDeployment | None
    updated: Moment | None


@dataclass(frozen=True)
class DriftLine:
    """A line of what differs; `kind` is add, remove, change or same."""

    kind: str
    text: str


@dataclass(frozen=True)
class ApplicationPage:
    """Everything the page of one application says."""

    row: ApplicationRow
    story: str
    since: Moment | None
    drift: tuple[DriftLine, ...]
    agent: Agent
    targets: str
    repository: str
    branch: str
    path: str
    path_url: str
    config_filename: str
    description: str
    created: Moment | None
    why_not_sync: str


@dataclass(frozen=True)
class StatusCount:
    """How many applications of a list are in a status."""

    status: int
    mark: Mark
    number: int


def sync_status(application: Application) -> SyncStatus:
    """What is shown: a deployment under way says more than the last comparison with Git."""
    if application.deploying:
        return SyncStatus.DEPLOYING
    try:
        return SyncStatus(application.sync_state.status)
    except ValueError:
        return SyncStatus.UNKNOWN


def application_mark(application: Application) -> Mark:
    """How it stands; without a comparison with Git, how its last deployment went."""
    status = sync_status(application)
    last = application.most_recently_triggered_deployment.deployment_id
    if status is not SyncStatus.UNKNOWN:
        return sync_mark(status)
    if not last:
        return NEVER_DEPLOYED
    succeeded = application.most_recently_successful_deployment.deployment_id == last
    return DEPLOYED if succeeded else sync_mark(status)


def application_row(application: Application, now: datetime) -> ApplicationRow:
    status = sync_status(application)
    return ApplicationRow(
        id=application.id,
        name=application.name,
        mark=application_mark(application),
        status=int(status),
        disabled=application.disabled,
        labels=label_texts(application.labels),
        platform=platform(application),
        triggered=_last(application.most_recently_triggered_deployment, now),
        running=_last(application.most_recently_successful_deployment, now),
        updated=moment(application.updated_at, now),
    )


def application_page(application: Application, agent: Agent, now: datetime) -> ApplicationPage:
    git = application.git_path
    return ApplicationPage(
        row=application_row(application, now),
        story=story(application, agent),
        since=moment(application.sync_state.timestamp, now),
        drift=drift_lines(application),
        agent=agent,
        targets=targets(application),
        repository=git.repo.id,
        branch=git.repo.branch,
        path=git.path,
        path_url=safe_link(git.url),
        config_filename=git.config_filename,
        description=application.description.strip(),
        created=moment(application.created_at, now),
        why_not_sync="It is disabled; enable it first." if application.disabled else "",
    )


def story(application: Application, agent: Agent) -> str:
    """What is going on and what to do about it."""
    if application.disabled:
        return "Disabled: nothing is deployed and nothing is compared until it is enabled again."
    if agent.is_away:
        return (
            f"Piped {agent.name} is {agent.mark.word.lower()}, so this is the last known state "
            "and a sync waits until it is back."
        )
    status = sync_status(application)
    if status is SyncStatus.UNKNOWN and application.sync_state.reason:
        return f"What runs cannot be compared with Git. {sentence(application.sync_state.reason)}"
    return f"{_STORIES[status]} {_reason(application)}".strip()


def _reason(application: Application) -> str:
    state = application.sync_state
    match sync_status(application):
        case SyncStatus.OUT_OF_SYNC:
            return sentence(state.short_reason)
        case SyncStatus.INVALID_CONFIG:
            return sentence(state.reason or state.short_reason)
        case SyncStatus.UNKNOWN if not application.most_recently_triggered_deployment.deployment_id:
            return "The first deployment starts with the next commit or with Sync."
        case _:
            return ""


def drift_lines(application: Application) -> tuple[DriftLine, ...]:
    """The differences with Git, line by line."""
    if sync_status(application) is not SyncStatus.OUT_OF_SYNC:
        return ()
    kinds = {"+": "add", "-": "remove", "~": "change"}
    text = application.sync_state.reason.strip("\n")
    return tuple(
        DriftLine(kinds.get(line.lstrip()[:1], "same"), line) for line in text.splitlines()
    )


def status_counts(applications: Sequence[Application]) -> tuple[StatusCount, ...]:
    """How many there are of each status, worst first, none left out that exists."""
    order = (
        SyncStatus.INVALID_CONFIG,
        SyncStatus.OUT_OF_SYNC,
        SyncStatus.DEPLOYING,
        SyncStatus.UNKNOWN,
        SyncStatus.SYNCED,
    )
    found = Counter(map(sync_status, applications))
    return tuple(
        StatusCount(int(status), sync_mark(status), found[status])
        for status in order
        if found[status]
    )


def list_story(counts: Sequence[StatusCount]) -> str:
    """How many there are, and their status when it is the same for all."""
    total = sum(count.number for count in counts)
    if not total:
        return ""
    if len(counts) > 1:
        return f"{plural(total, 'application')}:"
    word = counts[0].mark.word.lower()
    return f"{plural(total, 'application')}, {'all ' if total > 1 else ''}{word}."


def _who(trigger: DeploymentTrigger) -> str:
    """A person; chains and API keys have no name here, so it is who wrote the commit then."""
    is_person = trigger.commander and not is_uuid(trigger.commander)
    return trigger.commander if is_person else trigger.commit.author


def _last(reference: ApplicationDeploymentReference, now: datetime) -> LastDeployment | None:
    if not reference.deployment_id:
        return None
    trigger = reference.trigger
    return LastDeployment(
        id=reference.deployment_id,
        commit=commit_view(trigger.commit, now),
        by=_who(trigger),
        started=moment(reference.started_at, now),
        completed=moment(reference.completed_at, now),
        summary=reference.summary,
        versions=versions(reference.versions),
    )
