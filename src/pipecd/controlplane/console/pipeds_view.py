# SPDX-License-Identifier: Apache-2.0
"""View models of pipeds: the list and the page of one."""
# v0 pipeds report fields that the protobuf files call deprecated.
# pyright: reportDeprecated=false

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pipecd.controlplane.console.command_notice import Notice, command_notice
from pipecd.controlplane.console.deploy_targets import KIND_NAMES
from pipecd.controlplane.console.formatting import Timestamp, timestamp
from pipecd.controlplane.console.status_badge import (
    RESTARTING,
    Badge,
    Tone,
    piped_state,
    piped_status,
)
from pipecd.controlplane.datastore.piped_leases import PipedLease
from pipecd.controlplane.usecases.pipeds import MAX_KEYS, PipedActivity
from pipecd.model.clock import to_unix
from pipecd.model.command import CommandStatus
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure

# As v0 configurations name them, for people.
_PLATFORM_NAMES = {kind.name: name for kind, name in KIND_NAMES.items()}

RECENT_TAKEOVER_SECONDS = 3600


@dataclass(frozen=True)
class PipedRow:
    """One row of the list; `desired_version` is set while the piped runs another version."""

    id: str
    name: str
    description: str
    badge: Badge
    # Which of `PIPED_STATUSES`.
    state: str
    version: str
    desired_version: str
    generation: str
    platforms: tuple[str, ...]
    repositories: tuple[str, ...]
    seen: Timestamp | None
    started: Timestamp | None
    restart: str
    failing_plugins: int
    # The newest version that this control plane or a piped of the project has, if it is newer.
    newer_version: str = ""
    # None if the user may not list applications.
    applications: int | None = None

    @property
    def is_disabled(self) -> bool:
        return self.state == "disabled"

    @property
    def is_online(self) -> bool:
        return self.state == "online"

    @property
    def is_new(self) -> bool:
        """Whether it is registered and was never started."""
        return self.state == "not-started"


@dataclass(frozen=True)
class PlatformRow:
    """A v1 plugin and its deploy targets, or a v0 platform provider and its platform."""

    name: str
    details: str


@dataclass(frozen=True)
class FailureRow:
    """A plugin or deploy target that the piped runs without."""

    name: str
    reason: str
    since: Timestamp | None


@dataclass(frozen=True)
class RepositoryRow:
    id: str
    remote: str
    branch: str


@dataclass(frozen=True)
class KeyRow:
    """Who created a key and when; the control plane only stores its hash."""

    creator: str
    created: Timestamp | None
    is_newest: bool


@dataclass(frozen=True)
class PipedView:
    """The page of one piped."""

    row: PipedRow
    status_text: str
    failures: tuple[FailureRow, ...]
    """What it runs without; nobody knows that of a piped that is offline."""
    desired_version: str
    platforms: tuple[PlatformRow, ...]
    repositories: tuple[RepositoryRow, ...]
    keys: tuple[KeyRow, ...]
    config: str
    created: Timestamp | None
    restart_disabled_reason: str
    host: str
    """The machine of the process that holds the lease; empty for a piped of upstream."""
    taken_over: Timestamp | None
    """When this process replaced another one with the same id that was running."""
    taken_over_from: str
    is_takeover_recent: bool
    """Whether that was so recently that the page warns of two pipeds with one id."""

    @property
    def can_add_key(self) -> bool:
        return len(self.keys) < MAX_KEYS


def piped_row(piped: Piped, activity: PipedActivity, now: datetime) -> PipedRow:
    """The row of a piped."""
    state = piped_state(piped)
    online = state == "online"
    badge = piped_status(piped.id, (piped,)).badge
    return PipedRow(
        id=piped.id,
        name=piped.name,
        description=piped.desc,
        badge=RESTARTING if online and activity.restart_command else badge,
        state=state,
        version=piped.version,
        desired_version=piped.desired_version if piped.desired_version != piped.version else "",
        generation=_generation(piped),
        platforms=tuple(platform.name for platform in _platforms(piped)),
        repositories=tuple(repository.id for repository in piped.repositories),
        seen=timestamp(activity.last_seen, now),
        started=timestamp(piped.started_at, now),
        restart=activity.restart_command,
        failing_plugins=activity.failing_plugins if online else 0,
    )


def piped_rows(
    pipeds: Iterable[Piped], activity: Mapping[str, PipedActivity], now: datetime
) -> tuple[PipedRow, ...]:
    """Pipeds that were started first, then new ones, then disabled ones, each sorted by name."""
    rows = [piped_row(piped, activity[piped.id], now) for piped in pipeds]
    order = {"not-started": 1, "disabled": 2}
    return tuple(sorted(rows, key=lambda row: (order.get(row.state, 0), row.name.lower(), row.id)))


