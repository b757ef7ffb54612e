# SPDX-License-Identifier: Apache-2.0
"""What the model is checked on: what targets, receivers, clients and the control plane say in the end."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from faults.applications import FaultyApplication, Platform
from faults.truth import ClusterWrite, TruthLine
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult

FOREVER = float("inf")
# How long a piped may take to write again after its disk was full, in seconds.
_WRITTEN_WITHIN = 10.0
# How far the answer that grants a lease may be from what it ends, in seconds.
_ANSWERED_WITHIN = 1.0


@dataclass(frozen=True)
class Requested:
    """A request of a user, and whether it was acknowledged; if not, it may have had an effect."""

    kind: str
    application: str
    id: str = ""
    """The id of the command, event or deployment, if it was acknowledged."""
    person: str = ""
    deployment: str = ""
    stage: str = ""
    value: str = ""
    at: float = 0.0
    """When it was sent."""
    answered_at: float = FOREVER

    @property
    def is_acknowledged(self) -> bool:
        return bool(self.id)

    @property
    def is_command(self) -> bool:
        """Whether its id is that of a command."""
        return self.is_acknowledged and self.kind not in ("event", "edit")


def saved_setting(provider: str, config: str) -> str:
    """What an edit saves: the platform provider, if it has one, and the configuration file."""
    return f"{provider} {config}".lstrip()


@dataclass
class InjectedFault:
    """A fault that really happened, and from when to when."""

    name: str
    begin: float
    end: float = FOREVER
    piped: str = ""
    """The id of the piped that it happened to; empty if to none or to all of them."""
    file: str = ""
    """The file of the workspace that was damaged; empty if none or all of them were."""

    def may_lose(self, files: Sequence[str]) -> bool:
        """Whether it may have hit files of a workspace whose paths begin like this."""
        return not self.file or self.file.startswith(tuple(files))

    def overlaps(self, begin: float, end: float) -> bool:
        return self.begin <= end and self.end >= begin


@dataclass(frozen=True)
class Notification:
    """A notification as it arrived."""

    at: float
    deployment: str
    type: str
    stage: str = ""
    """The id of the stage that it is about, if it is about one."""


@dataclass(frozen=True)
class Resources:
    """What a process uses."""

    pid: int
    memory: int
    threads: int
    files: int


@dataclass
class Evidence:
    """Everything that the model is checked on."""

    applications: Sequence[FaultyApplication] = ()
    piped_ids: Sequence[str] = ()
    """The ids of the pipeds by their number."""
    deployments: Sequence[Deployment] = ()
    chains: Sequence[DeploymentChain] = ()
    truth: Sequence[TruthLine] = ()
    cluster_writes: Sequence[ClusterWrite] = ()
    failing: Collection[tuple[str, str]] = ()
    """Applications with the commits and nonces of their revisions that are meant to fail."""
    broken: Collection[str] = ()
    """Applications whose file does not parse in the end, so that nobody watches their events."""
    broken_commits: Collection[tuple[str, str]] = ()
    """Applications with the commits at which their file does not parse."""
    running_programs: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """The programs of process applications that run in the end, as `variant of commit`."""
    requests: Sequence[Requested] = ()
    commands: Mapping[str, Command] = field(default_factory=dict[str, Command])
    previews: Mapping[str, PlanPreviewCommandResult] = field(
        default_factory=dict[str, PlanPreviewCommandResult]
    )
    """The results of plan previews, by their command."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """What applications are registered with in the end, by name, as `saved_setting` writes it."""
    revisions: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """The nonces of revisions, by application and commit."""
    cluster_settings: Mapping[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]]
    )
    """The revision and the setting that the cluster has in the end, by application."""
    events: Mapping[str, Event] = field(default_factory=dict[str, Event])
    event_commits: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many commits of one history wrote the value of an event."""
    notifications: Sequence[Notification] = ()
    faults: Sequence[InjectedFault] = ()
    interruptions: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    """When a process that runs stages of a piped was started or killed, by the id of the piped."""
    lease_grants: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    """When a process got the lease of a piped, by the id of the piped."""
    first_seen: Mapping[str, float] = field(default_factory=dict[str, float])
    """When a client first saw a deployment."""
    completed_at: Mapping[str, float] = field(default_factory=dict[str, float])
    """When a client first saw a deployment as completed."""
    completed_stages: Mapping[tuple[str, str], float] = field(
        default_factory=dict[tuple[str, str], float]
    )
    """When a client first saw a stage as completed, by the ids of deployment and stage."""
    reported_created: Mapping[str, float] = field(default_factory=dict[str, float])
    reported_completed: Mapping[str, float] = field(default_factory=dict[str, float])
    reported_stages: Mapping[tuple[str, str], float] = field(
        default_factory=dict[tuple[str, str], float]
    )
    """When the control plane acknowledged that to a piped, which is before a client sees it."""
    read_logs: Collection[str] = ()
    """The deployments whose stage logs were read."""
    unread_logs: Collection[str] = ()
    """The deployments whose stage logs could not be read although everything is healed."""
    logs: Mapping[tuple[str, str], Sequence[str]] = field(
        default_factory=dict[tuple[str, str], Sequence[str]]
    )
    """The lines of stage logs in the end, by the ids of deployment and stage."""
    seen_logs: Mapping[tuple[str, str], Sequence[str]] = field(
        default_factory=dict[tuple[str, str], Sequence[str]]
    )
    """The lines that a client saw while the stage ran."""
    acknowledged_logs: Mapping[tuple[str, str], Collection[str]] = field(
        default_factory=dict[tuple[str, str], Collection[str]]
    )
    """The lines that a piped sent and the control plane acknowledged."""
    tracebacks: Sequence[str] = ()
    resources: Sequence[tuple[str, Resources, Resources]] = ()
    """Programs with what they used when everything had settled first, and what they use now."""

    def piped_of(self, application: str) -> str:
        """The id of the piped of an application; empty if it is not known."""
        numbers = (each.piped for each in self.applications if each.name == application)
        return next((self.piped_ids[number] for number in numbers), "")

    def platform_of(self, application: str) -> Platform | None:
        of_name = (each.platform for each in self.applications if each.name == application)
        return next(of_name, None)

    def is_workspace_lost(
        self, piped: str, begin: float, end: float, *, files: Sequence[str]
    ) -> bool:
        """Whether the workspace of a piped was lost or replaced in that time, or one of `files` damaged.

        `files` are the beginnings of paths.

        A full one loses nothing that the piped still knows; what it could not write is lost with it. Two
        pipeds with one id have a workspace each: when the work goes over from one to the other, what the
        first one has not sent by then stays behind.
        """
        if any(
            begin - _ANSWERED_WITHIN <= at <= end + _ANSWERED_WITHIN
            for at in handovers(self.faults, piped, self.lease_grants.get(piped, ()))
        ):
            return True
        return any(
            fault.piped == piped
            and fault.overlaps(begin, end)
            and (
                (fault.name in WORKSPACE_FAULTS and fault.may_lose(files))
                or (fault.name == "fill_workspace" and self._is_interrupted(fault))
            )
            for fault in self.faults
        )

    def _is_interrupted(self, fault: InjectedFault) -> bool:
        times = self.interruptions.get(fault.piped, ())
        return any(fault.begin - 1 <= at <= fault.end + _WRITTEN_WITHIN for at in times)


