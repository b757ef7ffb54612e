# SPDX-License-Identifier: Apache-2.0
"""What a plugin sees when it looks at its platform: what runs, and what a change would do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum

from pipecd.model.application import SyncStatus
from pipecd.sdk.facts import DeployTarget, PluginEntry, Source
from pipecd.sdk.host import Host, WithTools


class Health(IntEnum):
    """How a resource is."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One thing that runs for an application; `parents` are the ids it is drawn below."""

    id: str
    name: str
    kind: str = ""
    target: str = ""
    health: Health = Health.UNKNOWN
    health_text: str = ""
    parents: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    created_at: datetime | None = None
    """None for one whose age the platform does not tell."""


@dataclass(frozen=True)
class SyncState:
    """Whether what runs is what Git says: `summary` in one line, `details` often a diff."""

    status: SyncStatus
    summary: str = ""
    details: str = ""


@dataclass(frozen=True)
class LiveState:
    """What runs for an application at this moment."""

    resources: Sequence[Resource] = ()
    sync: SyncState = SyncState(SyncStatus.UNKNOWN)


@dataclass(frozen=True)
class LiveContext(WithTools):
    """The application to look at; `source` is the head of its branch."""

    application_id: str
    application_name: str
    piped_id: str
    source: Source
    targets: tuple[DeployTarget, ...]
    plugin: PluginEntry
    host: Host


@dataclass(frozen=True)
class Preview:
    """What would happen at one deploy target; `language` colours the details, such as diff."""

    target: str
    summary: str
    details: str = ""
    no_change: bool = False
    language: str = "diff"


@dataclass(frozen=True)
class PreviewContext(WithTools):
    """A change that is not deployed yet; `running` is what it would replace, or None."""

    application_id: str
    application_name: str
    piped_id: str
    target: Source
    running: Source | None
    targets: tuple[DeployTarget, ...]
    plugin: PluginEntry
    host: Host
