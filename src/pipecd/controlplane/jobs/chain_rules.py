# SPDX-License-Identifier: Apache-2.0
"""How a chain follows from its deployments: pure rules over its message.

A node shows its deployment. A block follows from its nodes, and the chain from its blocks. What has
ended stays as it is. Once a block did not succeed, the blocks after it are cancelled. A block is
cancelled as well when it would begin and one of its applications will never be deployed.
"""

from collections.abc import Collection, Mapping, Sequence

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.chain_pb2 import ChainBlock, ChainNode, DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment

ENDED = frozenset(
    {
        pb.DEPLOYMENT_BLOCK_SUCCESS,
        pb.DEPLOYMENT_BLOCK_FAILURE,
        pb.DEPLOYMENT_BLOCK_CANCELLED,
    }
)
_CHAIN_ENDED = frozenset(
    {
        pb.DEPLOYMENT_CHAIN_SUCCESS,
        pb.DEPLOYMENT_CHAIN_FAILURE,
        pb.DEPLOYMENT_CHAIN_CANCELLED,
    }
)
# Which of the nodes or blocks decides, the first first. Something that has begun stays begun, also
# when a change was so quick that nobody saw it run.
_BLOCK_WHEN = {
    pb.DEPLOYMENT_BLOCK_FAILURE: {DeploymentStatus.FAILURE},
    pb.DEPLOYMENT_BLOCK_CANCELLED: {DeploymentStatus.CANCELLED},
    pb.DEPLOYMENT_BLOCK_RUNNING: {
        DeploymentStatus.RUNNING,
        DeploymentStatus.ROLLING_BACK,
        DeploymentStatus.SUCCESS,
    },
}
_CHAIN_WHEN = {
    pb.DEPLOYMENT_CHAIN_FAILURE: {pb.DEPLOYMENT_BLOCK_FAILURE},
    pb.DEPLOYMENT_CHAIN_CANCELLED: {pb.DEPLOYMENT_BLOCK_CANCELLED},
    pb.DEPLOYMENT_CHAIN_RUNNING: {pb.DEPLOYMENT_BLOCK_RUNNING, pb.DEPLOYMENT_BLOCK_SUCCESS},
}


# An application in a block, by the position of the block and the id of the application.
Place = tuple[int, str]


def advance(
    chain: DeploymentChain,
    deployments: Sequence[Deployment],
    now: int,
    hopeless: Collection[Place] = (),
) -> None:
    """Brings the chain up to date with its deployments, which come oldest first.

    Some may belong to a chain that they began themselves and only be shown in this one.
    Nobody will ever deploy what is `hopeless`.
    """
    is_open, known = True, {deployment.id: deployment for deployment in deployments}
    for index, block in enumerate(chain.blocks):
        here = chain.id, index
        own = [d for d in known.values() if _place(d) == here]
        _show(block, known, own)
        if block.status not in ENDED:
            waits_in_vain = is_open and any(place in hopeless for place in unmet(index, block))
            is_lost = waits_in_vain or _is_lost(chain, index)
            _settle(block, may_begin=is_open, is_lost=is_lost, now=now)
        is_open = is_open and block.status == pb.DEPLOYMENT_BLOCK_SUCCESS
    if chain.status not in _CHAIN_ENDED:
        chain.status = chain_status(chain)
        if chain.status in _CHAIN_ENDED:
            chain.completed_at = now


def unmet(index: int, block: ChainBlock) -> tuple[Place, ...]:
    """The applications of a block that nobody has begun to deploy."""
    return tuple(
        (index, node.application_ref.application_id)
        for node in block.nodes
        if not node.HasField("deployment_ref")
    )


def is_settled(chain: DeploymentChain) -> bool:
    """Whether nothing can change any more: the chain has ended and so have its deployments."""
    return chain.status in _CHAIN_ENDED and all(
        DeploymentStatus(node.deployment_ref.status).is_completed
        for block in chain.blocks
        for node in block.nodes
        if node.HasField("deployment_ref")
    )


def block_status(block: ChainBlock) -> pb.ChainBlockStatus.ValueType:
    """What the nodes of a block make of it."""
    statuses = {_status(node) for node in block.nodes}
    if statuses <= {DeploymentStatus.SUCCESS}:
        return pb.DEPLOYMENT_BLOCK_SUCCESS
    return next((mine for mine, its in _BLOCK_WHEN.items() if its & statuses), block.status)


def chain_status(chain: DeploymentChain) -> pb.ChainStatus.ValueType:
    """What the blocks of a chain make of it."""
    statuses = {block.status for block in chain.blocks}
    if statuses <= {pb.DEPLOYMENT_BLOCK_SUCCESS}:
        return pb.DEPLOYMENT_CHAIN_SUCCESS
    return next((mine for mine, its in _CHAIN_WHEN.items() if its & statuses), chain.status)


def _place(deployment: Deployment) -> tuple[str, int]:
    return deployment.deployment_chain_id, deployment.deployment_chain_block_index


def _show(block: ChainBlock, known: Mapping[str, Deployment], own: Sequence[Deployment]) -> None:
    """Attaches its own deployments to the nodes and copies how those stand that nodes have."""
    taken = {node.deployment_ref.deployment_id for node in block.nodes}
    for node in block.nodes:
        found = known.get(node.deployment_ref.deployment_id)
        if not node.HasField("deployment_ref"):
            application = node.application_ref.application_id
            free = (d for d in own if d.application_id == application)
            found = next((d for d in free if d.id not in taken), None)
        if found is None:
            continue
        taken.add(found.id)
        node.deployment_ref.deployment_id = found.id
        node.deployment_ref.status = found.status
        node.deployment_ref.status_reason = found.status_reason


def _settle(block: ChainBlock, *, may_begin: bool, is_lost: bool, now: int) -> None:
    if is_lost:
        block.status = pb.DEPLOYMENT_BLOCK_CANCELLED
    # A block without applications succeeds as soon as it is its turn.
    elif block.nodes or may_begin:
        block.status = block_status(block)
    if block.status != pb.DEPLOYMENT_BLOCK_PENDING and not is_lost:
        block.started_at = block.started_at or now
    if block.status in ENDED:
        block.completed_at = now


def _is_lost(chain: DeploymentChain, index: int) -> bool:
    """Whether the block can never begin, because one before it did not succeed."""
    lost = (pb.DEPLOYMENT_BLOCK_FAILURE, pb.DEPLOYMENT_BLOCK_CANCELLED)
    return any(block.status in lost for block in chain.blocks[:index])


def _status(node: ChainNode) -> DeploymentStatus | None:
    if not node.HasField("deployment_ref"):
        return None
    return DeploymentStatus(node.deployment_ref.status)
