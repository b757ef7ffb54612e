# SPDX-License-Identifier: Apache-2.0
"""View models of the overview: tiles with a number, the first ones of it and a link to all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pipecd.controlplane.console.applications_view import ApplicationRow, application_row
from pipecd.controlplane.console.deployments_view import (
    DeploymentRow,
    deployment_row,
    stuck_deployments,
)
from pipecd.controlplane.console.formatting import (
    Timestamp,
    isolate,
    join_words,
    plural,
    sentence,
    timestamp,
)
from pipecd.controlplane.console.pipeline_view import has_pending_approval, pipeline_view
from pipecd.controlplane.console.status_badge import (
    PipedStatus,
    Tone,
    offline_pipeds,
    sync_status,
    unstarted_pipeds,
)
from pipecd.controlplane.console.status_text import failure_text, running_stage
from pipecd.controlplane.usecases.deployments import approvers_of, is_waiting_for_approval
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped

FAILED_SINCE = "24h"
DIFFERENT = (int(SyncStatus.OUT_OF_SYNC), int(SyncStatus.INVALID_CONFIG))
_IN_PROGRESS = "3,2,1,0"
_MAX_ROWS = 5


@dataclass(frozen=True)
class ProjectState:
    """What the overview is made of, as far as the user may see it."""

    unfinished: Sequence[Deployment]
    failed: Sequence[Deployment]
    different: Sequence[Application]
    pipeds: Sequence[Piped]
    repaired: frozenset[str] = frozenset()
    """The failed deployments whose application has succeeded since."""
    last_reports: Mapping[str, int] = field(default_factory=dict[str, int])
    """When the pipeds reported last, in Unix seconds by id, as far as it is known."""


@dataclass(frozen=True)
class Tile:
    """A number of things and the first ones of them; the list at `href` has as many."""

    key: str
    title: str
    tone: Tone
    href: str
    count: int
    nothing: str
    note: str = ""
    deployments: tuple[DeploymentRow, ...] = ()
    applications: tuple[ApplicationRow, ...] = ()
    pipeds: tuple[PipedStatus, ...] = ()
    repaired: frozenset[str] = frozenset()
    decidable: frozenset[str] = frozenset()
    """The deployments that the user may approve."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a row is in this tile, by id."""
    stages: Mapping[str, str] = field(default_factory=dict[str, str])
    """The stage that a deployment is at, by id."""
    stuck: frozenset[str] = frozenset()
    """The deployments whose piped is offline, so that they do not go on."""
    seen: Mapping[str, Timestamp | None] = field(default_factory=dict[str, "Timestamp | None"])
    """When each of the pipeds reported last."""

    @property
    def is_cut(self) -> bool:
        """Whether the list has more than the tile shows."""
        return self.count > len(self.deployments) + len(self.applications) + len(self.pipeds)


def may_approve(deployment: Deployment, user: str) -> bool:
    """Whether the deployment waits for an approval that this user may give."""
    waiting = filter(is_waiting_for_approval, deployment.stages)
    return any(not approvers_of(stage) or user in approvers_of(stage) for stage in waiting)


def shown_failures(failed: Sequence[Deployment]) -> Sequence[Deployment]:
    """The failed deployments that their tile has room for."""
    return failed[:_MAX_ROWS]


def is_repaired(failed: Deployment, application: Application) -> bool:
    """Whether a deployment of the application has succeeded after this one failed."""
    success = application.most_recently_successful_deployment
    return success.completed_at >= failed.completed_at and success.started_at > failed.created_at


def _is_invalid(application: Application) -> bool:
    return sync_status(application) is SyncStatus.INVALID_CONFIG


def waiting_text(unfinished: Sequence[Deployment], user: str) -> str:
    """What a notification says about deployments that wait for this user; empty without one."""
    waiting = [deployment for deployment in unfinished if may_approve(deployment, user)]
    if not waiting:
        return ""
    names = [deployment.application_name for deployment in waiting[:_MAX_ROWS]]
    others = len(waiting) - len(names)
    listed = join_words([*names, f"{others} more"] if others else names)
    return f"{listed} {'waits' if len(waiting) == 1 else 'wait'} for your approval"