def piped_view(
    piped: Piped,
    activity: PipedActivity,
    lease: PipedLease,
    now: datetime,
    failures: Sequence[PluginFailure] = (),
) -> PipedView:
    """The view of a piped."""
    row = piped_row(piped, activity, now)
    failing = _failures(failures, now) if row.is_online else ()
    restart_disabled_reason = ""
    if row.is_disabled:
        restart_disabled_reason = "A disabled piped receives no commands."
    elif row.is_new:
        restart_disabled_reason = "It is not started yet."
    elif not row.is_online:
        restart_disabled_reason = "It is offline and receives no commands."
    elif row.restart:
        restart_disabled_reason = "A restart is requested already."
    numbers = range(len(piped.keys))
    newest = max(numbers, key=lambda number: piped.keys[number].created_at, default=-1)
    return PipedView(
        row=row,
        status_text=_status_text(row, has_failures=bool(failing)),
        failures=failing,
        desired_version=piped.desired_version,
        platforms=_platforms(piped),
        repositories=tuple(RepositoryRow(r.id, r.remote, r.branch) for r in piped.repositories),
        keys=tuple(
            KeyRow(key.creator, timestamp(key.created_at, now), number == newest)
            for number, key in enumerate(piped.keys)
        ),
        config=piped.config,
        created=timestamp(piped.created_at, now),
        restart_disabled_reason=restart_disabled_reason,
        host=lease.host,
        taken_over=timestamp(lease.taken_over_at, now),
        taken_over_from=lease.taken_over_from,
        is_takeover_recent=to_unix(now) - lease.taken_over_at < RECENT_TAKEOVER_SECONDS,
    )


def restart_notice(command: Command, piped: Piped) -> Notice:
    """The state of a restart, which is complete once the piped has reported again."""
    notice = command_notice(command, piped_status(piped.id, (piped,)))
    if command.status != CommandStatus.SUCCEEDED:
        return notice
    # The clock of the control plane sets both times.
    if piped.started_at >= command.updated_at:
        return replace(notice, text=f"Piped {piped.name} has restarted and runs {piped.version}.")
    if piped.status == Piped.ONLINE:
        text = f"Piped {piped.name} has stopped as requested and is starting again."
        return replace(notice, badge=RESTARTING, text=text)
    text = (
        f"Piped {piped.name} has stopped as requested and has not come back. Its supervisor, such "
        "as the launcher, systemd or Kubernetes, has to start it again."
    )
    return replace(notice, badge=Badge(Tone.BAD, "warn", "offline"), text=text)


def _failures(failures: Sequence[PluginFailure], now: datetime) -> tuple[FailureRow, ...]:
    """One row for each failure; a plugin without a usable deploy target has only their rows."""
    reasons: dict[str, list[str]] = {}
    for failure in failures:
        if failure.target:
            reasons.setdefault(failure.plugin, []).append(failure.reason)
    return tuple(
        FailureRow(
            f"{failure.target} ({failure.plugin})" if failure.target else failure.plugin,
            failure.reason,
            timestamp(failure.since, now),
        )
        for failure in failures
        if failure.target or failure.reason != "\n".join(reasons.get(failure.plugin, ()))
    )


def _status_text(row: PipedRow, *, has_failures: bool) -> str:
    if row.is_disabled:
        return "Disabled: it gets no work and its reports are rejected until it is enabled."
    if row.is_new:
        return "Registered, and waiting for its first start. Its applications are deployed then."
    if not row.is_online:
        return "Its applications are not deployed until it is back."
    if row.restart:
        return "A restart is requested."
    if row.desired_version:
        return f"Its launcher is requested to run version {row.desired_version}."
    state = " and ready"
    if not row.repositories:
        state = ", but watches no repository, so that it has nothing to deploy"
    elif has_failures:
        state = ", but part of its configuration cannot be used"
    return f"It is connected{state}."


def _generation(piped: Piped) -> str:
    """v0 if the piped reports providers, next to which ours reports the plugins behind them."""
    if piped.platform_providers or piped.cloud_providers:
        return "v0"
    return "v1" if piped.plugins else ""


def _platforms(piped: Piped) -> tuple[PlatformRow, ...]:
    if _generation(piped) == "v0":
        providers = (*piped.platform_providers, *piped.cloud_providers)
        return tuple(
            PlatformRow(provider.name, _PLATFORM_NAMES.get(provider.type, provider.type))
            for provider in providers
        )
    return tuple(
        PlatformRow(plugin.name, ", ".join(plugin.deploy_targets)) for plugin in piped.plugins
    )
