# SPDX-License-Identifier: Apache-2.0
"""What runs: the instances of an application as the supervisor observes and reports them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pipecd.plugins.process.desired import DesiredApplication, HealthProbe, Listener, ProgramLimits


class Phase(Enum):
    """The phases of an instance, in the order of its life."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    STOPPING = "stopping"
    EXITED = "exited"


LEAVING = frozenset({Phase.DRAINING, Phase.STOPPING})


@dataclass(frozen=True)
class Usage:
    """What an instance uses with its child processes; `cpu` is a share of one core."""

    memory: int = 0
    processes: int = 0
    cpu: float = 0.0


NOT_HEALTHY = "was not healthy for"
"""How the cause begins if the supervisor ended an instance because of its health."""


@dataclass(frozen=True)
class Instance:
    """One instance of a program; it keeps its place in the log and its count when it restarts.

    Times are seconds since the epoch; `start_time` is the one of the kernel, which tells a process
    from a later one with the same id.
    """

    variant: str
    identity: str
    index: int
    phase: Phase
    since: float
    commit: str = ""
    release: str = ""
    pid: int = 0
    start_time: str = ""
    port: int = 0
    started_at: float = 0.0
    restarts: int = 0
    """How often it was started again."""
    crashes: int = 0
    """How often it exited in a row, since the desired state was applied."""
    exit: str = ""
    """How it ended the last time, in words."""
    health: str = ""
    """Why the last probe failed."""
    cause: str = ""
    """Why the supervisor ended it, in words."""
    probe: HealthProbe = field(default_factory=HealthProbe)
    limits: ProgramLimits = field(default_factory=ProgramLimits)
    grace_period: float = 10.0
    log: str = ""
    log_offset: int = 0
    usage: Usage = Usage()

    @property
    def id(self) -> str:
        """The name of the instance within its application."""
        return f"{self.variant}-{self.identity}-{self.index}"

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.phase is not Phase.EXITED

    @property
    def is_leaving(self) -> bool:
        """Whether it gets no more requests and ends."""
        return self.phase in LEAVING


@dataclass(frozen=True)
class VariantTraffic:
    """What the router counted of a variant: of its current version, and of all."""

    requests: int = 0
    errors: int = 0
    all_requests: int = 0
    all_errors: int = 0

    @property
    def error_rate(self) -> float:
        """The share of the requests to the current version that failed."""
        return self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class StatusPage:
    """The port of the supervisor's status page, and why it cannot be served there."""

    port: int = 0
    error: str = ""


@dataclass(frozen=True)
class ApplicationStatus:
    """What runs of an application."""

    desired: DesiredApplication
    instances: tuple[Instance, ...] = ()
    listener: Listener | None = None
    """Where the router listens now."""
    routed: Mapping[str, int] = field(default_factory=dict[str, int])
    """The shares that the router gives to the variants now."""
    serving: Mapping[str, str] = field(default_factory=dict[str, str])
    """The identity that each routed variant serves."""
    traffic: Mapping[str, VariantTraffic] = field(default_factory=dict[str, VariantTraffic])
    listen_error: str = ""
    status_page: StatusPage | None = None
    changed_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The files that somebody changed in a release, by the release."""

    def of(self, variant: str) -> list[Instance]:
        """Returns the instances of the desired version of a variant, by their index."""
        wanted = self.desired.variants.get(variant)
        if wanted is None:
            return []
        identity = wanted.program.identity
        found = (i for i in self.instances if (i.variant, i.identity) == (variant, identity))
        return sorted(found, key=lambda instance: instance.index)