def overview_text(state: ProjectState, user: str) -> str:
    """What somebody has to do first, by name, else what is going on."""
    todo = [waiting_text(state.unfinished, user)]
    broken = dict.fromkeys(
        isolate(each.application_name)
        for each in shown_failures(state.failed)
        if each.id not in state.repaired
    )
    if broken:
        has = "has" if len(broken) == 1 else "have"
        todo.append(f"{join_words([*broken])} {has} failed and not succeeded since")
    offline = [isolate(piped.name) for piped in offline_pipeds(state.pipeds)]
    if len(offline) == 1:
        todo.append(f"Piped {offline[0]} is offline")
    elif offline:
        todo.append(f"{len(offline)} pipeds are offline")
    if text := " ".join(f"{each}." for each in todo if each):
        return text
    different = sum(not each.deploying for each in state.different)
    if different:
        is_or_are = "is" if different == 1 else "are"
        return f"{plural(different, 'application')} {is_or_are} out of sync or invalid."
    others = sum(map(has_pending_approval, state.unfinished))
    if others:
        wait = "waits" if others == 1 else "wait"
        return f"Nothing needs you. {plural(others, 'deployment')} {wait} for somebody else."
    moving = len(state.unfinished)
    if moving:
        return f"Nothing needs you. {plural(moving, 'deployment')} in progress."
    return "Nothing needs you, and no deployment is in progress."


def first_start(pipeds: Sequence[Piped]) -> PipedStatus | None:
    """The piped to start, if there is one and no piped of the project was ever started."""
    new = unstarted_pipeds(pipeds)
    return new[0] if new and not any(piped.started_at for piped in pipeds) else None


def overview_tiles(state: ProjectState, user: str, now: datetime) -> tuple[Tile, ...]:
    """What needs somebody first, then what is going on by itself."""

    def rows(deployments: Sequence[Deployment]) -> tuple[DeploymentRow, ...]:
        return tuple(deployment_row(each, now) for each in deployments[:_MAX_ROWS])

    waiting = _waiting(state.unfinished, user)
    mine = frozenset(each.id for each in waiting if may_approve(each, user))
    moving = [each for each in state.unfinished if not has_pending_approval(each)]
    moving.sort(key=lambda each: -each.created_at)
    different = [each for each in state.different if not each.deploying]
    # What is invalid cannot be deployed at all.
    different.sort(key=lambda each: (not _is_invalid(each), each.name.casefold()))
    offline = offline_pipeds(state.pipeds)
    return (
        Tile(
            "waiting",
            "waiting for approval",
            Tone.WAIT,
            "/deployments?status=waiting",
            len(waiting),
            "Nothing waits for an approval.",
            note=f"{len(mine)} for you" if waiting else "",
            decidable=mine,
            deployments=rows(waiting),
        ),
        Tile(
            "failed",
            "failed in the last 24 hours",
            Tone.BAD,
            f"/deployments?status={int(DeploymentStatus.FAILURE)}&since={FAILED_SINCE}",
            len(state.failed),
            "No deployment has failed.",
            deployments=rows(state.failed),
            repaired=state.repaired,
            notes={
                each.id: failure_text(each, pipeline_view(each, now))
                for each in shown_failures(state.failed)
            },
        ),
        Tile(
            "different",
            "out of sync or invalid",
            Tone.WAIT,
            f"/applications?syncStatus={','.join(map(str, DIFFERENT))}",
            len(different),
            "Every application that is compared matches Git.",
            applications=tuple(application_row(each, now) for each in different[:_MAX_ROWS]),
            notes={
                each.id: sentence(each.sync_state.short_reason or each.sync_state.reason)
                for each in different[:_MAX_ROWS]
            },
        ),
        Tile(
            "offline",
            "piped offline" if len(offline) == 1 else "pipeds offline",
            Tone.BAD,
            "/settings/piped?status=offline",
            len(offline),
            _no_piped_offline(state.pipeds),
            pipeds=offline[:_MAX_ROWS],
            seen={
                piped.id: timestamp(state.last_reports.get(piped.id, 0), now)
                for piped in offline[:_MAX_ROWS]
            },
        ),
        Tile(
            "running",
            "in progress",
            Tone.RUN,
            f"/deployments?status={_IN_PROGRESS}",
            len(moving),
            "No deployment is in progress.",
            deployments=rows(moving),
            stuck=stuck_deployments(moving, offline),
            stages={
                each.id: running_stage(pipeline_view(each, now)) for each in moving[:_MAX_ROWS]
            },
        ),
    )


def _waiting(unfinished: Sequence[Deployment], user: str) -> list[Deployment]:
    """Those that the user can decide first, and of them those that wait longest."""
    waiting = [each for each in unfinished if has_pending_approval(each)]
    return sorted(waiting, key=lambda each: (not may_approve(each, user), each.created_at))


def _no_piped_offline(pipeds: Sequence[Piped]) -> str:
    """What the tile says if no piped is offline."""
    new = len(unstarted_pipeds(pipeds))
    if all(piped.disabled for piped in pipeds):
        return "No piped is enabled." if pipeds else "No piped is registered yet."
    if new == sum(not piped.disabled for piped in pipeds):
        return "No piped is started yet."
    not_started = f" {plural(new, 'piped')} {'is' if new == 1 else 'are'} not started yet."
    return (
        f"No piped that was started is offline.{not_started}" if new else "Every piped is online."
    )
