# SPDX-License-Identifier: Apache-2.0
"""The model finds what it is for: each rule on evidence that is wrong, and on evidence that is right."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from faults.applications import FaultyApplication, Platform, Shape
from faults.evidence import Evidence, InjectedFault, Notification, Requested, Resources
from faults.model import check
from faults.observer import StatusObserver
from faults.sample_deployments import deployment
from faults.truth import ClusterWrite, TruthLine
from pipecd.model.command import REASON_KEY, TRIGGERED_KEY
from pipecd.model.deployment import APPROVED_USERS_KEY, DeploymentStatus, StageStatus
from pipecd.proto.model import chain_pb2, command_pb2, event_pb2
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event

D, S = DeploymentStatus, StageStatus
SUCCEEDED, FAILED = command_pb2.COMMAND_SUCCEEDED, command_pb2.COMMAND_FAILED


def line(what: str, at: float, *, pid: str = "7", label: str = "0", id_: str = "d") -> TruthLine:
    return TruthLine(what, "web", id_, "new", pid, at, label)


def notified(*types: str) -> list[Notification]:
    """Notifications about a deployment, and about its first stage."""
    return [
        Notification(float(at), "d", type_, "d-0" if type_.startswith("STAGE_") else "")
        for at, type_ in enumerate(types)
    ]


def log(*numbers: int, count: int = 3) -> dict[tuple[str, str], list[str]]:
    return {("d", "d-0"): [f"L 7 {number} {count}" for number in numbers]}


SCRIPT = deployment("d", D.SUCCESS, ("SCRIPT_RUN", S.SUCCESS))
BY_COMMAND = deployment("d", D.SUCCESS, ("SCRIPT_RUN", S.SUCCESS), commander="key")
ALL_NOTIFIED = notified(
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_SUCCEEDED",
)  # fmt: skip
ROLLED_BACK = deployment("d", D.FAILURE, ("SCRIPT_RUN", S.SUCCESS))
ROLLED_BACK.stages[0].rollback = True
ROLLED_BACK_NOTIFIED = [*ALL_NOTIFIED[:-1], Notification(9.0, "d", "DEPLOYMENT_FAILED")]
GOOD = Evidence(
    deployments=[SCRIPT],
    truth=[line("begin", 1), line("end", 2)],
    notifications=ALL_NOTIFIED,
    completed_at={"d": 3},
    completed_stages={("d", "d-0"): 2.5},
    first_seen={"d": 0.5},
    read_logs={"d"},
    logs=log(1, 2, 3),
    seen_logs=log(1, 2),
)


def approval(saved: str) -> Deployment:
    waiting = deployment("d", D.SUCCESS, ("WAIT_APPROVAL", S.SUCCESS))
    if saved:
        waiting.stages[0].metadata[APPROVED_USERS_KEY] = saved
    return waiting


def approved(*people: str) -> list[Requested]:
    return [Requested("approve", "web", "c", person, "d", "d-0") for person in people]


SYNC = Requested("sync", "web", id="c")
CANCEL = Requested("cancel", "web", id="c", deployment="d")
EVENT = Requested("event", "web", id="e", value="v1", at=5, answered_at=6)
LATER_EVENT = Requested("event", "web", value="v2", at=7)
EARLIER_EVENT = Requested("event", "web", value="v0", at=1, answered_at=2)
AGED = 'Too much time has passed since the event "e" was created'
LOST = InjectedFault("lose_workspace", 2, 2, piped="p")
FULL = InjectedFault("fill_workspace", 2, 3, piped="p")
LOST_LATER = InjectedFault("lose_workspace", 100, 100, piped="p")
TWO = (
    FaultyApplication("web", Platform.SCRIPT, 0, Shape.CHAIN, "shop"),
    FaultyApplication("shop", Platform.SCRIPT, 0, Shape.FOLLOWER),
)


def of_target(platform: Platform, *lines: TruthLine) -> Evidence:
    """A deployment of an application of another platform, with what its target wrote."""
    application = FaultyApplication("web", platform, 0)
    return replace(
        GOOD,
        applications=(application,),
        piped_ids=("p",),
        truth=lines,
        read_logs=(),
        logs={},
        seen_logs={},
    )


def applied(at: float, nonce: str = "1", *, what: str = "apply") -> TruthLine:
    return TruthLine(what, "web", "-", "-", "7", at, nonce)


def started(at: float, commit: str = "new") -> TruthLine:
    return TruthLine("start", "web", "-", commit, "7", at, "primary")


def written(*writes: tuple[float, str]) -> Evidence:
    cluster = [ClusterWrite(at, "web", "configmaps", "patch", revision) for at, revision in writes]
    return replace(of_target(Platform.KUBERNETES), cluster_writes=cluster)


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
    "a script that ended when its piped was killed, and whose lines nobody read": replace(
        GOOD,
        truth=[line("begin", 1), line("end", 1.2), line("begin", 2, pid="8"), line("end", 2.2, pid="8")],
        interruptions={"p": [1.1]},
        logs={("d", "d-0"): ["L 8 1 1"]},
        seen_logs={},
    ),
    "a sync with its deployment": replace(
        GOOD,
        deployments=[BY_COMMAND],
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
        GOOD, requests=[EVENT, LATER_EVENT], events=event(event_pb2.EVENT_OUTDATED)
    ),
    "an event that a stepped clock has aged": replace(
        GOOD,
        requests=[EVENT],
        events=event(event_pb2.EVENT_OUTDATED, AGED),
        faults=[InjectedFault("step_clock_of_replica", 7, 7)],
    ),
    "an event of an application whose file is broken": replace(
        GOOD, requests=[EVENT], events=event(event_pb2.EVENT_NOT_HANDLED), broken={"web"}
    ),
    "an event whose commit is gone with the repository": replace(
        GOOD,
        requests=[EVENT],
        events=event(event_pb2.EVENT_SUCCESS),
        faults=[InjectedFault("recreate_repository", 8, 9)],
    ),
    "an event that was handled": replace(
        GOOD, requests=[EVENT], events=event(event_pb2.EVENT_SUCCESS), event_commits={"v1": 1}
    ),
    "a deployment that was cancelled before it was planned": replace(
        GOOD,
        deployments=[deployment("d", D.CANCELLED, ("SCRIPT_RUN", S.CANCELLED))],
        notifications=notified("DEPLOYMENT_TRIGGERED", "DEPLOYMENT_CANCELLED"),
        truth=[], completed_stages={}, logs={}, read_logs=(), seen_logs={},
    ),
    "a notification that was repeated after a kill": replace(
        GOOD, notifications=[*ALL_NOTIFIED, ALL_NOTIFIED[1]]
    ),
    "a piped that lost what it had not sent": replace(
        GOOD, notifications=[], faults=[LOST], logs=log(1), seen_logs=log(1)
    ),
    "a notification that a piped could not write before it was killed": replace(
        GOOD, notifications=ALL_NOTIFIED[:-1], faults=[FULL], interruptions={"p": [4]}
    ),
    "a stage that runs again since its piped lost its workspace": replace(
        GOOD,
        truth=[line("begin", 1), line("end", 1.2), line("begin", 20, pid="8")],
        interruptions={"p": [19]},
        faults=[InjectedFault("lose_workspace", 19, 19, piped="p")],
        completed_at={}, completed_stages={}, logs={}, read_logs=(), seen_logs={},
    ),
    "a revision that Terraform created again after a kill": replace(
        of_target(Platform.TERRAFORM, applied(1), applied(3)), interruptions={"p": [2]}
    ),
    "a revision that came back": of_target(
        Platform.TERRAFORM, applied(1), applied(2, "2"), applied(3)
    ),
    "a revision that fails whenever it is applied": replace(
        of_target(Platform.TERRAFORM, applied(1), applied(3)), failing={("web", "1")}
    ),
    "a program that is started again since its supervisor was killed": replace(
        of_target(Platform.PROCESS, started(1), started(2)),
        running_programs={"web": ["primary of new"]},
        faults=[InjectedFault("kill_supervisor", 1, 1, piped="p")],
    ),
    "a program that was started": replace(
        of_target(Platform.PROCESS, started(1)), running_programs={"web": ["primary of new"]}
    ),
    "objects that a deployment wrote": written((1, "1"), (2, "1")),
    "a chain whose follower has a broken file": replace(
        GOOD,
        applications=TWO,
        deployments=[deployment("d", D.SUCCESS, ("SCRIPT_RUN", S.SUCCESS), chain="c")],
        broken_commits={("shop", "new")},
    ),
    "a chain whose follower is disabled": replace(
        GOOD,
        applications=TWO,
        deployments=[deployment("d", D.SUCCESS, ("SCRIPT_RUN", S.SUCCESS), chain="c")],
        requests=[Requested("disable", "shop", at=2)],
    ),
    "a chain that reached its follower": replace(
        GOOD,
        applications=TWO,
        deployments=[
            deployment("d", chain="c"),
            deployment("f", chain="c", application="shop"),
        ],
        truth=[],
        read_logs=(),
        notifications=[*ALL_NOTIFIED, *(replace(each, deployment="f") for each in ALL_NOTIFIED)],
    ),
    "a program that uses a little more": replace(
        GOOD, resources=[("piped", Resources(1, 100 << 20, 20, 30), Resources(1, 120 << 20, 22, 35))]
    ),
}  # fmt: skip

WRONG: dict[str, tuple[Evidence, str]] = {
    "an event whose commit is gone although the repository was created again before": (
        replace(
            GOOD,
            requests=[EVENT],
            events=event(event_pb2.EVENT_SUCCESS),
            faults=[InjectedFault("recreate_repository", 1, 2)],
        ),
        "an event is handled once: no commit wrote v1",
    ),
    "a chain that waits for a follower with a broken file for ever": (
        replace(
            GOOD,
            applications=TWO,
            deployments=[deployment("d", D.SUCCESS, ("SCRIPT_RUN", S.SUCCESS), chain="c")],
            chains=[DeploymentChain(id="c", status=chain_pb2.DEPLOYMENT_CHAIN_RUNNING)],
            broken_commits={("shop", "new")},
        ),
        "nothing is stuck: chain c is DEPLOYMENT_CHAIN_RUNNING",
    ),
    "a line of an interrupted run that was acknowledged and is lost": (
        replace(
            GOOD,
            truth=[line("begin", 1), line("begin", 2, pid="8"), line("end", 2.2, pid="8")],
            interruptions={"p": [1.5]},
            logs={("d", "d-0"): ["Piped was restarted", "L 8 1 1"]},
            seen_logs={},
            acknowledged_logs={("d", "d-0"): {"L 7 1 3"}},
        ),
        "no log line is lost: the log of stage d-0 of d lost 1 lines that were acknowledged",
    ),
    "a stage that runs again since its plugin hung": (
        replace(
            GOOD,
            truth=[line("begin", 1), line("begin", 2, pid="8")],
            logs={},
            seen_logs={},
            faults=[InjectedFault("hang_plugin", 1, 2, piped="p")],
        ),
        "an interrupted stage runs once per restart: script 0 of d ran 2 times with 0 interruptions",
    ),
    "a program that is started again since the supervisor of another piped was killed": (
        replace(
            of_target(Platform.PROCESS, started(1), started(2)),
            running_programs={"web": ["primary of new"]},
            faults=[InjectedFault("kill_supervisor", 1, 1, piped="q")],
        ),
        "a program starts once per deployment: primary of web at new was started 2 times by 1 deployments",
    ),
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
            faults=[LOST_LATER],
        ),
        "a finished stage never runs again: script 0 of d ran again 19.0 s after its end",
    ),
    "a stage that runs twice without a restart": (
        replace(GOOD, truth=[line("begin", 1), line("begin", 2, pid="8")], logs={}, seen_logs={}),
        "an interrupted stage runs once per restart: script 0 of d ran 2 times with 0 interruptions",
    ),
    "a deployment that the control plane has lost": (
        replace(GOOD, deployments=[], read_logs=(), logs={}, seen_logs={}),
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
            deployments=[BY_COMMAND, deployment("e", commander="key")],
            requests=[SYNC],
            commands=command(SUCCEEDED, **{TRIGGERED_KEY: "d"}),
            faults=[LOST, replace(LOST, end=float("inf"))],
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
    "an approval of nobody": (
        replace(GOOD, deployments=[approval("")], truth=[], read_logs=(), logs={}, seen_logs={}),
        "an approval counts once per person: d went on with the approvals of nobody",
    ),
    "an approval of one person where two are required": (
        replace(GOOD, deployments=[approval("ann")], requests=approved("ann")),
        "an approval counts once per person: d went on with the approvals of ann",
    ),
    "a skip that fails without a reason": (
        replace(GOOD, requests=[Requested("skip", "web", id="c", deployment="d")], commands=command(FAILED)),
        "a command is carried out once: skip c failed without a reason",
    ),
    "an approval that fails without a reason": (
        replace(GOOD, requests=[Requested("approve", "web", id="c", deployment="d")], commands=command(FAILED)),
        "a command is carried out once: approve c failed without a reason",
    ),
    "a skip that is reported as done and is not": (
        replace(
            GOOD,
            requests=[Requested("skip", "web", id="c", deployment="d", stage="d-0")],
            commands=command(SUCCEEDED),
        ),
        "a command is carried out once: skip c succeeded, but its stage is SUCCESS",
    ),
    "a command that timed out": (
        replace(GOOD, requests=[SYNC], commands=command(command_pb2.COMMAND_TIMEOUT)),
        "a command is carried out once: sync c timed out",
    ),
    "two applies of an application at once": (
        of_target(Platform.TERRAFORM, applied(1), applied(1.5, "2", what="overlap")),
        "one running deployment: an apply began while another one of web ran",
    ),
    "a revision that Terraform created twice": (
        of_target(Platform.TERRAFORM, applied(1), applied(3)),
        "an interrupted stage runs once per restart: revision 1 of web was created 2 times with 0 interruptions",
    ),
    "a program that is started again without a deployment": (
        of_target(Platform.PROCESS, started(1), started(9)),
        "a program starts once per deployment: primary of web at new was started 2 times by 1 deployments",
    ),
    "two programs of an application in the end": (
        replace(
            of_target(Platform.PROCESS, started(1)),
            running_programs={"web": ["primary of old", "primary of new"]},
        ),
        "one program of an application runs: web runs primary of old, primary of new",
    ),
    "an object that is changed after the end": (
        written((1, "1"), (4, "1")),
        "nothing runs after the end: patch of configmaps of web while no deployment was open",
    ),
    "two deployments that write the same object in turns": (
        written((1, "1"), (1.2, "2"), (1.4, "1")),
        "one running deployment: web switched 3 times between revisions with 1 deployments",
    ),
    "a chain that ends before its follower": (
        replace(GOOD, applications=TWO, deployments=[deployment("d", D.SUCCESS, ("SCRIPT_RUN", S.SUCCESS), chain="c")]),
        "a chain reaches its followers: d of web succeeded, and chain c did not deploy shop",
    ),
    "a chain that was never created": (
        replace(GOOD, applications=TWO),
        "a chain reaches its followers: d of web succeeded without a chain",
    ),
    "a whole stage log that is lost": (
        replace(GOOD, logs={}, seen_logs={}, faults=[LOST_LATER]),
        "no log line is lost: the log of stage d-0 of d has none of the lines of run 7",
    ),
    "a stage log that cannot be read": (
        replace(GOOD, read_logs=(), unread_logs={"d"}, logs={}),
        "nothing is stuck: the logs of d cannot be read",
    ),
    "an acknowledged event that is gone": (
        replace(GOOD, requests=[EVENT]),
        "nothing acknowledged is lost: event e is gone",
    ),
    "an event that is outdated without a newer one": (
        replace(GOOD, requests=[EARLIER_EVENT, EVENT], events=event(event_pb2.EVENT_OUTDATED)),
        "an event is handled once: event e is outdated although none is newer",
    ),
    "an event that is refused as old although no clock was stepped": (
        replace(GOOD, requests=[EVENT], events=event(event_pb2.EVENT_OUTDATED, AGED)),
        "an event is handled once: event e is outdated although none is newer",
    ),
    "an event that is outdated without a reason although a clock was stepped": (
        replace(
            GOOD,
            requests=[EVENT],
            events=event(event_pb2.EVENT_OUTDATED),
            faults=[InjectedFault("step_clock_of_replica", 7, 7)],
        ),
        "an event is handled once: event e is outdated although none is newer",
    ),
    "a notification that is missing although the disk was only full, and the piped went on": (
        replace(GOOD, notifications=ALL_NOTIFIED[:-1], faults=[FULL], interruptions={"p": [30]}),
        "notifications come at least once: d was not notified of DEPLOYMENT_SUCCEEDED",
    ),
    "a notification that is missing although the workspace was lost much later": (
        replace(GOOD, notifications=ALL_NOTIFIED[:-1], faults=[LOST_LATER]),
        "notifications come at least once: d was not notified of DEPLOYMENT_SUCCEEDED",
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
    "the end of a log that is doubled": (
        replace(
            GOOD, logs={("d", "d-0"): [*log(1, 2, 3)["d", "d-0"], *["The script succeeded"] * 2]}
        ),
        "no log line is doubled: the log of stage d-0 of d says 2 times that the script succeeded",
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
        replace(GOOD, notifications=[ALL_NOTIFIED[-1], *(replace(each, at=each.at + 9) for each in ALL_NOTIFIED[:-1])]),
        "notifications keep their order: d was notified as DEPLOYMENT_SUCCEEDED, DEPLOYMENT_TRIGGERED, DEPLOYMENT_PLANNED, DEPLOYMENT_STARTED",
    ),
    "a notification of the start that is missing": (
        replace(GOOD, notifications=[each for each in ALL_NOTIFIED if each.type != "DEPLOYMENT_STARTED"]),
        "notifications come at least once: d was not notified of DEPLOYMENT_STARTED",
    ),
    "a notification of a rollback that is missing": (
        replace(GOOD, deployments=[ROLLED_BACK], notifications=ROLLED_BACK_NOTIFIED, truth=[line("begin", 1, label="undo-0")]),
        "notifications come at least once: d was not notified of DEPLOYMENT_ROLLING_BACK",
    ),
    "a notification of a stage that is missing": (
        replace(GOOD, notifications=[each for each in ALL_NOTIFIED if each.type != "STAGE_SUCCEEDED"]),
        "notifications come at least once: d was not notified of STAGE_SUCCEEDED",
    ),
    "notifications of a stage in another order": (
        replace(GOOD, notifications=[ALL_NOTIFIED[4], *(replace(each, at=each.at + 9) for each in ALL_NOTIFIED)]),
        "notifications keep their order: stage d-0 of d was notified as STAGE_SUCCEEDED, STAGE_STARTED",
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
        replace(GOOD, resources=[("piped", Resources(1, 100 << 20, 2, 3), Resources(2, 190 << 20, 2, 3))]),
        "memory, threads and files come back: piped has 190 MB, 100 MB at first",
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
