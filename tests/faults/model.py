# SPDX-License-Identifier: Apache-2.0
"""What an installation promises in spite of all faults, as pure functions over what was seen of it.

Each rule returns its violations. `docs/reliability.md` lists the rules.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from faults.applications import FaultyApplication, Platform
from faults.history import Evidence, Requested, TruthLine
from pipecd.model.application import SyncStatus
from pipecd.model.command import REASON_KEY, TRIGGERED_KEY, CommandStatus
from pipecd.model.deployment import APPROVED_USERS_KEY, DeploymentStatus, StageStatus
from pipecd.proto.model import event_pb2
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

# What a program may use more after healing than when it had settled first; caches fill.
MORE_FILES, MORE_THREADS, MORE_MEMORY = 40, 24, 200 << 20
# How long a piped that is paused at the end of a stage may take to record that end, in seconds.
RECORDED_WITHIN = 10.0
_APPROVALS = 2
_ONCE = "a command is carried out once"
_LINE = re.compile(r"^L (\d+) (\d+) (\d+)$")
_NOTIFIED = (
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED", "DEPLOYMENT_ROLLING_BACK",
)  # fmt: skip
_NOTIFIED_ENDS = {
    DeploymentStatus.SUCCESS: "DEPLOYMENT_SUCCEEDED",
    DeploymentStatus.FAILURE: "DEPLOYMENT_FAILED",
    DeploymentStatus.CANCELLED: "DEPLOYMENT_CANCELLED",
}


@dataclass(frozen=True)
class Violation:
    """A rule that did not hold, and where."""

    rule: str
    text: str
    lane: str = ""
    """The application, piped or program."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass
class StatusObserver:
    """Checks every answer of a control plane against the ones before it."""

    deployments: dict[str, DeploymentStatus] = field(default_factory=dict[str, DeploymentStatus])
    stages: dict[tuple[str, str], StageStatus] = field(
        default_factory=dict[tuple[str, str], StageStatus]
    )
    completed_at: dict[str, float] = field(default_factory=dict[str, float])
    completed_stages: dict[tuple[str, str], float] = field(
        default_factory=dict[tuple[str, str], float]
    )

    def observe(self, listed: Sequence[Deployment], *, at: float) -> list[Violation]:
        """Takes one answer, which came at a time."""
        running = Counter(
            deployment.application_name
            for deployment in listed
            if DeploymentStatus(deployment.status)
            in (DeploymentStatus.RUNNING, DeploymentStatus.ROLLING_BACK)
        )
        wrong = [
            Violation("one running deployment", f"{name} has {count} running deployments", name)
            for name, count in running.items()
            if count > 1
        ]
        for deployment in listed:
            wrong += self._observe(deployment, at)
        return wrong

    def _observe(self, deployment: Deployment, at: float) -> Iterable[Violation]:
        id_, name, status = deployment.id, deployment.application_name, DeploymentStatus(deployment.status)  # fmt: skip
        before = self.deployments.get(id_, DeploymentStatus.PENDING)
        if status < before or (before.is_completed and status is not before):
            text = f"deployment {id_} went from {before.name} to {status.name}"
            yield Violation("no status goes back", text, name)
        self.deployments[id_] = status
        if status.is_completed:
            self.completed_at.setdefault(id_, at)
        for stage in deployment.stages:
            key, now = (id_, stage.id), StageStatus(stage.status)
            was = self.stages.get(key, StageStatus.NOT_STARTED_YET)
            if now < was or (was.is_completed and now is not was):
                text = f"stage {stage.name} of {id_} went from {was.name} to {now.name}"
                yield Violation("no status goes back", text, name)
            self.stages[key] = now
            if now.is_completed:
                self.completed_stages.setdefault(key, at)
            if status.is_completed and now is StageStatus.RUNNING:
                text = f"{id_} is {status.name} although its stage {stage.name} is RUNNING"
                yield Violation("no open stage in the end", text, name)
        if deployment.stages:
            planned = {(id_, stage.id) for stage in deployment.stages}
            for key in [k for k in self.stages if k[0] == id_ and k not in planned]:
                yield Violation("no status goes back", f"a stage of {id_} is gone", name)
                del self.stages[key]


def overlapping_scripts(evidence: Evidence) -> Iterable[Violation]:
    """Scripts that began while another one of their application was not over."""
    for line in evidence.truth:
        if line.what == "overlap":
            text = (
                f"a script of {line.deployment} began while another one of {line.application} ran"
            )
            yield Violation("one running deployment", text, line.application)


