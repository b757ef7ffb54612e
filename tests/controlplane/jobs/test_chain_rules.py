# SPDX-License-Identifier: Apache-2.0
"""How a chain follows from its deployments."""

import pytest

from pipecd.controlplane.jobs.chain_rules import advance, is_settled
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


def short(one: pb.DeploymentChain) -> tuple[str, list[str]]:
    blocks = [pb.ChainBlockStatus.Name(block.status).rpartition("_")[2] for block in one.blocks]
    return pb.ChainStatus.Name(one.status).rpartition("_")[2], blocks


@pytest.mark.parametrize(
    ("blocks", "states", "outcome"),
    [
        pytest.param(("a", "b"), [], ("PENDING", ["PENDING", "PENDING"]), id="nothing has begun"),
        pytest.param(
            ("a", "b"),
            [("a", 0, Status.PLANNED), ("b", 1, Status.PENDING)],
            ("PENDING", ["PENDING", "PENDING"]),
            id="a plan is no beginning",
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
            id="a block has begun when one of its deployments has ended",
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
            id="a failure cancels the rest",
        ),
        pytest.param(
            ("ab", "c"),
            [("a", 0, Status.CANCELLED), ("b", 0, Status.FAILURE)],
            ("FAILURE", ["FAILURE", "CANCELLED"]),
            id="a failure outweighs a cancellation",
        ),
        pytest.param(
            ("a", "b"),
            [("a", 0, Status.CANCELLED)],
            ("CANCELLED", ["CANCELLED", "CANCELLED"]),
            id="a cancellation cancels the rest",
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
    outcome: tuple[str, list[str]],
) -> None:
    one = chain(*blocks)
    advance(one, deployments(*states), NOW)
    assert short(one) == outcome
    # Doing it again changes nothing.
    again = pb.DeploymentChain()
    again.CopyFrom(one)
    advance(again, deployments(*states), NOW + 50)
    assert again == one


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        pytest.param(
            [("a", 0, Status.RUNNING)],
            ("RUNNING", ["RUNNING", "PENDING", "PENDING"]),
            id="a block is not given up before its turn",
        ),
        pytest.param(
            [("a", 0, Status.SUCCESS)],
            ("CANCELLED", ["SUCCESS", "CANCELLED", "CANCELLED"]),
            id="a block is given up in its turn, and with it what comes after",
        ),
        pytest.param(
            [("a", 0, Status.SUCCESS), ("b", 1, Status.RUNNING)],
            ("RUNNING", ["SUCCESS", "RUNNING", "PENDING"]),
            id="a deployment that came after all counts",
        ),
    ],
)
def test_with_an_application_that_nobody_will_deploy(
    states: list[tuple[str, int, Status]], outcome: tuple[str, list[str]]
) -> None:
    one = chain("a", "b", "c")
    advance(one, deployments(*states), NOW, {(1, "b")})
    assert short(one) == outcome


def test_nodes_show_their_deployments() -> None:
    one = chain("a", "b")
    advance(one, deployments(("a", 0, Status.RUNNING)), NOW)
    assert one.blocks[0].nodes[0].deployment_ref == pb.ChainDeploymentRef(
        deployment_id="a0",
        status=2,  # pyright: ignore[reportArgumentType]
        status_reason="running",
    )
    assert not one.blocks[1].nodes[0].HasField("deployment_ref")


def test_an_application_may_occur_in_two_blocks() -> None:
    one = chain("a", "a")
    advance(one, deployments(("a", 0, Status.SUCCESS), ("a", 1, Status.RUNNING)), NOW)
    refs = [block.nodes[0].deployment_ref.deployment_id for block in one.blocks]
    assert refs == ["a0", "a1"]


def test_a_node_keeps_its_deployment_when_another_one_appears() -> None:
    one = chain("a")
    advance(one, deployments(("a", 0, Status.RUNNING)), NOW)
    second = deployments(("a", 0, Status.FAILURE))[0]
    second.id = "another"
    advance(one, [second, *deployments(("a", 0, Status.SUCCESS))], NOW)
    assert one.blocks[0].nodes[0].deployment_ref.deployment_id == "a0"
    assert short(one) == ("SUCCESS", ["SUCCESS"])


def test_what_has_ended_stays_but_its_nodes_go_on() -> None:
    one = chain("ab", "c")
    advance(one, deployments(("a", 0, Status.FAILURE), ("b", 0, Status.RUNNING)), NOW)
    assert not is_settled(one)
    later = deployments(
        ("a", 0, Status.FAILURE), ("b", 0, Status.SUCCESS), ("c", 1, Status.CANCELLED)
    )
    advance(one, later, NOW + 9)
    assert short(one) == ("FAILURE", ["FAILURE", "CANCELLED"])
    assert one.blocks[0].nodes[1].deployment_ref.status == Status.SUCCESS
    assert (one.completed_at, one.blocks[0].completed_at) == (NOW, NOW)
    assert is_settled(one)


def test_times_of_a_block() -> None:
    one = chain("a", "b")
    advance(one, deployments(("a", 0, Status.RUNNING)), NOW)
    advance(one, deployments(("a", 0, Status.FAILURE)), NOW + 5)
    first, second = one.blocks
    assert (first.started_at, first.completed_at) == (NOW, NOW + 5)
    # A block that never began has an end, but no beginning.
    assert (second.started_at, second.completed_at) == (0, NOW + 5)


def test_an_open_chain_is_not_settled() -> None:
    one = chain("a")
    advance(one, [], NOW)
    assert not is_settled(one)
