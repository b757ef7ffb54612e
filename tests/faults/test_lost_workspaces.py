# SPDX-License-Identifier: Apache-2.0
"""A workspace that is lost or damaged explains only what was in it, and only at that time."""

from dataclasses import replace

import pytest

from faults.applications import FaultyApplication, Platform
from faults.ending import may_be_refused
from faults.evidence import FOREVER, Evidence, InjectedFault, Notification, Requested
from faults.execution_rules import repeated_stages
from faults.report_rules import events, notifications, stage_logs
from faults.sample_deployments import deployment
from faults.truth import TruthLine
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event

NOTIFIED = (
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_SUCCEEDED",
)  # fmt: skip
WEB = FaultyApplication("web", Platform.SCRIPT, 0)
# A deployment from 100 to 300 seconds, whose stage ends after 200 seconds.
DEPLOYED = Evidence(
    applications=[WEB],
    piped_ids=["p"],
    deployments=[
        deployment("d", DeploymentStatus.SUCCESS, ("SCRIPT_RUN", StageStatus.SUCCESS)),
    ],
    truth=[TruthLine("begin", "web", "d", "new", "7", 190, "0"), TruthLine("end", "web", "d", "new", "7", 199, "0")],
    first_seen={"d": 100},
    completed_stages={("d", "d-0"): 200},
    completed_at={"d": 300},
    read_logs={"d"},
)  # fmt: skip


def lost(at: float) -> InjectedFault:
    return InjectedFault("lose_workspace", at, at, "p")


def damaged(file: str, at: float) -> InjectedFault:
    return InjectedFault("damage_workspace", at, at, "p", file)


def duplicate(begin: float, end: float = FOREVER) -> InjectedFault:
    return InjectedFault("duplicate_piped", begin, end, "p")


def without(*missing: str) -> Evidence:
    """The deployment without some of its notifications."""
    sent = [
        Notification(float(at), "d", type_, "d-0" if type_.startswith("STAGE_") else "")
        for at, type_ in enumerate(NOTIFIED)
        if type_ not in missing
    ]
    return replace(DEPLOYED, notifications=sent)


@pytest.mark.parametrize(
    ("missing", "fault", "is_explained"),
    [
        pytest.param("DEPLOYMENT_SUCCEEDED", lost(299), True, id="the end, lost at the end"),
        pytest.param("DEPLOYMENT_SUCCEEDED", lost(200), False, id="the end, lost long before"),
        pytest.param("DEPLOYMENT_SUCCEEDED", lost(400), False, id="the end, lost long after"),
        pytest.param("STAGE_SUCCEEDED", lost(201), True, id="the end of a stage, lost after it"),
        pytest.param("STAGE_SUCCEEDED", lost(120), False, id="the end of a stage, lost long before"),
        pytest.param("STAGE_SUCCEEDED", lost(290), False, id="the end of a stage, lost long after"),
        pytest.param("STAGE_STARTED", lost(150), True, id="the begin of a stage, lost before its end"),
        pytest.param("DEPLOYMENT_PLANNED", lost(120), True, id="the plan, lost after the begin"),
        pytest.param("STAGE_SUCCEEDED", damaged("notifications.jsonl", 200), True, id="the file of notifications was damaged"),
        pytest.param("STAGE_SUCCEEDED", damaged("deployments/d/journal.json", 200), True, id="the journal was damaged"),
        pytest.param("STAGE_SUCCEEDED", damaged("deployments/e/journal.json", 200), False, id="another journal was damaged"),
        pytest.param("STAGE_SUCCEEDED", damaged("trigger/seen.json", 200), False, id="an unrelated file was damaged"),
    ],
)  # fmt: skip
def test_which_missing_notifications_are_explained(
    missing: str, fault: InjectedFault, is_explained: bool
) -> None:
    found = [str(each) for each in notifications(replace(without(missing), faults=[fault]))]
    text = f"notifications come at least once: d was not notified of {missing}"
    assert found == ([] if is_explained else [text])


@pytest.mark.parametrize(
    ("fault", "granted", "is_explained"),
    [
        pytest.param(duplicate(150, 400), 201, True, id="when the duplicate got the lease"),
        pytest.param(duplicate(150, 201), 160, True, id="when the duplicate with the lease was killed"),
        pytest.param(duplicate(150, 400), 160, False, id="long after the duplicate got the lease"),
        pytest.param(duplicate(150, 400), 350, False, id="long before the duplicate got the lease"),
        pytest.param(duplicate(150, 201), 100, False, id="when a duplicate that never got it was killed"),
        pytest.param(duplicate(202, 400), 201, False, id="before the duplicate started"),
        pytest.param(InjectedFault("duplicate_piped", 150, 400, "q"), 201, False, id="of another piped"),
    ],
)  # fmt: skip
def test_when_a_duplicate_explains_what_is_missing(
    fault: InjectedFault, granted: float, is_explained: bool
) -> None:
    missing = replace(
        without("STAGE_SUCCEEDED"), faults=[fault], lease_grants={"p": [granted], "q": [granted]}
    )
    assert bool([*notifications(missing)]) is not is_explained
    assert bool([*stage_logs(missing)]) is not is_explained