def repeated_stages(evidence: Evidence) -> Iterable[Violation]:
    """Stages that ran after they were finished, or more often than they were interrupted."""
    deployments = {deployment.id: deployment for deployment in evidence.deployments}
    begins: defaultdict[tuple[str, str], list[TruthLine]] = defaultdict(list)
    for line in evidence.truth:
        if line.what == "begin":
            begins[line.deployment, line.label].append(line)
    ends = {(t.deployment, t.label, t.pid): t.at for t in evidence.truth if t.what == "end"}
    for (id_, label), runs in begins.items():
        deployment, first = deployments.get(id_), runs[0]
        if deployment is None:
            text = f"{id_}, which ran for {first.application}, is unknown to the control plane"
            yield Violation("nothing acknowledged is lost", text, first.application)
            continue
        stage = stage_of(deployment, label)
        finished = evidence.completed_stages.get((id_, stage.id)) if stage else None
        for run in runs:
            if finished is not None and run.at > finished:
                text = f"script {label} of {id_} ran again {run.at - finished:.1f} s after it was finished"
                yield Violation("a finished stage never runs again", text, run.application)
        interrupted = evidence.interruptions.get(deployment.piped_id, ())
        if deployment.piped_id not in evidence.lost_workspaces:
            yield from _runs_after_their_end(runs, ends, interrupted)
        allowed = 1 + sum(first.at - 1 <= at <= runs[-1].at + 1 for at in interrupted)
        if len(runs) > allowed:
            text = f"script {label} of {id_} ran {len(runs)} times with {allowed - 1} interruptions"
            yield Violation("an interrupted stage runs once per restart", text, first.application)


def _runs_after_their_end(
    runs: Sequence[TruthLine],
    ends: Mapping[tuple[str, str, str], float],
    interrupted: Sequence[float],
) -> Iterable[Violation]:
    """Runs after one that had ended long before the next interruption, so that its end was recorded."""
    for run, following in pairwise(runs):
        ended = ends.get((run.deployment, run.label, run.pid))
        if ended is None or any(ended - 1 <= at <= ended + RECORDED_WITHIN for at in interrupted):
            continue
        text = f"script {run.label} of {run.deployment} ran again {following.at - ended:.1f} s after its end"
        yield Violation("a finished stage never runs again", text, run.application)


def scripts_after_the_end(evidence: Evidence) -> Iterable[Violation]:
    """Scripts, also those of a rollback, that run although their deployment is completed."""
    for line in evidence.truth:
        completed = evidence.completed_at.get(line.deployment)
        if completed is not None and line.at > completed:
            text = f"{line.what} of script {line.label} of {line.deployment} {line.at - completed:.1f} s after it was completed"
            yield Violation("nothing runs after the end", text, line.application)


def stage_of(deployment: Deployment, label: str) -> PipelineStage | None:
    """The stage of a script: `label` is its index, with `undo-` for that of the rollback."""
    is_rollback, index = label.startswith("undo-"), label.removeprefix("undo-")
    matching = (s for s in deployment.stages if s.rollback == is_rollback and str(s.index) == index)
    return next(matching, None)


def commands(evidence: Evidence) -> Iterable[Violation]:
    """Acknowledged commands are carried out once, or refused with a reason."""
    deployments = {deployment.id: deployment for deployment in evidence.deployments}
    triggered: Counter[str] = Counter()
    for request in evidence.requests:
        if command := evidence.commands.get(request.id):
            if problem := _command_problem(request, command, deployments):
                yield problem
            elif request.kind == "sync" and (id_ := command.metadata.get(TRIGGERED_KEY)):
                triggered[id_] += 1
    for id_, count in triggered.items():
        if count > 1:
            yield Violation(_ONCE, f"{count} syncs share deployment {id_}")
    requested = Counter(r.application for r in evidence.requests if r.kind == "sync")
    by_hand = Counter(
        d.application_name
        for d in evidence.deployments
        if d.trigger.commander and not d.deployment_chain_block_index
    )
    for name, count in by_hand.items():
        if count > requested[name]:
            text = f"{name} has {count} deployments by command after {requested[name]} requests"
            yield Violation(_ONCE, text, name)


def _command_problem(
    request: Requested, command: Command, deployments: Mapping[str, Deployment]
) -> Violation | None:
    text, of_deployment = "", deployments.get(request.deployment)
    match CommandStatus(command.status), request.kind:
        case CommandStatus.NOT_HANDLED_YET, kind:
            text = f"{kind} {command.id} is not handled"
            return Violation("nothing is stuck", text, request.application)
        case CommandStatus.FAILED, "sync" | "cancel":
            if not command.metadata.get(REASON_KEY):
                text = f"{request.kind} {command.id} failed without a reason"
        case CommandStatus.SUCCEEDED, "sync":
            if command.metadata.get(TRIGGERED_KEY, "") not in deployments:
                text = f"sync {command.id} created no deployment"
        case CommandStatus.SUCCEEDED, "cancel" if of_deployment is not None:
            ended = DeploymentStatus(of_deployment.status)
            if ended is not DeploymentStatus.CANCELLED:
                text = f"cancel {command.id} succeeded, but {of_deployment.id} is {ended.name}"
        case _:
            pass
    return Violation(_ONCE, text, request.application) if text else None


