# SPDX-License-Identifier: Apache-2.0
"""How a status looks: always a tone, an icon and a word, never a colour alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.health import HealthStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.piped_pb2 import Piped


class Tone(StrEnum):
    """What a colour means; the values are CSS classes."""

    OK = "ok"
    RUN = "run"
    WAIT = "wait"
    BAD = "bad"
    OFF = "off"


@dataclass(frozen=True)
class Badge:
    """A status as the pages show it; `icon` is a symbol of `assets/icons.svg`."""

    tone: Tone
    icon: str
    text: str


@dataclass(frozen=True)
class StatusCount:
    """How many objects of the project have a status; `value` filters a list by it in the URL."""

    value: str
    badge: Badge
    count: int


# What the filter of deployments calls this status, for which the API has no number.
WAITING = "waiting"
WAITING_FOR_APPROVAL = Badge(Tone.WAIT, "clock", "Waiting for approval")
DEPLOYED = Badge(Tone.OK, "check", "Deployed")
NOT_DEPLOYED = Badge(Tone.WAIT, "warn", "Not deployed")
NEVER_DEPLOYED = Badge(Tone.OFF, "dots", "Never deployed")
RESTARTING = Badge(Tone.RUN, "run", "Restarting")

_DEPLOYMENT = {
    DeploymentStatus.PENDING: Badge(Tone.OFF, "dots", "Pending"),
    DeploymentStatus.PLANNED: Badge(Tone.OFF, "dots", "Planned"),
    DeploymentStatus.RUNNING: Badge(Tone.RUN, "run", "Running"),
    DeploymentStatus.ROLLING_BACK: Badge(Tone.BAD, "back", "Rolling back"),
    DeploymentStatus.SUCCESS: Badge(Tone.OK, "check", "Succeeded"),
    DeploymentStatus.FAILURE: Badge(Tone.BAD, "cross", "Failed"),
    DeploymentStatus.CANCELLED: Badge(Tone.OFF, "stop", "Cancelled"),
}
_STAGE = {
    StageStatus.NOT_STARTED_YET: Badge(Tone.OFF, "dot", "Not started"),
    StageStatus.RUNNING: Badge(Tone.RUN, "run", "Running"),
    StageStatus.SUCCESS: Badge(Tone.OK, "check", "Succeeded"),
    StageStatus.FAILURE: Badge(Tone.BAD, "cross", "Failed"),
    StageStatus.CANCELLED: Badge(Tone.OFF, "stop", "Cancelled"),
    StageStatus.SKIPPED: Badge(Tone.OFF, "skip", "Skipped"),
    StageStatus.EXITED: Badge(Tone.OK, "check", "Ended early"),
}
_SYNC = {
    SyncStatus.UNKNOWN: Badge(Tone.OFF, "question", "Unknown"),
    SyncStatus.SYNCED: Badge(Tone.OK, "check", "Synced"),
    SyncStatus.DEPLOYING: Badge(Tone.RUN, "run", "Deploying"),
    SyncStatus.OUT_OF_SYNC: Badge(Tone.WAIT, "differ", "Out of sync"),
    SyncStatus.INVALID_CONFIG: Badge(Tone.BAD, "warn", "Invalid configuration"),
}
_HEALTH = {
    HealthStatus.UNHEALTHY: Badge(Tone.BAD, "broken", "Unhealthy"),
    HealthStatus.PROGRESSING: Badge(Tone.RUN, "run", "Progressing"),
    HealthStatus.UNKNOWN: Badge(Tone.OFF, "question", "Unknown"),
    HealthStatus.HEALTHY: Badge(Tone.OK, "heart", "Healthy"),
}


def deployment_badge(status: DeploymentStatus, *, waiting: bool = False) -> Badge:
    """The badge of a deployment; `waiting` means that a stage waits for an approval."""
    is_waiting = waiting and status is DeploymentStatus.RUNNING
    return WAITING_FOR_APPROVAL if is_waiting else _DEPLOYMENT[status]


def stage_badge(status: StageStatus, *, waiting: bool = False) -> Badge:
    """The badge of a stage; `waiting` means that it waits for an approval."""
    return WAITING_FOR_APPROVAL if waiting and status is StageStatus.RUNNING else _STAGE[status]


def sync_badge(status: SyncStatus) -> Badge:
    """The badge of a sync status."""
    return _SYNC[status]


def health_badge(status: HealthStatus) -> Badge:
    """The badge of the health of a resource or an application."""
    return _HEALTH[status]


def sync_status(application: Application) -> SyncStatus:
    """The sync status to show; a running deployment takes precedence over drift detection."""
    if application.deploying:
        return SyncStatus.DEPLOYING
    try:
        return SyncStatus(application.sync_state.status)
    except ValueError:
        return SyncStatus.UNKNOWN


# The statuses of applications that rows, counts and the filter show, worst first. The numbers are
# upstream's sync statuses; the words stand for what an unknown sync status means.
APPLICATION_STATUSES: Mapping[str, Badge] = {
    str(int(SyncStatus.INVALID_CONFIG)): _SYNC[SyncStatus.INVALID_CONFIG],
    str(int(SyncStatus.OUT_OF_SYNC)): _SYNC[SyncStatus.OUT_OF_SYNC],
    WAITING: WAITING_FOR_APPROVAL,
    "not-deployed": NOT_DEPLOYED,
    str(int(SyncStatus.DEPLOYING)): _SYNC[SyncStatus.DEPLOYING],
    "never-deployed": NEVER_DEPLOYED,
    "deployed": DEPLOYED,
    str(int(SyncStatus.SYNCED)): _SYNC[SyncStatus.SYNCED],
}


def application_status(application: Application, *, waiting: bool = False) -> str:
    """The status to show, one of `APPLICATION_STATUSES`.

    It is that of a deployment which waits for an approval, else the sync status; if that is
    unknown, whether the latest deployment has succeeded.
    """
    status = sync_status(application)
    if waiting:
        return WAITING
    if status is not SyncStatus.UNKNOWN:
        return str(int(status))
    latest = application.most_recently_triggered_deployment.deployment_id
    if not latest:
        return "never-deployed"
    succeeded = application.most_recently_successful_deployment.deployment_id == latest
    return "deployed" if succeeded else "not-deployed"


def application_badge(application: Application, *, waiting: bool = False) -> Badge:
    """The badge of an application; `waiting` means that a deployment waits for an approval."""
    return APPLICATION_STATUSES[application_status(application, waiting=waiting)]


# The statuses of pipeds that rows, counts and the filter show, in this order.
PIPED_STATUSES: Mapping[str, Badge] = {
    "online": Badge(Tone.OK, "dot", "Online"),
    "offline": Badge(Tone.BAD, "dot", "Offline"),
    "not-started": Badge(Tone.OFF, "dots", "Not started yet"),
    "disabled": Badge(Tone.OFF, "dot", "Disabled"),
}


def piped_state(piped: Piped) -> str:
    """Which of `PIPED_STATUSES` a piped has; one that has never reported was not started yet."""
    if piped.disabled:
        return "disabled"
    if piped.status == Piped.ONLINE:
        return "online"
    return "offline" if piped.started_at else "not-started"


@dataclass(frozen=True)
class PipedStatus:
    """The piped of an application or deployment, and whether it is working.

    `name` is the start of the id if the piped is removed or hidden from the user.
    """

    id: str
    name: str
    badge: Badge
    is_unavailable: bool
    # Whether the user can open its page.
    has_page: bool = True
    # What makes an unavailable piped work: it is back, started or enabled.
    remedy: str = "is back"


def piped_status(piped_id: str, pipeds: Iterable[Piped] | None) -> PipedStatus:
    """The status of one of the project's pipeds; None if the user may not list them."""
    if pipeds is None:
        hidden = Badge(Tone.OFF, "dot", "Not shown")
        return PipedStatus(piped_id, piped_id[:8], hidden, is_unavailable=False, has_page=False)
    piped = next((piped for piped in pipeds if piped.id == piped_id), None)
    if piped is None:
        removed = Badge(Tone.OFF, "dot", "Not registered")
        return PipedStatus(piped_id, piped_id[:8], removed, is_unavailable=True, has_page=False)
    state = piped_state(piped)
    remedy = {"not-started": "is started", "disabled": "is enabled"}.get(state, "is back")
    badge = PIPED_STATUSES[state]
    return PipedStatus(piped.id, piped.name, badge, state != "online", remedy=remedy)


def offline_pipeds(pipeds: Iterable[Piped]) -> tuple[PipedStatus, ...]:
    """The pipeds that have worked and do not report now, although they are enabled."""
    return _in_state("offline", pipeds)


def unstarted_pipeds(pipeds: Iterable[Piped]) -> tuple[PipedStatus, ...]:
    """The enabled pipeds that are registered and were never started."""
    return _in_state("not-started", pipeds)


def _in_state(state: str, pipeds: Iterable[Piped]) -> tuple[PipedStatus, ...]:
    return tuple(piped_status(each.id, (each,)) for each in pipeds if piped_state(each) == state)
