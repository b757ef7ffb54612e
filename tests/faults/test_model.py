# SPDX-License-Identifier: Apache-2.0
"""The model finds what it is for: each rule on evidence that is wrong, and on evidence that is right."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from faults.applications import FaultyApplication, Platform
from faults.history import Evidence, Notification, Requested, Resources, TruthLine
from faults.model import Head, StatusObserver, SyncState, check, unsettled
from pipecd.model.application import SyncStatus
from pipecd.model.command import REASON_KEY, TRIGGERED_KEY
from pipecd.model.deployment import APPROVED_USERS_KEY, DeploymentStatus, StageStatus
from pipecd.proto.model import command_pb2, event_pb2
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentTrigger, PipelineStage
from pipecd.proto.model.event_pb2 import Event

D, S = DeploymentStatus, StageStatus
SUCCEEDED, FAILED = command_pb2.COMMAND_SUCCEEDED, command_pb2.COMMAND_FAILED


def deployment(
    id_: str = "d",
    status: DeploymentStatus = D.SUCCESS,
    *stages: tuple[str, StageStatus],
    commander: str = "",
    commit: str = "new",
    reason: str = "",
) -> Deployment:
    """A deployment of the application `web` by the piped `p`."""
    return Deployment(
        id=id_,
        application_name="web",
        piped_id="p",
        status=pb.DeploymentStatus.ValueType(status),
        status_reason=reason,
        trigger=DeploymentTrigger(commander=commander, commit=pb.Commit(hash=commit)),
        stages=[
            PipelineStage(
                id=f"{id_}-{index}",
                name=name,
                index=index,
                status=pb.StageStatus.ValueType(each),
            )
            for index, (name, each) in enumerate(stages)
        ],
    )


def line(what: str, at: float, *, pid: str = "7", label: str = "0", id_: str = "d") -> TruthLine:
    return TruthLine(what, "web", id_, "new", pid, at, label)


def notified(*types: str) -> list[Notification]:
    return [Notification(float(at), "d", type_) for at, type_ in enumerate(types)]


def log(*numbers: int, count: int = 3) -> dict[tuple[str, str], list[str]]:
    return {("d", "d-0"): [f"L 7 {number} {count}" for number in numbers]}


SCRIPT = deployment("d", D.SUCCESS, ("SCRIPT_RUN", S.SUCCESS))
ALL_NOTIFIED = notified(
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED", "DEPLOYMENT_SUCCEEDED"
)
GOOD = Evidence(
    deployments=[SCRIPT],
    truth=[line("begin", 1), line("end", 2)],
    notifications=ALL_NOTIFIED,
    completed_at={"d": 3},
    completed_stages={("d", "d-0"): 2.5},
    logs=log(1, 2, 3),
    seen_logs=log(1, 2),
)


def approval(saved: str) -> Deployment:
    waiting = deployment("d", D.SUCCESS, ("WAIT_APPROVAL", S.SUCCESS))
    waiting.stages[0].metadata[APPROVED_USERS_KEY] = saved
    return waiting


def approved(*people: str) -> list[Requested]:
    return [Requested("approve", "web", "c", person, "d", "d-0") for person in people]


SYNC = Requested("sync", "web", id="c")
CANCEL = Requested("cancel", "web", id="c", deployment="d")
EVENT = Requested("event", "web", id="e", value="v1")


def command(status: command_pb2.CommandStatus.ValueType, **metadata: str) -> dict[str, Command]:
    return {"c": Command(id="c", status=status, metadata=metadata)}


def event(status: event_pb2.EventStatus.ValueType, description: str = "") -> dict[str, Event]:
    return {"e": Event(id="e", status=status, status_description=description)}


RIGHT: dict[str, Evidence] = {
    "a deployment of one script": GOOD,
    "a script that is interrupted and repeated": replace(
        GOOD,
        truth=[line("begin", 1), line("begin", 2, pid="8"), line("end", 2.2, pid="8")],
        interruptions={"p": [1.5]},
        logs={("d", "d-0"): ["L 7 1 3", "Piped was restarted", "L 8 1 1"]},
        seen_logs={},
    ),
    "a sync with its deployment": replace(
        GOOD,
        deployments=[deployment(commander="key")],
        requests=[SYNC],
        commands=command(SUCCEEDED, **{TRIGGERED_KEY: "d"}),
    ),
    "a cancel that came too late": replace(
        GOOD, requests=[CANCEL], commands=command(FAILED, **{REASON_KEY: "it has ended"})
    ),
    "an approval of two people, one of them twice": replace(
        GOOD, deployments=[approval("ann, ben")], requests=approved("ann", "ann", "ben")
    ),
    "an event that was superseded": replace(
        GOOD, requests=[EVENT], events=event(event_pb2.EVENT_OUTDATED)
    ),
    "an event that was handled": replace(
        GOOD, requests=[EVENT], events=event(event_pb2.EVENT_SUCCESS), event_commits={"v1": 1}
    ),
    "a notification that was repeated after a kill": replace(
        GOOD, notifications=[*ALL_NOTIFIED, ALL_NOTIFIED[1]]
    ),
    "a piped that lost what it had not sent": replace(
        GOOD, notifications=[], lost_workspaces=frozenset({"p"})
    ),
    "a program that uses a little more": replace(
        GOOD, resources=[("piped", Resources(1, 100 << 20, 20, 30), Resources(1, 120 << 20, 22, 35))]
    ),
}  # fmt: skip

WRONG: dict[str, tuple[Evidence, str]] = {
    "two scripts of an application at once": (
        replace(GOOD, truth=[line("begin", 1), line("overlap", 1.5), line("end", 2)]),
        "one running deployment: a script of d began while another one of web ran",
    ),
    "a stage that runs after it was seen as finished": (
        replace(GOOD, truth=[*GOOD.truth, line("begin", 2.7, pid="8")], interruptions={"p": [2.6]}),
        "a finished stage never runs again: script 0 of d ran again 0.2 s after it was finished",
    ),
    "a stage that runs again although it ended long before the restart": (
        replace(
            GOOD,
            truth=[line("begin", 1), line("end", 2), line("begin", 21, pid="8")],
            interruptions={"p": [20]},
            completed_at={},
            completed_stages={},
        ),
        "a finished stage never runs again: script 0 of d ran again 19.0 s after its end",
    ),
    "a stage that runs twice without a restart": (
        replace(GOOD, truth=[line("begin", 1), line("begin", 2, pid="8")], logs={}, seen_logs={}),
        "an interrupted stage runs once per restart: script 0 of d ran 2 times with 0 interruptions",
    ),
    "a deployment that the control plane has lost": (
        replace(GOOD, deployments=[], logs={}, seen_logs={}),
        "nothing acknowledged is lost: d, which ran for web, is unknown to the control plane",
    ),
    "a rollback that goes on after the end": (
        replace(GOOD, truth=[*GOOD.truth, line("begin", 4, label="undo-0", pid="8")]),
        "nothing runs after the end: begin of script undo-0 of d 1.0 s after it was completed",
    ),
    "a command that nobody handles": (
        replace(GOOD, requests=[SYNC], commands=command(command_pb2.COMMAND_NOT_HANDLED_YET)),
        "nothing is stuck: sync c is not handled",
    ),
    "a command that is acknowledged and not done": (
        replace(GOOD, requests=[SYNC], commands=command(SUCCEEDED)),
        "a command is carried out once: sync c created no deployment",
    ),
    "a command that is carried out twice": (
        replace(
            GOOD,
            deployments=[deployment(commander="key"), deployment("e", commander="key")],
            requests=[SYNC],
            commands=command(SUCCEEDED, **{TRIGGERED_KEY: "d"}),
            lost_workspaces=frozenset({"p"}),
        ),
        "a command is carried out once: web has 2 deployments by command after 1 requests",
    ),
    "a command that fails without a reason": (
        replace(GOOD, requests=[SYNC], commands=command(FAILED)),
        "a command is carried out once: sync c failed without a reason",
    ),
    "a cancel that is reported as done and is not": (
        replace(GOOD, requests=[CANCEL], commands=command(SUCCEEDED)),
        "a command is carried out once: cancel c succeeded, but d is SUCCESS",
    ),
    "an approval that is counted twice": (
        replace(GOOD, deployments=[approval("ann, ann")], requests=approved("ann")),
        "an approval counts once per person: d counts ann, ann",
    ),
    "an approval of a person who did not approve": (
        replace(GOOD, deployments=[approval("ann, ben")], requests=approved("ann")),
        "an approval counts once per person: d counts ben, who did not approve",
    ),
    "a log line that is lost": (
        replace(GOOD, logs=log(1, 3), seen_logs={}),
        "no log line is lost: the log of stage d-0 of d has 2 of 3 lines of run 7",
    ),
    "the last log line that is lost": (
        replace(GOOD, logs=log(1, 2)),
        "no log line is lost: the log of stage d-0 of d has 2 of 3 lines of run 7",
    ),
    "a log line that is doubled": (
        replace(GOOD, logs=log(1, 2, 2, 3)),
        "no log line is doubled: the log of stage d-0 of d has lines of run 7 twice",
    ),
    "log lines in another order": (
        replace(GOOD, logs=log(2, 1, 3)),
        "log lines keep their order: the log of stage d-0 of d has lines of run 7 in another order",
    ),
    "a log line that a client saw and that is gone": (
        replace(GOOD, truth=[line("begin", 1)], logs=log(1), seen_logs=log(1, 2)),
        "no log line is lost: the log of stage d-0 of d lost 1 lines that a client had seen",
    ),
    "an event that nobody handles": (
        replace(GOOD, requests=[EVENT], events=event(event_pb2.EVENT_NOT_HANDLED)),
        "nothing is stuck: event e is not handled",
    ),
    "an event that is handled twice": (
        replace(GOOD, requests=[EVENT], events=event(event_pb2.EVENT_SUCCESS), event_commits={"v1": 2}),
        "an event is handled once: 2 commits wrote v1",
    ),
    "an event that is reported as handled and is not": (
        replace(GOOD, requests=[EVENT], events=event(event_pb2.EVENT_SUCCESS)),
        "an event is handled once: no commit wrote v1",
    ),
    "an event that fails without a reason": (
        replace(GOOD, requests=[EVENT], events=event(event_pb2.EVENT_FAILURE)),
        "an event is handled once: event e failed without a reason",
    ),
    "a notification that is missing": (
        replace(GOOD, notifications=ALL_NOTIFIED[:-1]),
        "notifications come at least once: d was not notified of DEPLOYMENT_SUCCEEDED",
    ),
    "notifications in another order": (
        replace(GOOD, notifications=notified("DEPLOYMENT_STARTED", "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_SUCCEEDED")),
        "notifications keep their order: d was notified as DEPLOYMENT_STARTED, DEPLOYMENT_TRIGGERED, DEPLOYMENT_SUCCEEDED",
    ),
    "a traceback": (
        replace(GOOD, tracebacks=["piped: Traceback"]),
        "no traceback: piped: Traceback",
    ),
    "file descriptors that stay open": (
        replace(GOOD, resources=[("piped", Resources(1, 1, 20, 30), Resources(1, 1, 20, 300))]),
        "memory, threads and files come back: piped has 300 files, 30 at first",
    ),
    "threads that do not end": (
        replace(GOOD, resources=[("piped", Resources(1, 1, 20, 30), Resources(1, 1, 90, 30))]),
        "memory, threads and files come back: piped has 90 threads, 20 at first",
    ),
    "memory that is not freed": (
        replace(GOOD, resources=[("piped", Resources(1, 100 << 20, 2, 3), Resources(1, 900 << 20, 2, 3))]),
        "memory, threads and files come back: piped has 900 MB, 100 MB at first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("evidence", RIGHT.values(), ids=RIGHT)
def test_what_is_right_violates_no_rule(evidence: Evidence) -> None:
    assert check(evidence) == []


@pytest.mark.parametrize(("evidence", "violation"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_violates_its_rule(evidence: Evidence, violation: str) -> None:
    assert [str(each) for each in check(evidence)] == [violation]


Answers = Sequence[Sequence[Deployment]]
OBSERVED: dict[str, tuple[Answers, list[str]]] = {
    "statuses that only go forward": (
        [[deployment(status=D.RUNNING)], [deployment(status=D.ROLLING_BACK)], [deployment(status=D.FAILURE)]],
        [],
    ),
    "a late report of the start": (
        [[deployment(status=D.SUCCESS)], [deployment(status=D.RUNNING)]],
        ["no status goes back: deployment d went from SUCCESS to RUNNING"],
    ),
    "a late report of a stage": (
        [[deployment("d", D.RUNNING, ("WAIT", S.SUCCESS))], [deployment("d", D.RUNNING, ("WAIT", S.RUNNING))]],
        ["no status goes back: stage WAIT of d went from SUCCESS to RUNNING"],
    ),
    "a plan that wipes stages": (
        [
            [deployment("d", D.RUNNING, ("WAIT", S.SUCCESS), ("WAIT", S.RUNNING))],
            [deployment("d", D.RUNNING, ("WAIT", S.SUCCESS))],
        ],
        ["no status goes back: a stage of d is gone"],
    ),
    "a completed deployment with an open stage": (
        [[deployment("d", D.CANCELLED, ("WAIT", S.RUNNING))]],
        ["no open stage in the end: d is CANCELLED although its stage WAIT is RUNNING"],
    ),
    "two running deployments of an application": (
        [[deployment("d", D.RUNNING), deployment("e", D.ROLLING_BACK)]],
        ["one running deployment: web has 2 running deployments"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answers", "violations"), OBSERVED.values(), ids=OBSERVED)
def test_every_answer_is_compared_with_those_before_it(
    answers: Answers, violations: list[str]
) -> None:
    observer = StatusObserver()
    found = [v for at, each in enumerate(answers) for v in observer.observe(each, at=float(at))]
    assert [str(violation) for violation in found] == violations


SCRIPTS = FaultyApplication("web", Platform.SCRIPT, 0)
CLUSTER = FaultyApplication("web", Platform.KUBERNETES, 0)
CONTENTS = {"new": "2", "copy": "2", "old": "1"}
SYNCED, INVALID = SyncState(SyncStatus.SYNCED), SyncState(SyncStatus.INVALID_CONFIG, "line 3")
Ending = tuple[FaultyApplication, Head, Sequence[Deployment], SyncState, str]
ENDINGS: dict[str, Ending] = {
    "the head is deployed": (SCRIPTS, Head("2", running="2"), [deployment()], SYNCED, ""),
    "a commit with the same content is deployed": (
        SCRIPTS, Head("2", running="2"), [deployment(commit="copy")], SYNCED, "",
    ),
    "the head is refused with a reason": (
        SCRIPTS, Head("2", running="1"), [deployment(status=D.FAILURE, reason="exit 1")], SYNCED, "",
    ),
    "the head is refused without a reason": (
        SCRIPTS, Head("2", running="1"), [deployment(status=D.FAILURE)], SYNCED,
        "no push is lost: web was never deployed at the head",
    ),
    "the push of the head is lost": (
        SCRIPTS, Head("2", running="1"), [deployment(commit="old")], SYNCED,
        "no push is lost: web was never deployed at the head",
    ),
    "an older commit runs after the head": (
        SCRIPTS, Head("2", running="1"), [deployment()], SYNCED,
        "the head runs in the end: web does not run the head although its deployment succeeded",
    ),
    "the last script has not ended": (
        SCRIPTS, Head("2", running="2", is_running_ended=False), [deployment()], SYNCED,
        "the head runs in the end: web has a last script that has not ended",
    ),
    "a deployment is stuck": (
        SCRIPTS, Head("2"), [deployment(status=D.PENDING)], SYNCED,
        "nothing is stuck: d of web is PENDING",
    ),
    "a broken file is reported": (SCRIPTS, Head("3", is_broken=True), [deployment()], INVALID, ""),
    "a broken file is not reported": (
        SCRIPTS, Head("3", is_broken=True), [deployment()], SYNCED,
        "no push is lost: web is not reported as invalid although its file is broken",
    ),
    "a file that is right is reported": (
        SCRIPTS, Head("2", running="2"), [deployment()], INVALID,
        "the sync state is right: web is reported as invalid: line 3",
    ),
    "an application that deploys for ever": (
        SCRIPTS, Head("2", running="2"), [deployment()], SyncState(SyncStatus.DEPLOYING),
        "the sync state is right: web is still deploying",
    ),
    "a cluster that runs the head and is reported as different": (
        CLUSTER, Head("2", running="2"), [deployment()], SyncState(SyncStatus.OUT_OF_SYNC, "1 differs"),
        "the sync state is right: web runs the head and is OUT_OF_SYNC: 1 differs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_the_head_is_deployed_or_refused_in_the_end(ending: Ending) -> None:
    application, head, deployments, sync, violation = ending
    left = unsettled(application, head, deployments, CONTENTS, sync=sync)
    assert [str(each) for each in left] == ([violation] if violation else [])
