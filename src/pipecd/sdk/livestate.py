# SPDX-License-Identifier: Apache-2.0
"""Live state, drift and plan preview: the contexts and results of a plugin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum

from pipecd.model.application import SyncStatus
from pipecd.sdk.deployment import DeployTarget, PluginEntry, Source
from pipecd.sdk.host import Host, WithTools


class Health(IntEnum):
    """The health of a resource.

    The wire has no `PROGRESSING`: it is an unhealthy resource whose text says that it progresses.
    """

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2
    PROGRESSING = 3
    """It is on its way to be healthy, without anybody's help."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A live resource of an application; `parents` are the ids of its owners."""

    id: str
    name: str
    kind: str = ""
    target: str = ""
    health: Health = Health.UNKNOWN
    health_text: str = ""
    parents: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    created_at: datetime | None = None
    """None if the platform does not report it."""


@dataclass(frozen=True)
class SyncState:
    """The sync status: `summary` in one line, `details` often a diff."""

    status: SyncStatus
    summary: str = ""
    details: str = ""


@dataclass(frozen=True)
class LiveState:
    """The live resources of an application and its sync status."""

    resources: Sequence[Resource] = ()
    sync: SyncState = SyncState(SyncStatus.UNKNOWN)


@dataclass(frozen=True)
class LiveContext(WithTools):
    """The context of a live state; `source` is the head of the branch."""

    application_id: str
    application_name: str
    piped_id: str
    source: Source
    targets: tuple[DeployTarget, ...]
    plugin: PluginEntry
    host: Host


@dataclass(frozen=True)
class Preview:
    """The plan preview of one deploy target; `language` is the format of the details."""

    target: str
    summary: str
    details: str = ""
    no_change: bool = False
    language: str = "diff"


@dataclass(frozen=True)
class PreviewContext(WithTools):
    """The context of a plan preview; `running` is the deployed commit, or None."""

    application_id: str
    application_name: str
    piped_id: str
    target: Source
    running: Source | None
    targets: tuple[DeployTarget, ...]
    plugin: PluginEntry
    host: Host
