# SPDX-License-Identifier: Apache-2.0
"""Which deployment runs next, which ones are superseded, and what the others wait for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.deployment import IN_CHAIN, DeploymentStatus, SyncStrategy
from pipecd.piped.plan.queue import next_deployments, superseded, waiting_reasons
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger


def queued(id: str, application: str, status: DeploymentStatus, commit: int, at: int) -> Deployment:  # fmt: skip
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
    ("deployments", "expected"),
    [
        pytest.param([queued("a", "x", PENDING, 2, 9), queued("b", "x", PENDING, 1, 1)], ["a"], id="the one that was triggered first, whatever commits and clocks say"),
        pytest.param([queued("b", "x", PENDING, 1, 1), queued("a", "x", RUNNING, 9, 9)], ["a"], id="a started deployment comes before an older one"),
        pytest.param([queued("b", "x", PENDING, 1, 1), queued("a", "x", PLANNED, 9, 9)], ["a"], id="so does a planned one"),
        pytest.param([queued("a", "x", ROLLING_BACK, 9, 9), queued("b", "x", PLANNED, 1, 1)], ["a"], id="a rollback is finished first"),
        pytest.param([queued("a", "x", PENDING, 1, 1), queued("b", "y", PENDING, 2, 2)], ["a", "b"], id="applications do not wait for each other"),
        pytest.param([queued("a", "busy", PENDING, 1, 1)], [], id="a busy application"),
        pytest.param([queued("over", "x", RUNNING, 1, 1), queued("b", "x", PENDING, 2, 2)], ["b"], id="a completed deployment that is still listed"),
        pytest.param([queued("a", "x", DONE, 1, 1)], [], id="a completed deployment"),
        pytest.param([queued("cancelling", "x", RUNNING, 1, 1), queued("b", "x", PENDING, 2, 2)], [], id="a started deployment that is being cancelled keeps its application busy"),
        pytest.param([queued("cancelling", "x", PENDING, 1, 1), queued("b", "x", PENDING, 2, 2)], ["b"], id="a pending one that is being cancelled does not"),
    ],
)  # fmt: skip
def test_which_deployment_is_next(deployments: list[Deployment], expected: list[str]) -> None:
    result = next_deployments(
        deployments, busy={"busy"}, completed={"over"}, unavailable={"cancelling"}
    )
    assert [deployment.id for deployment in result] == expected


STATUSES = st.sampled_from([PENDING, PLANNED, RUNNING, ROLLING_BACK, DONE])


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), STATUSES, st.integers(0, 3), st.integers(0, 3)),
        max_size=12,
    )
)
def test_every_application_with_open_deployments_has_one_next(rows: list[tuple[str, DeploymentStatus, int, int]]) -> None:  # fmt: skip
    listed = [queued(str(n), *row) for n, row in enumerate(rows)]
    queue = next_deployments(listed, busy=(), completed=(), unavailable=())
    applications = [deployment.application_id for deployment in queue]
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
    ("deployments", "expected"),
    [
        pytest.param([pending("a", 1), pending("b", 2), pending("c", 3)], {"a": "c", "b": "c"}, id="only the latest commit is deployed"),
        pytest.param([pending("b", 2), pending("a", 1)], {"b": "a"}, id="whatever the clock said"),
        pytest.param([pending("a", 1, "same"), pending("b", 2, "same")], {}, id="the same commit is never superseded"),
        pytest.param([pending("a", 1, commander="ann"), pending("b", 2)], {}, id="a requested deployment stays"),
        pytest.param([pending("a", 1), pending("b", 2, commander="ann")], {"a": "b"}, id="and supersedes others"),
        pytest.param([pending("a", 1, strategy=SyncStrategy.QUICK_SYNC), pending("b", 2)], {}, id="a chosen strategy stays"),
        pytest.param([pending("a", 1, deployment_chain_id="c"), pending("b", 2)], {}, id="a chain needs each of its deployments"),
        pytest.param([pending("a", 1), pending("b", 2, commander="c", summary=IN_CHAIN, deployment_chain_id="c", deployment_chain_block_index=1)], {}, id="a deployment that waits for its chain supersedes none"),
        pytest.param([pending("a", 1), pending("b", 2, commander="c", summary=IN_CHAIN, deployment_chain_id="d")], {}, id="nor does one that starts another chain on request of a chain"),
        pytest.param([pending("a", 1), pending("b", 2, deployment_chain_id="c")], {"a": "b"}, id="the first deployment of a chain supersedes others"),
        pytest.param([pending("a", 1, status=1), pending("b", 2)], {}, id="a planned deployment stays"),
        pytest.param([pending("completed", 1), pending("b", 2)], {}, id="a completed deployment is left alone"),
        pytest.param([pending("a", 1), pending("completed", 2)], {}, id="and supersedes none"),
        pytest.param([pending("a", 1), pending("b", 2, application_id="y")], {}, id="applications have separate queues"),
    ],
)  # fmt: skip
def test_superseded_deployments(deployments: list[Deployment], expected: dict[str, str]) -> None:
    result = superseded(deployments, completed={"completed"})
    assert {id: later.id for id, later in result.items()} == expected


def test_a_pending_deployment_says_what_it_waits_for() -> None:
    listed = [pending("a", 1), pending("b", 2), pending("c", 3, status=1)]
    assert waiting_reasons(listed, {"x": "a"}) == {
        "b": "Waiting for deployment a of the same application to end"
    }
    assert waiting_reasons(listed, {"y": "z"}) == {}
