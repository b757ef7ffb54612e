# SPDX-License-Identifier: Apache-2.0
"""The status of a deployment chain follows from its deployments."""

import pytest

from pipecd.controlplane.jobs.chain_rules import is_final, update_chain
from pipecd.model.deployment import DeploymentStatus as Status
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment

NOW = 100


def chain(*blocks: str) -> pb.DeploymentChain:
    """A chain of blocks; each letter is an application."""
    return pb.DeploymentChain(
        id="c",
        blocks=[
            pb.ChainBlock(
                nodes=[
                    pb.ChainNode(application_ref=pb.ChainApplicationRef(application_id=name))
                    for name in block
                ]
            )
            for block in blocks
        ],
    )


def deployments(*states: tuple[str, int, Status]) -> list[Deployment]:
    """Deployments by application, block and status."""
    return [
        Deployment(
            id=f"{application}{block}",
            application_id=application,
            deployment_chain_id="c",
            deployment_chain_block_index=block,
            status=int(status),  # pyright: ignore[reportArgumentType]
            status_reason=status.name.lower(),
        )
        for application, block, status in states
    ]


def statuses(one: pb.DeploymentChain) -> tuple[str, list[str]]:
    blocks = [pb.ChainBlockStatus.Name(block.status).rpartition("_")[2] for block in one.blocks]
    return pb.ChainStatus.Name(one.status).rpartition("_")[2], blocks


@pytest.mark.parametrize(
    ("blocks", "states", "expected"),
    [
        pytest.param(("a", "b"), [], ("PENDING", ["PENDING", "PENDING"]), id="nothing has started"),
        pytest.param(
            ("a", "b"),
            [("a", 0, Status.PLANNED), ("b", 1, Status.PENDING)],
            ("PENDING", ["PENDING", "PENDING"]),
            id="a planned deployment has not started",
        ),
        pytest.param(
            ("a", "b"),
            [("a", 0, Status.RUNNING)],
            ("RUNNING", ["RUNNING", "PENDING"]),
            id="a block runs when one of its deployments does",
        ),
        pytest.param(
            ("ab", "c"),
            [("a", 0, Status.SUCCESS), ("b", 0, Status.RUNNING)],
            ("RUNNING", ["RUNNING", "PENDING"]),
            id="a block waits for all of its deployments",
        ),
        pytest.param(
            ("ab", "c"),
            [("a", 0, Status.SUCCESS), ("b", 0, Status.PENDING)],
            ("RUNNING", ["RUNNING", "PENDING"]),
            id="a block runs when one of its deployments has succeeded",
        ),
        pytest.param(
            ("ab", "c"),
            [("a", 0, Status.SUCCESS), ("b", 0, Status.SUCCESS), ("c", 1, Status.PENDING)],
            ("RUNNING", ["SUCCESS", "PENDING"]),
            id="a block succeeds when all of its deployments did",
        ),
        pytest.param(
            ("a", "b"),
            [("a", 0, Status.SUCCESS), ("b", 1, Status.SUCCESS)],
            ("SUCCESS", ["SUCCESS", "SUCCESS"]),
            id="a chain succeeds when all of its blocks did",
        ),
        pytest.param(
            ("ab", "c", "d"),
            [("a", 0, Status.FAILURE), ("b", 0, Status.RUNNING), ("c", 1, Status.PENDING)],
            ("FAILURE", ["FAILURE", "CANCELLED", "CANCELLED"]),
            id="a failure cancels the later blocks",
        ),
        pytest.param(
            ("ab", "c"),
            [("a", 0, Status.CANCELLED), ("b", 0, Status.FAILURE)],
            ("FAILURE", ["FAILURE", "CANCELLED"]),
            id="a failure wins over a cancellation",
        ),
        pytest.param(
            ("a", "b"),
            [("a", 0, Status.CANCELLED)],
            ("CANCELLED", ["CANCELLED", "CANCELLED"]),
            id="a cancellation cancels the later blocks",
        ),
        pytest.param(
            ("a", "b"),
            [("a", 0, Status.ROLLING_BACK)],
            ("RUNNING", ["RUNNING", "PENDING"]),
            id="a rollback is still running",
        ),
        pytest.param(
            ("a", "", "b"),
            [("a", 0, Status.SUCCESS), ("b", 2, Status.RUNNING)],
            ("RUNNING", ["SUCCESS", "SUCCESS", "RUNNING"]),
            id="a block without applications succeeds in its turn",
        ),
        pytest.param(
            ("a", ""),
            [("a", 0, Status.RUNNING)],
            ("RUNNING", ["RUNNING", "PENDING"]),
            id="a block without applications waits for its turn",
        ),
    ],
)
def test_statuses(
    blocks: tuple[str, ...],
    states: list[tuple[str, int, Status]],
    expected: tuple[str, list[str]],
) -> None:
    one = chain(*blocks)
    update_chain(one, deployments(*states), NOW)
    assert statuses(one) == expected
    # A second update changes nothing.
    again = pb.DeploymentChain()
    again.CopyFrom(one)
    update_chain(again, deployments(*states), NOW + 50)
    assert again == one


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param(
            [("a", 0, Status.RUNNING)],
            ("RUNNING", ["RUNNING", "PENDING", "PENDING"]),
            id="a block is not cancelled before its turn",
        ),
        pytest.param(
            [("a", 0, Status.SUCCESS)],
            ("CANCELLED", ["SUCCESS", "CANCELLED", "CANCELLED"]),
            id="a block is cancelled in its turn, and with it the later blocks",
        ),
        pytest.param(
            [("a", 0, Status.SUCCESS), ("b", 1, Status.RUNNING)],
            ("RUNNING", ["SUCCESS", "RUNNING", "PENDING"]),
            id="a deployment created after all counts",
        ),
    ],
)
def test_an_abandoned_application(
    states: list[tuple[str, int, Status]], expected: tuple[str, list[str]]
) -> None:
    one = chain("a", "b", "c")
    update_chain(one, deployments(*states), NOW, {(1, "b")})
    assert statuses(one) == expected