def approvals(evidence: Evidence) -> Iterable[Violation]:
    """Approvals are counted once per person, and only those that were given."""
    rule = "an approval counts once per person"
    given: defaultdict[str, set[str]] = defaultdict(set)
    for request in evidence.requests:
        if request.kind == "approve":
            given[request.stage].add(request.person)
    for deployment in evidence.deployments:
        for stage in deployment.stages:
            if stage.name != "WAIT_APPROVAL" or not (
                saved := stage.metadata.get(APPROVED_USERS_KEY)
            ):
                continue
            people, lane = saved.split(", "), deployment.application_name
            if len(people) != len(set(people)):
                yield Violation(rule, f"{deployment.id} counts {saved}", lane)
            elif unasked := set(people) - given[stage.id]:
                text = f"{deployment.id} counts {', '.join(unasked)}, who did not approve"
                yield Violation(rule, text, lane)
            elif StageStatus(stage.status) is StageStatus.SUCCESS and len(people) < _APPROVALS:
                yield Violation(rule, f"{deployment.id} went on after {saved} alone", lane)


def stage_logs(evidence: Evidence) -> Iterable[Violation]:
    """Log lines are neither lost, doubled nor out of order."""
    ended = {(line.deployment, line.pid) for line in evidence.truth if line.what == "end"}
    names = {deployment.id: deployment.application_name for deployment in evidence.deployments}
    for (deployment, stage), lines in evidence.logs.items():
        where, lane = f"the log of stage {stage} of {deployment}", names.get(deployment, "")
        by_run: dict[str, list[tuple[int, int]]] = {}
        for line in lines:
            if matched := _LINE.search(line):
                by_run.setdefault(matched[1], []).append((int(matched[2]), int(matched[3])))
        for run, numbered in by_run.items():
            numbers, expected = [number for number, _ in numbered], numbered[0][1]
            if len(numbers) != len(set(numbers)):
                text = f"{where} has lines of run {run} twice"
                yield Violation("no log line is doubled", text, lane)
            elif numbers != sorted(numbers):
                text = f"{where} has lines of run {run} in another order"
                yield Violation("log lines keep their order", text, lane)
            elif numbers != list(range(1, len(numbers) + 1)) or (
                (deployment, run) in ended and len(numbers) != expected
            ):
                text = f"{where} has {len(numbers)} of {expected} lines of run {run}"
                yield Violation("no log line is lost", text, lane)
        seen = [
            line for line in evidence.seen_logs.get((deployment, stage), ()) if _LINE.search(line)
        ]
        if missing := Counter(seen) - Counter(lines):
            text = f"{where} lost {missing.total()} lines that a client had seen"
            yield Violation("no log line is lost", text, lane)


def events(evidence: Evidence) -> Iterable[Violation]:
    """Acknowledged events are handled once, or refused with a reason."""
    rule = "an event is handled once"
    for request in evidence.requests:
        event = evidence.events.get(request.id) if request.kind == "event" else None
        if event is None:
            continue
        lane, commits = request.application, evidence.event_commits.get(request.value, 0)
        if commits > 1:
            yield Violation(rule, f"{commits} commits wrote {request.value}", lane)
        match event.status:
            case event_pb2.EVENT_NOT_HANDLED:
                yield Violation("nothing is stuck", f"event {event.id} is not handled", lane)
            case event_pb2.EVENT_SUCCESS if not commits and not evidence.is_history_rewritten:
                yield Violation(rule, f"no commit wrote {request.value}", lane)
            case event_pb2.EVENT_FAILURE if not event.status_description:
                yield Violation(rule, f"event {event.id} failed without a reason", lane)
            case _:
                pass