@pytest.mark.parametrize(("granted", "is_explained"), [(219, True), (230, False), (150, False)])
def test_when_a_duplicate_explains_a_repeated_stage(granted: float, is_explained: bool) -> None:
    again = TruthLine("begin", "web", "d", "new", "8", 220, "0")
    evidence = replace(
        DEPLOYED,
        truth=[*DEPLOYED.truth, again],
        faults=[duplicate(140, 400)],
        lease_grants={"p": [granted]},
        interruptions={"p": [215]},
        completed_stages={},
    )
    assert bool([*repeated_stages(evidence)]) is not is_explained


@pytest.mark.parametrize(
    ("faults", "is_explained"),
    [
        pytest.param([duplicate(110)], True, id="a new copy of a repository without the commit"),
        pytest.param([duplicate(80, 95)], True, id="a duplicate that ended a moment ago"),
        pytest.param([duplicate(50, 60)], False, id="a duplicate that ended long before"),
        pytest.param([duplicate(140)], False, id="a duplicate that started later"),
        pytest.param([lost(50)], True, id="a workspace that was lost long before"),
    ],
)
def test_when_a_commit_may_be_gone(faults: list[InjectedFault], is_explained: bool) -> None:
    failed = deployment("d", DeploymentStatus.FAILURE, reason="abc is not in repository site")
    recreated = InjectedFault("recreate_repository", 40, 40)
    may_be = may_be_refused(
        failed, WEB, requests=[], faults=[recreated, *faults], first_seen=110, completed_at=130
    )
    assert may_be is is_explained


def test_what_is_reported_counts_although_no_client_has_seen_it_yet() -> None:
    evidence = replace(without("STAGE_STARTED"), first_seen={"d": 170}, faults=[lost(120)])
    assert len([*notifications(evidence)]) == 1
    assert [*notifications(replace(evidence, reported_created={"d": 110}))] == []
    evidence = replace(without("STAGE_SUCCEEDED"), faults=[lost(160)])
    assert len([*notifications(evidence)]) == 1
    assert [*notifications(replace(evidence, reported_stages={("d", "d-0"): 155}))] == []


@pytest.mark.parametrize(
    ("fault", "is_explained"),
    [
        pytest.param(lost(199), True, id="the workspace was lost"),
        pytest.param(damaged("deployments/d/logs/d-0", 199), True, id="the lines were damaged"),
        pytest.param(damaged("deployments/e/logs/e-0", 199), False, id="other lines were damaged"),
        pytest.param(damaged("git/abc/HEAD", 199), False, id="the clone was damaged"),
    ],
)
def test_which_missing_lines_are_explained(fault: InjectedFault, is_explained: bool) -> None:
    found = [*stage_logs(replace(DEPLOYED, faults=[fault]))]
    assert bool(found) is not is_explained


@pytest.mark.parametrize(
    ("fault", "is_explained"),
    [
        pytest.param(damaged("deployments/d/journal.json", 210), True, id="its journal was damaged"),
        pytest.param(damaged("notifications.jsonl", 210), False, id="another file was damaged"),
    ],
)  # fmt: skip
def test_which_repeated_stages_are_explained(fault: InjectedFault, is_explained: bool) -> None:
    again = TruthLine("begin", "web", "d", "new", "8", 220, "0")
    evidence = replace(
        DEPLOYED,
        truth=[*DEPLOYED.truth, again],
        faults=[fault],
        interruptions={"p": [215]},
        completed_stages={},
    )
    assert bool([*repeated_stages(evidence)]) is not is_explained


@pytest.mark.parametrize(
    ("fault", "is_explained"),
    [
        pytest.param(lost(12), True, id="the workspace was lost"),
        pytest.param(lost(5), False, id="the workspace was lost before the event"),
        pytest.param(damaged("events/pushed.json", 12), True, id="what was pushed was damaged"),
        pytest.param(damaged("trigger/seen.json", 12), False, id="an unrelated file was damaged"),
    ],
)
def test_which_values_may_be_written_twice(fault: InjectedFault, is_explained: bool) -> None:
    event = Requested("event", "web", id="e", value="v1", at=10, answered_at=11)
    evidence = Evidence(
        applications=[WEB],
        piped_ids=["p"],
        requests=[event],
        events={"e": Event(id="e", status=event_pb2.EVENT_SUCCESS)},
        event_commits={"v1": 2},
        faults=[fault],
    )
    text = "an event is handled once: 2 commits wrote v1"
    assert [str(each) for each in events(evidence)] == ([] if is_explained else [text])


@pytest.mark.parametrize(
    ("file", "is_explained"),
    [("git/abc/HEAD", True), ("deployments/d/sources/web/app", True), ("trigger/seen.json", False)],
)
def test_which_damage_explains_a_failed_deployment(file: str, is_explained: bool) -> None:
    failed = deployment("d", DeploymentStatus.FAILURE)
    may_be = may_be_refused(
        failed, WEB, requests=[], faults=[damaged(file, 120)], first_seen=100, completed_at=130
    )
    assert may_be is is_explained
