# SPDX-License-Identifier: Apache-2.0
"""How the status of a deployment chain follows from its deployments: pure rules over its message.

A node shows the status of its deployment. The status of a block follows from its nodes, and that of
the chain from its blocks. A completed status does not change. Once a block did not succeed, the
blocks after it are cancelled. A block is also cancelled when its turn comes and one of its
applications will never be deployed.
"""

from collections.abc import Collection, Mapping, Sequence

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.chain_pb2 import ChainBlock, DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment

COMPLETED_BLOCKS = frozenset(
    {
        pb.DEPLOYMENT_BLOCK_SUCCESS,
        pb.DEPLOYMENT_BLOCK_FAILURE,
        pb.DEPLOYMENT_BLOCK_CANCELLED,
    }
)
_UNSUCCESSFUL_BLOCKS = (pb.DEPLOYMENT_BLOCK_FAILURE, pb.DEPLOYMENT_BLOCK_CANCELLED)
_COMPLETED_CHAINS = frozenset(
    {
        pb.DEPLOYMENT_CHAIN_SUCCESS,
        pb.DEPLOYMENT_CHAIN_FAILURE,
        pb.DEPLOYMENT_CHAIN_CANCELLED,
    }
)
# The first status of which any node or block has one of the statuses. A success means RUNNING here:
# a deployment may start and succeed between two updates of its chain.
_BLOCK_STATUS = {
    pb.DEPLOYMENT_BLOCK_FAILURE: {DeploymentStatus.FAILURE},
    pb.DEPLOYMENT_BLOCK_CANCELLED: {DeploymentStatus.CANCELLED},
    pb.DEPLOYMENT_BLOCK_RUNNING: {
        DeploymentStatus.RUNNING,
        DeploymentStatus.ROLLING_BACK,
        DeploymentStatus.SUCCESS,
    },
}
_CHAIN_STATUS = {
    pb.DEPLOYMENT_CHAIN_FAILURE: {pb.DEPLOYMENT_BLOCK_FAILURE},
    pb.DEPLOYMENT_CHAIN_CANCELLED: {pb.DEPLOYMENT_BLOCK_CANCELLED},
    pb.DEPLOYMENT_CHAIN_RUNNING: {pb.DEPLOYMENT_BLOCK_RUNNING, pb.DEPLOYMENT_BLOCK_SUCCESS},
}


# A node of a chain: the index of its block and the id of its application.
NodeKey = tuple[int, str]


def update_chain(
    chain: DeploymentChain,
    deployments: Sequence[Deployment],
    now: int,
    abandoned: Collection[NodeKey] = (),
) -> None:
    """Updates the chain from its deployments, which are sorted by creation.

    Some deployments may belong to a chain of their own and only be shown in this one.
    No piped will ever deploy the `abandoned` nodes.
    """
    by_id = {deployment.id: deployment for deployment in deployments}
    previous_succeeded = True
    for index, block in enumerate(chain.blocks):
        _update_nodes(block, index, chain.id, by_id)
        if block.status not in COMPLETED_BLOCKS:
            has_failed = any(b.status in _UNSUCCESSFUL_BLOCKS for b in chain.blocks[:index])
            undeployed = undeployed_nodes(index, block) if previous_succeeded else ()
            is_cancelled = has_failed or any(node in abandoned for node in undeployed)
            _update_block(block, is_next=previous_succeeded, is_cancelled=is_cancelled, now=now)
        previous_succeeded = previous_succeeded and block.status == pb.DEPLOYMENT_BLOCK_SUCCESS
    if chain.status not in _COMPLETED_CHAINS:
        chain.status = chain_status(chain)
        if chain.status in _COMPLETED_CHAINS:
            chain.completed_at = now


def undeployed_nodes(index: int, block: ChainBlock) -> tuple[NodeKey, ...]:
    """The nodes of a block that have no deployment yet."""
    return tuple(
        (index, node.application_ref.application_id)
        for node in block.nodes
        if not node.HasField("deployment_ref")
    )


def is_final(chain: DeploymentChain) -> bool:
    """Whether the chain and all its deployments are completed, so that nothing changes any more."""
    return chain.status in _COMPLETED_CHAINS and all(
        DeploymentStatus(node.deployment_ref.status).is_completed
        for block in chain.blocks
        for node in block.nodes
        if node.HasField("deployment_ref")
    )


def block_status(block: ChainBlock) -> pb.ChainBlockStatus.ValueType:
    """The status of a block, from its nodes."""
    statuses = {
        DeploymentStatus(node.deployment_ref.status) if node.HasField("deployment_ref") else None
        for node in block.nodes
    }
    if statuses <= {DeploymentStatus.SUCCESS}:
        return pb.DEPLOYMENT_BLOCK_SUCCESS
    return next(
        (status for status, any_of in _BLOCK_STATUS.items() if any_of & statuses), block.status
    )


def chain_status(chain: DeploymentChain) -> pb.ChainStatus.ValueType:
    """The status of a chain, from its blocks."""
    statuses = {block.status for block in chain.blocks}
    if statuses <= {pb.DEPLOYMENT_BLOCK_SUCCESS}:
        return pb.DEPLOYMENT_CHAIN_SUCCESS
    return next(
        (status for status, any_of in _CHAIN_STATUS.items() if any_of & statuses), chain.status
    )


def _update_nodes(
    block: ChainBlock, index: int, chain_id: str, deployments: Mapping[str, Deployment]
) -> None:
    """Assigns the deployments of the block to its nodes, and copies their statuses."""
    of_block = [
        deployment
        for deployment in deployments.values()
        if deployment.deployment_chain_id == chain_id
        and deployment.deployment_chain_block_index == index
    ]
    assigned = {node.deployment_ref.deployment_id for node in block.nodes}
    for node in block.nodes:
        if node.HasField("deployment_ref"):
            deployment = deployments.get(node.deployment_ref.deployment_id)
        else:
            application = node.application_ref.application_id
            matching = (d for d in of_block if d.application_id == application)
            deployment = next((d for d in matching if d.id not in assigned), None)
        if deployment is not None:
            assigned.add(deployment.id)
            node.deployment_ref.deployment_id = deployment.id
            node.deployment_ref.status = deployment.status
            node.deployment_ref.status_reason = deployment.status_reason


def _update_block(block: ChainBlock, *, is_next: bool, is_cancelled: bool, now: int) -> None:
    if is_cancelled:
        block.status = pb.DEPLOYMENT_BLOCK_CANCELLED
    # A block without applications succeeds as soon as it is next.
    elif block.nodes or is_next:
        block.status = block_status(block)
    if block.status != pb.DEPLOYMENT_BLOCK_PENDING and not is_cancelled:
        block.started_at = block.started_at or now
    if block.status in COMPLETED_BLOCKS:
        block.completed_at = now
