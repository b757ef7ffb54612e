# SPDX-License-Identifier: Apache-2.0
"""The page of a deployment chain in words."""

from datetime import datetime

import pytest

from pipecd.controlplane.console.chains_view import chain_page
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model import deployment_pb2 as deployment_pb
from pipecd.proto.model.chain_pb2 import ChainBlock, ChainNode, DeploymentChain

PENDING, RUNNING, SUCCESS, FAILURE, CANCELLED = range(5)
DEPLOYMENT_STATUSES = {
    RUNNING: deployment_pb.DEPLOYMENT_RUNNING,
    SUCCESS: deployment_pb.DEPLOYMENT_SUCCESS,
    FAILURE: deployment_pb.DEPLOYMENT_FAILURE,
    CANCELLED: deployment_pb.DEPLOYMENT_CANCELLED,
}


def block(status: int, *names: str, reason: str = "") -> ChainBlock:
    nodes: list[ChainNode] = []
    for name in names:
        node = ChainNode(
            application_ref=pb.ChainApplicationRef(
                application_id=f"a-{name}", application_name=name
            )
        )
        if status in DEPLOYMENT_STATUSES:
            node.deployment_ref.deployment_id = f"d-{name}"
            node.deployment_ref.status = DEPLOYMENT_STATUSES[status]
            node.deployment_ref.status_reason = reason
        nodes.append(node)
    ended = status in (SUCCESS, FAILURE)
    return ChainBlock(
        nodes=nodes,
        status=pb.ChainBlockStatus.ValueType(status),
        started_at=100 if status in (RUNNING, SUCCESS, FAILURE) else 0,
        completed_at=160 if ended else 0,
    )


def chain(status: int, *blocks: ChainBlock) -> DeploymentChain:
    return DeploymentChain(
        id="c1",
        status=pb.ChainStatus.ValueType(status),
        blocks=blocks,
        created_at=100,
        completed_at=300 if status > RUNNING else 0,
    )


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        pytest.param(
            chain(PENDING, block(PENDING, "cart"), block(PENDING, "shop")),
            "The first block has not started yet.",
            id="nothing has begun",
        ),
        pytest.param(
            chain(RUNNING, block(SUCCESS, "cart"), block(PENDING, "shop"), block(PENDING, "web")),
            "Block 2 of 3 starts next; 1 block after it waits.",
            id="between two blocks",
        ),
        pytest.param(
            chain(RUNNING, block(SUCCESS, "cart"), block(RUNNING, "shop"), block(PENDING, "front")),
            "Block 2 of 3 is in progress; 1 block after it waits.",
            id="it names the block in progress and those that wait",
        ),
        pytest.param(
            chain(RUNNING, block(SUCCESS, "cart"), block(RUNNING, "shop")),
            "Block 2 of 2 is in progress.",
            id="nothing waits for the last block",
        ),
        pytest.param(
            chain(SUCCESS, block(SUCCESS, "cart"), block(SUCCESS, "shop")),
            "All of its 2 blocks succeeded.",
            id="success",
        ),
        pytest.param(
            chain(
                FAILURE,
                block(SUCCESS, "cart"),
                block(FAILURE, "shop", reason="stage X failed"),
                block(CANCELLED, "front"),
            ),
            "Block 2 failed because of shop: stage X failed. 1 block after it did not start.",
            id="a failure names the application, its reason, and what was not deployed",
        ),
        pytest.param(
            chain(CANCELLED, block(CANCELLED, "cart")),
            "The chain was cancelled.",
            id="cancelled before it began",
        ),
    ],
)
def test_one_sentence_says_where_a_chain_is(
    shown: DeploymentChain, text: str, noon: datetime
) -> None:
    assert chain_page(shown, noon).text == text


def test_an_application_without_a_deployment_has_the_status_of_its_block(noon: datetime) -> None:
    page = chain_page(chain(RUNNING, block(SUCCESS, "cart"), block(PENDING, "shop")), noon)
    waiting = page.blocks[1].nodes[0]
    assert (waiting.deployment_id, waiting.badge.text) == ("", "Pending")
    assert page.succeeded == 1


def test_many_applications_of_a_block_are_shortened(noon: datetime) -> None:
    names = ("a", "b", "c", "d", "e")
    assert chain_page(chain(PENDING, block(PENDING, *names)), noon).name == "a, b, c and 2 more"


def test_a_block_that_never_ran_has_no_duration(noon: datetime) -> None:
    page = chain_page(chain(FAILURE, block(FAILURE, "cart"), block(CANCELLED, "shop")), noon)
    assert page.blocks[0].elapsed
    assert page.blocks[0].elapsed.text == "1m 00s"
    assert page.blocks[1].elapsed is None
