# SPDX-License-Identifier: Apache-2.0
"""Pipeds as their pages show them."""
# Pipeds of the first generation carry their facts in fields that the wire calls deprecated.
# pyright: reportDeprecated=false

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from pipecd.controlplane.console.command_notice import Notice, notice
from pipecd.controlplane.console.formatting import Moment, joined, moment, plural
from pipecd.controlplane.console.piped_status import agent
from pipecd.controlplane.console.status_badge import Mark, Tone
from pipecd.controlplane.usecases.pipeds import MOST_KEYS, Sight
from pipecd.model.command import CommandStatus
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped

_RESTARTING = Mark(Tone.RUN, "run", "Restarting")


@dataclass(frozen=True)
class PipedRow:
    """A piped in a line; `wanted` is the version that it does not run yet."""

    id: str
    name: str
    description: str
    mark: Mark
    is_disabled: bool
    is_online: bool
    version: str
    wanted: str
    generation: str
    places: tuple[str, ...]
    repositories: tuple[str, ...]
    seen: Moment | None
    started: Moment | None
    restart: str


@dataclass(frozen=True)
class Place:
    """What a piped deploys with: a plugin and its targets, or a provider and its platform."""

    name: str
    details: str


@dataclass(frozen=True)
class Repository:
    id: str
    remote: str
    branch: str


@dataclass(frozen=True)
class Key:
    """A key by who made it and when; the key itself is known to the piped alone."""

    creator: str
    created: Moment | None
    is_newest: bool


@dataclass(frozen=True)
class PipedPage:
    """Everything about one piped."""

    row: PipedRow
    story: str
    desired: str
    places: tuple[Place, ...]
    repositories: tuple[Repository, ...]
    keys: tuple[Key, ...]
    config: str
    created: Moment | None
    why_not_restart: str

    @property
    def takes_key(self) -> bool:
        return len(self.keys) < MOST_KEYS


def piped_row(piped: Piped, sight: Sight, now: datetime) -> PipedRow:
    """A piped in the list."""
    online = piped.status == Piped.ONLINE and not piped.disabled
    known = agent(piped.id, (piped,)).mark
    return PipedRow(
        id=piped.id,
        name=piped.name,
        description=piped.desc,
        mark=_RESTARTING if online and sight.restart else known,
        is_disabled=piped.disabled,
        is_online=online,
        version=piped.version,
        wanted=piped.desired_version if piped.desired_version != piped.version else "",
        generation=_generation(piped),
        places=tuple(place.name for place in _places(piped)),
        repositories=tuple(repository.id for repository in piped.repositories),
        seen=moment(sight.seen, now),
        started=moment(piped.started_at, now),
        restart=sight.restart,
    )


def piped_rows(
    pipeds: Iterable[Piped], sights: Mapping[str, Sight], now: datetime
) -> tuple[PipedRow, ...]:
    """The pipeds that are in use first, each part by name."""
    rows = [piped_row(piped, sights[piped.id], now) for piped in pipeds]
    return tuple(sorted(rows, key=lambda row: (row.is_disabled, row.name.lower(), row.id)))


def summary(rows: Iterable[PipedRow]) -> str:
    """How the pipeds are, in a sentence; nothing when there is none."""
    rows = tuple(rows)
    if not rows:
        return ""
    online = sum(row.is_online for row in rows)
    disabled = sum(row.is_disabled for row in rows)
    away = len(rows) - online - disabled
    counts = ((online, "online"), (away, "offline"), (disabled, "disabled"))
    parts = [f"{number} {word}" for number, word in counts if number]
    return f"{plural(len(rows), 'piped')}: {joined(parts)}."


def piped_page(piped: Piped, sight: Sight, now: datetime) -> PipedPage:
    """The page of a piped."""
    row = piped_row(piped, sight, now)
    numbers = range(len(piped.keys))
    newest = max(numbers, key=lambda number: piped.keys[number].created_at, default=-1)
    return PipedPage(
        row=row,
        story=_story(row),
        desired=piped.desired_version,
        places=_places(piped),
        repositories=tuple(Repository(r.id, r.remote, r.branch) for r in piped.repositories),
        keys=tuple(
            Key(key.creator, moment(key.created_at, now), number == newest)
            for number, key in enumerate(piped.keys)
        ),
        config=piped.config,
        created=moment(piped.created_at, now),
        why_not_restart=_why_not_restart(row),
    )


def restart_notice(command: Command, piped: Piped) -> Notice:
    """What became of a restart: it has succeeded once the piped is there again."""
    told = notice(command, agent(piped.id, (piped,)))
    if command.status != CommandStatus.SUCCEEDED:
        return told
    # Both times are those of the control plane.
    if piped.started_at >= command.updated_at:
        return replace(told, text=f"Piped {piped.name} has restarted and runs {piped.version}.")
    if piped.status == Piped.ONLINE:
        text = f"Piped {piped.name} has ended as you asked and is starting anew."
        return replace(told, mark=_RESTARTING, text=text)
    text = (
        f"Piped {piped.name} has ended as you asked and has not come back. Whatever runs it, such "
        "as the launcher, systemd or Kubernetes, has to start it again."
    )
    return replace(told, mark=Mark(Tone.BAD, "warn", "away"), text=text)


def _story(row: PipedRow) -> str:
    if row.is_disabled:
        return "It is locked out: it gets no work and cannot report until it is enabled."
    if not row.started:
        return "It has never been started. Give its id and key to a piped and run it."
    if not row.is_online:
        return "Nothing of what it looks after is deployed until it is back."
    if row.restart:
        return "It was asked to start anew."
    if row.wanted:
        return f"It is to run {row.wanted}, and its launcher sees to that."
    return "It is at work."


def _why_not_restart(row: PipedRow) -> str:
    if row.is_disabled:
        return "A disabled piped hears of nothing."
    if not row.is_online:
        return "It is offline, so it would not hear of it."
    return "It was asked to start anew already." if row.restart else ""


def _generation(piped: Piped) -> str:
    """A piped of the first generation has providers; ours names the plugins behind them, too."""
    if piped.platform_providers or piped.cloud_providers:
        return "v0"
    return "v1" if piped.plugins else ""


def _places(piped: Piped) -> tuple[Place, ...]:
    if _generation(piped) == "v0":
        providers = (*piped.platform_providers, *piped.cloud_providers)
        return tuple(Place(provider.name, provider.type) for provider in providers)
    return tuple(Place(plugin.name, ", ".join(plugin.deploy_targets)) for plugin in piped.plugins)
