# SPDX-License-Identifier: Apache-2.0
"""The checks of the fault injection find what they are for: each one on histories that are wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from faults.checks import StatusHistory, not_at_head, not_completed, wait_until_settled
from faults.installation import Run
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

D, S = DeploymentStatus, StageStatus
# A deployment of an application with one or two stages, as seen at one moment.
Seen = tuple[DeploymentStatus, tuple[StageStatus, ...]]

GOOD_HISTORY: Sequence[Seen] = (
    (D.PENDING, ()),
    (D.PLANNED, (S.NOT_STARTED_YET, S.NOT_STARTED_YET)),
    (D.RUNNING, (S.RUNNING, S.NOT_STARTED_YET)),
    (D.RUNNING, (S.FAILURE, S.RUNNING)),
    (D.ROLLING_BACK, (S.FAILURE, S.SUCCESS)),
    (D.FAILURE, (S.FAILURE, S.SUCCESS)),
    (D.FAILURE, (S.FAILURE, S.SUCCESS)),
)
BAD_HISTORIES: dict[str, tuple[Sequence[Seen], str]] = {
    "a late report of the start": (
        ((D.SUCCESS, ()), (D.RUNNING, ())),
        "deployment d went from SUCCESS to RUNNING",
    ),
    "a late plan": (
        ((D.RUNNING, ()), (D.PLANNED, ())),
        "deployment d went from RUNNING to PLANNED",
    ),
    "a completed one that ends again": (
        ((D.SUCCESS, ()), (D.CANCELLED, ())),
        "deployment d went from SUCCESS to CANCELLED",
    ),
    "a late report of a stage": (
        ((D.RUNNING, (S.SUCCESS,)), (D.RUNNING, (S.RUNNING,))),
        "stage 0 of d went from SUCCESS to RUNNING",
    ),
    "a completed stage that ends again": (
        ((D.RUNNING, (S.SUCCESS,)), (D.RUNNING, (S.FAILURE,))),
        "stage 0 of d went from SUCCESS to FAILURE",
    ),
    "a plan that wipes the statuses of stages": (
        ((D.RUNNING, (S.SUCCESS, S.RUNNING)), (D.RUNNING, (S.SUCCESS,))),
        "stage 1 of d, which was RUNNING, is gone",
    ),
    "a stage that was left behind": (
        ((D.FAILURE, (S.RUNNING,)),),
        "stage 0 of d is RUNNING although the deployment is FAILURE",
    ),
}


def deployment(status: DeploymentStatus, stages: Sequence[StageStatus] = ()) -> Deployment:
    return Deployment(
        id="d",
        application_name="cart",
        status=pb.DeploymentStatus.ValueType(status),
        stages=[
            PipelineStage(id=str(i), status=pb.StageStatus.ValueType(each))
            for i, each in enumerate(stages)
        ],
    )


def violations(history: Sequence[Seen]) -> list[str]:
    seen = StatusHistory()
    return [wrong for moment in history for wrong in seen.observe(deployment(*moment))]


def test_statuses_that_only_go_forward_are_no_violation() -> None:
    assert violations(GOOD_HISTORY) == []


@pytest.mark.parametrize(("history", "violation"), BAD_HISTORIES.values(), ids=BAD_HISTORIES)
def test_a_status_that_goes_back_is_a_violation(history: Sequence[Seen], violation: str) -> None:
    assert violations(history) == [violation]


@pytest.mark.parametrize("status", [status for status in D if not status.is_completed])
def test_a_deployment_that_is_not_completed_is_left_over(status: DeploymentStatus) -> None:
    left = f"deployment d of cart is {status.name}"
    assert not_completed([deployment(status), deployment(D.SUCCESS)]) == [left]


@dataclass(frozen=True)
class Ending:
    """How the runs of an application ended, with the head commit `new`, which `copy` equals."""

    runs: Sequence[tuple[str, float, float]]
    status: DeploymentStatus
    wrong: str = ""


ENDINGS: dict[str, Ending] = {
    "the head runs last": Ending([("old", 1, 2), ("new", 3, 4)], D.SUCCESS),
    "a commit with the same content runs last": Ending([("copy", 3, 4)], D.SUCCESS),
    "a run of the head is interrupted and repeated": Ending(
        [("new", 3, 0), ("new", 5, 6)], D.SUCCESS
    ),
    "nothing runs": Ending([], D.SUCCESS, "cart never ran"),
    "an older commit runs after the head": Ending(
        [("new", 1, 2), ("old", 3, 4)],
        D.SUCCESS,
        "the last run of cart is that of old, not of the head commit",
    ),
    "an older commit begins last but ends first": Ending(
        [("new", 1, 9), ("old", 3, 4)],
        D.SUCCESS,
        "the last run of cart is that of old, not of the head commit",
    ),
    "the head is not deployed": Ending(
        [("old", 1, 2)], D.SUCCESS, "the last run of cart is that of old, not of the head commit"
    ),
    "a run of the head is interrupted": Ending(
        [("new", 3, 0)], D.SUCCESS, "the last run of cart has not ended"
    ),
    "the deployment of the head fails": Ending(
        [("new", 3, 4)], D.FAILURE, "d, the last deployment of cart, is FAILURE"
    ),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_the_last_run_has_to_be_a_successful_one_of_the_head(ending: Ending) -> None:
    runs = [Run("cart", "d", commit, "1", *times) for commit, *times in ending.runs]
    runs.append(Run("shop", "other", "new", "1", 8, 9))
    contents = {"HEAD": "2", "new": "2", "copy": "2", "old": "1"}
    wrong = not_at_head(["cart"], runs, [deployment(ending.status)], lambda c, _: contents[c])
    assert wrong == ([ending.wrong] if ending.wrong else [])


def test_a_run_of_a_deployment_that_the_control_plane_has_lost_is_a_violation() -> None:
    run = Run("cart", "lost", "new", "1", 1, 2)
    wrong = not_at_head(["cart"], [run], [deployment(D.SUCCESS)], lambda *_: "2")
    assert wrong == ["lost, the last deployment of cart, is unknown"]


# What is left at each poll, the last one for ever; and what the check returns in the end.
POLLS: dict[str, tuple[Sequence[list[str]], list[str]]] = {
    "settled at once": ([[]], []),
    "settled after a while": ([["d is RUNNING"], ["d is RUNNING"], []], []),
    "stuck": ([["d is RUNNING"], ["d is PENDING"]], ["d is PENDING"]),
    "a late deployment after the end": (
        [[], ["d is RUNNING"], []],
        ["after everything had settled: d is RUNNING"],
    ),
}


@pytest.mark.parametrize(("polls", "left"), POLLS.values(), ids=POLLS)
async def test_what_is_left_after_the_time_for_healing_is_a_violation(
    polls: Sequence[list[str]], left: list[str]
) -> None:
    remaining = list(polls)

    async def unsettled() -> list[str]:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    _, result = await wait_until_settled(unsettled, within=0.1, stays=0.05, pause=0.01)
    assert result == left