def notifications(evidence: Evidence) -> Iterable[Violation]:
    """Notifications of a deployment come at least once and in order.

    A piped that lost its workspace lost what it had not sent; its notifications still keep their order.
    """
    received: defaultdict[str, list[str]] = defaultdict(list)
    for notification in sorted(evidence.notifications, key=lambda each: each.at):
        received[notification.deployment].append(notification.type)
    for deployment in evidence.deployments:
        status = DeploymentStatus(deployment.status)
        if not status.is_completed:
            continue
        order = (*_NOTIFIED, _NOTIFIED_ENDS[status])
        types = list(dict.fromkeys(t for t in received[deployment.id] if t in order))
        lane = deployment.application_name
        if types != sorted(types, key=order.index):
            text = f"{deployment.id} was notified as {', '.join(types)}"
            yield Violation("notifications keep their order", text, lane)
        required = {_NOTIFIED[0], _NOTIFIED_ENDS[status]}
        missing = required - set(types)
        if missing and deployment.piped_id not in evidence.lost_workspaces:
            text = f"{deployment.id} was not notified of {', '.join(sorted(missing))}"
            yield Violation("notifications come at least once", text, lane)


def tracebacks(evidence: Evidence) -> Iterable[Violation]:
    for text in evidence.tracebacks:
        yield Violation("no traceback", text)


def resources(evidence: Evidence) -> Iterable[Violation]:
    """Memory, threads and file descriptors come back."""
    rule = "memory, threads and files come back"
    for name, first, now in evidence.resources:
        if now.files > first.files + MORE_FILES:
            yield Violation(rule, f"{name} has {now.files} files, {first.files} at first", name)
        if now.threads > first.threads + MORE_THREADS:
            yield Violation(
                rule, f"{name} has {now.threads} threads, {first.threads} at first", name
            )
        if now.memory > first.memory + MORE_MEMORY:
            mb = 1 << 20
            text = f"{name} has {now.memory // mb} MB, {first.memory // mb} MB at first"
            yield Violation(rule, text, name)


RULES: Sequence[Callable[[Evidence], Iterable[Violation]]] = (
    overlapping_scripts,
    repeated_stages,
    scripts_after_the_end,
    commands,
    approvals,
    stage_logs,
    events,
    notifications,
    tracebacks,
    resources,
)


def check(evidence: Evidence) -> list[Violation]:
    """All violations of the rules that are checked when everything has settled."""
    return [violation for rule in RULES for violation in rule(evidence)]


@dataclass(frozen=True)
class Head:
    """The head of the branch and what is deployed of an application."""

    content: str
    """What identifies the files of the application."""
    is_broken: bool = False
    """Whether the configuration at the head does not parse."""
    running: str | None = None
    """The content that runs according to the target itself; None if it is not known."""
    is_running_ended: bool = True


@dataclass(frozen=True)
class SyncState:
    """The sync state of an application as the control plane has it."""

    status: SyncStatus
    reason: str = ""
    is_deploying: bool = False


def unsettled(
    application: FaultyApplication,
    head: Head,
    deployments: Sequence[Deployment],
    content_of: Mapping[str, str],
    *,
    sync: SyncState,
) -> list[Violation]:
    """What is not yet as it has to be of an application after healing.

    `content_of` has the contents of commits.
    """
    name = application.name
    own = [each for each in deployments if each.application_name == name]
    left = [
        Violation(
            "nothing is stuck", f"{each.id} of {name} is {DeploymentStatus(each.status).name}", name
        )
        for each in own
        if not DeploymentStatus(each.status).is_completed
    ]
    if left:
        return left
    of_head = [each for each in own if content_of.get(each.trigger.commit.hash) == head.content]
    succeeded = [d for d in of_head if DeploymentStatus(d.status) is DeploymentStatus.SUCCESS]
    refused = [d for d in of_head if d not in succeeded and d.status_reason]
    problem = rule = ""
    is_invalid = sync.status is SyncStatus.INVALID_CONFIG
    if head.is_broken and not (is_invalid and sync.reason):
        rule, problem = "no push is lost", "is not reported as invalid although its file is broken"
    elif not head.is_broken and not succeeded and not refused:
        rule, problem = "no push is lost", "was never deployed at the head"
    elif not head.is_broken and not refused and head.running is not None:
        rule = "the head runs in the end"
        if head.running != head.content:
            problem = "does not run the head although its deployment succeeded"
        elif not head.is_running_ended:
            problem = "has a last script that has not ended"
        elif application.platform is not Platform.SCRIPT and sync.status is not SyncStatus.SYNCED:
            rule = "the sync state is right"
            problem = f"runs the head and is {sync.status.name}: {sync.reason}"
    if not problem and (sync.status is SyncStatus.DEPLOYING or sync.is_deploying):
        rule, problem = "the sync state is right", "is still deploying"
    elif not problem and is_invalid and not head.is_broken:
        rule, problem = "the sync state is right", f"is reported as invalid: {sync.reason}"
    return [Violation(rule, f"{name} {problem}", name)] if problem else []