WORKSPACE_FAULTS = frozenset({
    "lose_workspace", "restore_old_workspace", "damage_workspace",
})  # fmt: skip
"""After these a piped may not know everything that happened before."""


def handovers(
    faults: Sequence[InjectedFault], piped: str, lease_grants: Sequence[float]
) -> list[float]:
    """When the work of a piped went over to its duplicate or back.

    A process works from when it gets the lease. A duplicate that had it takes with it what it has not
    sent when it is killed; one that never got it changes nothing.
    """
    times: set[float] = set()
    for fault in faults:
        if fault.name == "duplicate_piped" and fault.piped == piped:
            granted = [at for at in lease_grants if fault.begin <= at <= fault.end]
            times.update(granted)
            if granted and fault.end < FOREVER:
                times.add(fault.end)
    return sorted(times)


NOTIFICATIONS_FILE, EVENTS_FILE = "notifications.jsonl", "events/pushed.json"
"""What a piped keeps of notifications that it has not sent, and of events that it has not reported."""


def journal_of(deployment: str) -> str:
    """The file of a workspace that says which stages of a deployment ran."""
    return f"deployments/{deployment}/journal.json"


def logs_of(deployment: str) -> str:
    """The directory of a workspace with the lines of a deployment that are not sent."""
    return f"deployments/{deployment}/logs/"