def test_nodes_show_their_deployments() -> None:
    one = chain("a", "b")
    update_chain(one, deployments(("a", 0, Status.RUNNING)), NOW)
    assert one.blocks[0].nodes[0].deployment_ref == pb.ChainDeploymentRef(
        deployment_id="a0",
        status=2,  # pyright: ignore[reportArgumentType]
        status_reason="running",
    )
    assert not one.blocks[1].nodes[0].HasField("deployment_ref")


def test_an_application_may_occur_in_two_blocks() -> None:
    one = chain("a", "a")
    update_chain(one, deployments(("a", 0, Status.SUCCESS), ("a", 1, Status.RUNNING)), NOW)
    refs = [block.nodes[0].deployment_ref.deployment_id for block in one.blocks]
    assert refs == ["a0", "a1"]


def test_a_node_keeps_its_deployment_when_another_one_appears() -> None:
    one = chain("a")
    update_chain(one, deployments(("a", 0, Status.RUNNING)), NOW)
    second = deployments(("a", 0, Status.FAILURE))[0]
    second.id = "another"
    update_chain(one, [second, *deployments(("a", 0, Status.SUCCESS))], NOW)
    assert one.blocks[0].nodes[0].deployment_ref.deployment_id == "a0"
    assert statuses(one) == ("SUCCESS", ["SUCCESS"])


def test_a_completed_status_stays_but_nodes_are_updated() -> None:
    one = chain("ab", "c")
    update_chain(one, deployments(("a", 0, Status.FAILURE), ("b", 0, Status.RUNNING)), NOW)
    assert not is_final(one)
    later = deployments(
        ("a", 0, Status.FAILURE), ("b", 0, Status.SUCCESS), ("c", 1, Status.CANCELLED)
    )
    update_chain(one, later, NOW + 9)
    assert statuses(one) == ("FAILURE", ["FAILURE", "CANCELLED"])
    assert one.blocks[0].nodes[1].deployment_ref.status == Status.SUCCESS
    assert (one.completed_at, one.blocks[0].completed_at) == (NOW, NOW)
    assert is_final(one)


def test_times_of_a_block() -> None:
    one = chain("a", "b")
    update_chain(one, deployments(("a", 0, Status.RUNNING)), NOW)
    update_chain(one, deployments(("a", 0, Status.FAILURE)), NOW + 5)
    first, second = one.blocks
    assert (first.started_at, first.completed_at) == (NOW, NOW + 5)
    # A cancelled block that never started has only a completion time.
    assert (second.started_at, second.completed_at) == (0, NOW + 5)


def test_a_pending_chain_is_not_final() -> None:
    one = chain("a")
    update_chain(one, [], NOW)
    assert not is_final(one)
