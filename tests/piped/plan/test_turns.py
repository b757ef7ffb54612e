# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is, who gives way to whom, and what the others wait for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.deployment import IN_CHAIN, DeploymentStatus, SyncStrategy
from pipecd.piped.plan.turns import next_turns, superseded, waits_for
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger


def waiting(id: str, application: str, status: DeploymentStatus, commit: int, at: int) -> Deployment:  # fmt: skip
    return Deployment(
        id=id,
        application_id=application,
        status=int(status),  # type: ignore[arg-type]
        trigger=DeploymentTrigger(commit=Commit(created_at=commit), timestamp=at),
    )


PENDING, PLANNED, RUNNING, ROLLING_BACK, DONE = (
    DeploymentStatus.PENDING,
    DeploymentStatus.PLANNED,
    DeploymentStatus.RUNNING,
    DeploymentStatus.ROLLING_BACK,
    DeploymentStatus.SUCCESS,
)


@pytest.mark.parametrize(
    ("deployments", "turns"),
    [
        pytest.param([waiting("b", "x", PENDING, 2, 1), waiting("a", "x", PENDING, 1, 9)], ["a"], id="the older commit"),
        pytest.param([waiting("b", "x", PENDING, 1, 2), waiting("a", "x", PENDING, 1, 1)], ["a"], id="the older trigger of the same commit"),
        pytest.param([waiting("b", "x", PENDING, 1, 1), waiting("a", "x", RUNNING, 9, 9)], ["a"], id="what has begun comes before what is older"),
        pytest.param([waiting("b", "x", PENDING, 1, 1), waiting("a", "x", PLANNED, 9, 9)], ["a"], id="what is planned too"),
        pytest.param([waiting("a", "x", ROLLING_BACK, 9, 9), waiting("b", "x", PLANNED, 1, 1)], ["a"], id="a rollback is finished first"),
        pytest.param([waiting("a", "x", PENDING, 1, 1), waiting("b", "y", PENDING, 2, 2)], ["a", "b"], id="applications do not wait for each other"),
        pytest.param([waiting("a", "busy", PENDING, 1, 1)], [], id="a busy application"),
        pytest.param([waiting("over", "x", RUNNING, 1, 1), waiting("b", "x", PENDING, 2, 2)], ["b"], id="a deployment that is over here and not there"),
        pytest.param([waiting("a", "x", DONE, 1, 1)], [], id="a completed deployment"),
    ],
)  # fmt: skip
def test_whose_turn_it_is(deployments: list[Deployment], turns: list[str]) -> None:
    found = next_turns(deployments, busy={"busy"}, settled={"over"})
    assert [deployment.id for deployment in found] == turns


STATUSES = st.sampled_from([PENDING, PLANNED, RUNNING, ROLLING_BACK, DONE])


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), STATUSES, st.integers(0, 3), st.integers(0, 3)),
        max_size=12,
    )
)
def test_one_deployment_per_application_and_none_forgotten(rows: list[tuple[str, DeploymentStatus, int, int]]) -> None:  # fmt: skip
    listed = [waiting(str(n), *row) for n, row in enumerate(rows)]
    turns = next_turns(listed, busy=(), settled=())
    applications = [deployment.application_id for deployment in turns]
    assert sorted(applications) == sorted({a for a, status, _, _ in rows if status is not DONE})


def pending(id: str, at: int, commit: str = "", **facts: Any) -> Deployment:
    trigger = DeploymentTrigger(
        commit=Commit(hash=commit or id),
        timestamp=at,
        commander=facts.pop("commander", ""),
        sync_strategy=facts.pop("strategy", SyncStrategy.AUTO),
        strategy_summary=facts.pop("summary", ""),
    )
    application: str = facts.pop("application_id", "x")
    return Deployment(id=id, application_id=application, trigger=trigger, **facts)


@pytest.mark.parametrize(
    ("deployments", "given_up"),
    [
        pytest.param([pending("a", 1), pending("b", 2), pending("c", 3)], {"a": "c", "b": "c"}, id="only the latest commit is worth deploying"),
        pytest.param([pending("b", 2), pending("a", 1)], {"a": "b"}, id="in whatever order they are listed"),
        pytest.param([pending("a", 1), pending("b", 1)], {}, id="two of the same second stay, as nobody knows"),
        pytest.param([pending("a", 1, "same"), pending("b", 2, "same")], {}, id="the same commit twice was wanted twice"),
        pytest.param([pending("a", 1, commander="ann"), pending("b", 2)], {}, id="what a person asked for stays"),
        pytest.param([pending("a", 1), pending("b", 2, commander="ann")], {"a": "b"}, id="and others give way to it"),
        pytest.param([pending("a", 1, strategy=SyncStrategy.QUICK_SYNC), pending("b", 2)], {}, id="a chosen strategy stays"),
        pytest.param([pending("a", 1, deployment_chain_id="c"), pending("b", 2)], {}, id="a chain needs each of its deployments"),
        pytest.param([pending("a", 1), pending("b", 2, commander="c", summary=IN_CHAIN, deployment_chain_id="c", deployment_chain_block_index=1)], {}, id="one that waits for its chain may never come"),
        pytest.param([pending("a", 1), pending("b", 2, commander="c", summary=IN_CHAIN, deployment_chain_id="d")], {}, id="nor may one that a chain asked to begin another"),
        pytest.param([pending("a", 1), pending("b", 2, deployment_chain_id="c")], {"a": "b"}, id="the first of a chain comes for sure"),
        pytest.param([pending("a", 1, status=1), pending("b", 2)], {}, id="what is planned has begun"),
        pytest.param([pending("settled", 1), pending("b", 2)], {}, id="what is at work or over is left alone"),
        pytest.param([pending("a", 1), pending("settled", 2)], {}, id="and nobody gives way to it"),
        pytest.param([pending("a", 1), pending("b", 2, application_id="y")], {}, id="applications are strangers"),
    ],
)  # fmt: skip
def test_who_gives_way(deployments: list[Deployment], given_up: dict[str, str]) -> None:
    found = superseded(deployments, settled={"settled"})
    assert {id: later.id for id, later in found.items()} == given_up


def test_what_waits_is_told_for_what() -> None:
    listed = [pending("a", 1), pending("b", 2), pending("c", 3, status=1)]
    assert waits_for(listed, {"x": "a"}) == {
        "b": "Waiting for deployment a of the same application to end"
    }
    assert waits_for(listed, {"y": "z"}) == {}
