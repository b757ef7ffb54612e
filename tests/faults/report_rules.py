# SPDX-License-Identifier: Apache-2.0
"""Rules about what users, receivers and operators are told: commands, logs, events, notifications."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from faults.evidence import (
    EVENTS_FILE,
    FOREVER,
    NOTIFICATIONS_FILE,
    Evidence,
    Requested,
    journal_of,
    logs_of,
)
from faults.execution_rules import stage_of
from faults.truth import TruthLine
from faults.violation import Violation
from pipecd.model.command import REASON_KEY, TRIGGERED_KEY, CommandStatus
from pipecd.model.deployment import APPROVED_USERS_KEY, DeploymentStatus, StageStatus
from pipecd.proto.model import event_pb2
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event

# What a program may use more than when everything had settled first; caches fill.
MORE_FILES, MORE_THREADS, MORE_MEMORY = 40, 24, 64 << 20
# How late a client may see a deployment, and how late notifications and logs are sent, in seconds.
_SEEN_LATE, _SENT_WITHIN = 15.0, 15.0
# How long an event may take, with all faults of a round, in seconds.
_HANDLED_WITHIN = 60.0
_APPROVALS = 2
_ONCE = "a command is carried out once"
_LOST = "no log line is lost"
LINE = re.compile(r"^L (\d+) (\d+) (\d+)$")
"""A line of a script: its process, its number, and how many there are."""
_RUN_SUCCEEDED = "The script succeeded"
_NOTIFIED = (
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED", "DEPLOYMENT_ROLLING_BACK",
)  # fmt: skip
_NOTIFIED_ENDS = {
    DeploymentStatus.SUCCESS: "DEPLOYMENT_SUCCEEDED",
    DeploymentStatus.FAILURE: "DEPLOYMENT_FAILED",
    DeploymentStatus.CANCELLED: "DEPLOYMENT_CANCELLED",
}
# What is sent about a stage that ran to its end.
_STAGE_NOTIFIED = {
    StageStatus.SUCCESS: ("STAGE_STARTED", "STAGE_SUCCEEDED"),
    StageStatus.FAILURE: ("STAGE_STARTED", "STAGE_FAILED"),
}


def commands(evidence: Evidence) -> Iterable[Violation]:
    """Acknowledged commands are carried out once, or refused with a reason."""
    deployments = {deployment.id: deployment for deployment in evidence.deployments}
    triggered: Counter[str] = Counter()
    for request in evidence.requests:
        if command := evidence.commands.get(request.id):
            if problem := _command_problem(request, command, deployments, evidence):
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
    request: Requested,
    command: Command,
    deployments: Mapping[str, Deployment],
    evidence: Evidence,
) -> Violation | None:
    name, text = f"{request.kind} {command.id}", ""
    match CommandStatus(command.status):
        case CommandStatus.NOT_HANDLED_YET:
            text = f"{name} is not handled"
            return Violation("nothing is stuck", text, request.application)
        case CommandStatus.TIMEOUT:
            text = f"{name} timed out"
        case CommandStatus.FAILED:
            reason = command.metadata.get(REASON_KEY, "")
            if request.kind == "preview" and (result := evidence.previews.get(command.id)):
                reason = result.error
            if not reason:
                text = f"{name} failed without a reason"
        case CommandStatus.SUCCEEDED:
            if undone := _undone(request, command, deployments):
                text = f"{name} {undone}"
    return Violation(_ONCE, text, request.application) if text else None


def _undone(request: Requested, command: Command, deployments: Mapping[str, Deployment]) -> str:
    """What is not as it has to be after a command that succeeded."""
    deployment = deployments.get(request.deployment)
    if request.kind == "sync" and command.metadata.get(TRIGGERED_KEY, "") not in deployments:
        return "created no deployment"
    if request.kind == "cancel" and deployment is not None:
        ended = DeploymentStatus(deployment.status)
        if ended is not DeploymentStatus.CANCELLED:
            return f"succeeded, but {deployment.id} is {ended.name}"
    if request.kind == "skip" and deployment is not None:
        skipped = next((s for s in deployment.stages if s.id == request.stage), None)
        status = StageStatus(skipped.status) if skipped else StageStatus.NOT_STARTED_YET
        if status is not StageStatus.SKIPPED:
            return f"succeeded, but its stage is {status.name}"
    return ""


def approvals(evidence: Evidence) -> Iterable[Violation]:
    """Approvals are counted once per person, and only those that were given."""
    rule = "an approval counts once per person"
    given: defaultdict[str, set[str]] = defaultdict(set)
    for request in evidence.requests:
        if request.kind == "approve":
            given[request.stage].add(request.person)
    for deployment in evidence.deployments:
        for stage in deployment.stages:
            if stage.name != "WAIT_APPROVAL":
                continue
            saved, lane = stage.metadata.get(APPROVED_USERS_KEY, ""), deployment.application_name
            people = saved.split(", ") if saved else []
            is_approved = StageStatus(stage.status) is StageStatus.SUCCESS
            if len(people) != len(set(people)):
                yield Violation(rule, f"{deployment.id} counts {saved}", lane)
            elif unasked := set(people) - given[stage.id]:
                text = f"{deployment.id} counts {', '.join(unasked)}, who did not approve"
                yield Violation(rule, text, lane)
            elif is_approved and len(people) < _APPROVALS:
                text = f"{deployment.id} went on with the approvals of {saved or 'nobody'}"
                yield Violation(rule, text, lane)


def stage_logs(evidence: Evidence) -> Iterable[Violation]:
    """Log lines are neither lost, doubled nor out of order."""
    deployments = {deployment.id: deployment for deployment in evidence.deployments}
    for id_ in evidence.unread_logs:
        text = f"the logs of {id_} cannot be read"
        yield Violation("nothing is stuck", text, deployments[id_].application_name)
    ended: defaultdict[str, list[TruthLine]] = defaultdict(list)
    for line in evidence.truth:
        if line.what == "end":
            ended[line.deployment].append(line)
    for id_ in evidence.read_logs:
        # A run that is repeated was interrupted, and nobody may have read its lines.
        last = {line.label: line for line in ended[id_]}
        for line in last.values():
            yield from _missing_run(evidence, deployments[id_], line)
    for (id_, stage), lines in evidence.logs.items():
        lane = deployments[id_].application_name if id_ in deployments else ""
        where = f"the log of stage {stage} of {id_}"
        yield from _lines_of_log(lines, where, lane)
        seen = [line for line in evidence.seen_logs.get((id_, stage), ()) if LINE.search(line)]
        if missing := Counter(seen) - Counter(lines):
            text = f"{where} lost {missing.total()} lines that a client had seen"
            yield Violation(_LOST, text, lane)
        acknowledged = evidence.acknowledged_logs.get((id_, stage), ())
        if lost := set(acknowledged) - set(lines):
            text = f"{where} lost {len(lost)} lines that were acknowledged"
            yield Violation(_LOST, text, lane)


def _lines_of_log(lines: Sequence[str], where: str, lane: str) -> Iterable[Violation]:
    """Each run printed its lines once, in order and without a gap."""
    runs = _runs(lines)
    if lines.count(_RUN_SUCCEEDED) > max(1, len(runs)):
        text = f"{where} says {lines.count(_RUN_SUCCEEDED)} times that the script succeeded"
        yield Violation("no log line is doubled", text, lane)
    for run, numbered in runs.items():
        numbers, expected = [number for number, _ in numbered], numbered[0][1]
        if len(numbers) != len(set(numbers)):
            text = f"{where} has lines of run {run} twice"
            yield Violation("no log line is doubled", text, lane)
        elif numbers != sorted(numbers):
            text = f"{where} has lines of run {run} in another order"
            yield Violation("log lines keep their order", text, lane)
        elif numbers != list(range(1, len(numbers) + 1)):
            text = f"{where} has {len(numbers)} of {expected} lines of run {run}"
            yield Violation(_LOST, text, lane)


def _runs(lines: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
    """The numbers of lines with the count that their run prints, by run."""
    by_run: dict[str, list[tuple[int, int]]] = {}
    for line in lines:
        if matched := LINE.search(line):
            by_run.setdefault(matched[1], []).append((int(matched[2]), int(matched[3])))
    return by_run


def _missing_run(
    evidence: Evidence, deployment: Deployment, ended: TruthLine
) -> Iterable[Violation]:
    """A run that ended has all its lines in the log, unless its piped lost those it had not sent."""
    stage, lane = stage_of(deployment, ended.label), deployment.application_name
    if stage is None:
        text = f"script {ended.label} of {deployment.id} ran, and the deployment has no such stage"
        yield Violation("nothing acknowledged is lost", text, lane)
        return
    lines = evidence.logs.get((deployment.id, stage.id), ())
    numbered = _runs(lines).get(ended.pid, [])
    is_complete = bool(numbered) and len(numbered) >= numbered[0][1]
    closed = evidence.completed_stages.get((deployment.id, stage.id), FOREVER)
    if is_complete or evidence.is_workspace_lost(
        deployment.piped_id,
        ended.at - _SEEN_LATE,
        closed + _SENT_WITHIN,
        files=[journal_of(deployment.id), logs_of(deployment.id)],
    ):
        return
    numbers = [number for number, _ in numbered]
    if numbers and numbers != list(range(1, len(numbers) + 1)):
        # A gap, which is reported as such.
        return
    count = f"{len(numbered)} of {numbered[0][1]}" if numbered else "none of the"
    text = f"the log of stage {stage.id} of {deployment.id} has {count} lines of run {ended.pid}"
    yield Violation(_LOST, text, lane)


def events(evidence: Evidence) -> Iterable[Violation]:
    """Acknowledged events are handled once, or refused with a reason."""
    rule = "an event is handled once"
    requested = [each for each in evidence.requests if each.kind == "event"]
    for request in requested:
        if not request.is_acknowledged:
            continue
        lane, commits = request.application, evidence.event_commits.get(request.value, 0)
        event = evidence.events.get(request.id)
        if event is None:
            text = f"event {request.id} is gone"
            yield Violation("nothing acknowledged is lost", text, lane)
            continue
        if commits > 1 and not _is_push_unknown(evidence, request):
            yield Violation(rule, f"{commits} commits wrote {request.value}", lane)
        match event.status:
            case event_pb2.EVENT_NOT_HANDLED if request.application not in evidence.broken:
                yield Violation("nothing is stuck", f"event {event.id} is not handled", lane)
            case event_pb2.EVENT_SUCCESS if not commits and not _is_commit_lost(evidence, request):
                yield Violation(rule, f"no commit wrote {request.value}", lane)
            case event_pb2.EVENT_FAILURE if not event.status_description:
                yield Violation(rule, f"event {event.id} failed without a reason", lane)
            case event_pb2.EVENT_OUTDATED if not (
                _has_newer(request, requested) or _is_aged(evidence, request, event)
            ):
                text = f"event {event.id} is outdated although none is newer"
                yield Violation(rule, text, lane)
            case _:
                pass


def _is_push_unknown(evidence: Evidence, event: Requested) -> bool:
    """Whether the piped of an event lost what it knew of a push that it had not reported."""
    return evidence.is_workspace_lost(
        evidence.piped_of(event.application),
        event.at,
        event.at + _HANDLED_WITHIN,
        files=[EVENTS_FILE],
    )


def _is_commit_lost(evidence: Evidence, event: Requested) -> bool:
    """Whether the repository was created again while the commit of an event may have arrived.

    All commits before that are known.
    """
    return any(
        fault.name == "recreate_repository" and 0 <= fault.begin - event.at <= _HANDLED_WITHIN
        for fault in evidence.faults
    )


def _is_aged(evidence: Evidence, request: Requested, event: Event) -> bool:
    """Whether the clock of the control plane, which dates events, was stepped before it was read.

    An event that seems to be more than an hour old is refused with this reason.
    """
    return event.status_description.startswith("Too much time has passed") and any(
        fault.name == "step_clock_of_replica" and fault.end >= request.at
        for fault in evidence.faults
    )


def _has_newer(event: Requested, requested: Iterable[Requested]) -> bool:
    """Whether another event of the same name may have come later."""
    return any(
        other is not event
        and other.application == event.application
        and other.answered_at >= event.at
        for other in requested
    )


def notifications(evidence: Evidence) -> Iterable[Violation]:
    """Notifications of a deployment and of its stages come at least once and in order.

    A piped that lost its workspace lost what it had not sent at that time; the others keep their order.
    """
    received: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in sorted(evidence.notifications, key=lambda each: each.at):
        received[each.deployment, each.stage].append(each.type)
    for deployment in evidence.deployments:
        if not DeploymentStatus(deployment.status).is_completed:
            continue
        lane, missing = deployment.application_name, set[str]()
        for about, stage, order, required in _expected_notifications(deployment):
            types = list(dict.fromkeys(t for t in received[deployment.id, stage] if t in order))
            missing |= {
                type_
                for type_ in required - set(types)
                if not _is_notification_lost(evidence, deployment, type_, stage)
            }
            if types != sorted(types, key=order.index):
                text = f"{about} was notified as {', '.join(types)}"
                yield Violation("notifications keep their order", text, lane)
        if missing:
            text = f"{deployment.id} was not notified of {', '.join(sorted(missing))}"
            yield Violation("notifications come at least once", text, lane)


def _is_notification_lost(
    evidence: Evidence, deployment: Deployment, type_: str, stage: str
) -> bool:
    """Whether the workspace was lost between what a notification is about and its delivery.

    What began may have begun at any time since the deployment was created. What ended did so shortly
    before that was reported, so that a workspace that was lost long before or later explains nothing.
    """
    id_ = deployment.id
    begin = min(evidence.first_seen.get(id_, 0.0), evidence.reported_created.get(id_, FOREVER))
    if stage:
        seen, reported = evidence.completed_stages, evidence.reported_stages
        end = min(seen.get((id_, stage), FOREVER), reported.get((id_, stage), FOREVER))
    else:
        end = min(
            evidence.completed_at.get(id_, FOREVER), evidence.reported_completed.get(id_, FOREVER)
        )
    if type_ in (*_NOTIFIED_ENDS.values(), "STAGE_SUCCEEDED", "STAGE_FAILED") and end < FOREVER:
        begin = end
    files = [NOTIFICATIONS_FILE, journal_of(id_)]
    return evidence.is_workspace_lost(
        deployment.piped_id, begin - _SEEN_LATE, end + _SENT_WITHIN, files=files
    )


def _expected_notifications(
    deployment: Deployment,
) -> Iterable[tuple[str, str, Sequence[str], set[str]]]:
    """What is notified, the id of its stage, and its notifications in order with those that must come.

    A deployment may be cancelled before it is planned, and then has neither a plan nor a start.
    """
    status = DeploymentStatus(deployment.status)
    order = (*_NOTIFIED, _NOTIFIED_ENDS[status])
    required = {_NOTIFIED[0], _NOTIFIED_ENDS[status]}
    ran = [stage for stage in deployment.stages if StageStatus(stage.status) in _STAGE_NOTIFIED]
    if ran:
        required |= {"DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED"}
    if any(stage.rollback for stage in ran):
        required.add("DEPLOYMENT_ROLLING_BACK")
    yield deployment.id, "", order, required
    for stage in ran:
        sent = _STAGE_NOTIFIED[StageStatus(stage.status)]
        yield f"stage {stage.id} of {deployment.id}", stage.id, sent, set(sent)


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
