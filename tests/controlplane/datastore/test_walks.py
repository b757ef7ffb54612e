# SPDX-License-Identifier: Apache-2.0
"""What background jobs read: everything of a kind in parts, and what is still open."""

from collections.abc import Callable

from pipecd.controlplane.datastore.documents import BATCH_SIZE
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

SUCCESS = int(DeploymentStatus.SUCCESS)


async def test_ended_deployments_come_in_the_order_of_their_end(
    stores: Stores, deployment: Callable[..., Deployment]
) -> None:
    for project, completed_at in (("p", 30), ("q", 10), ("p", 20), ("p", 41), ("p", 9), ("p", 0)):
        status = SUCCESS if completed_at else 0
        await stores.deployments.add(
            deployment(project_id=project, completed_at=completed_at, status=status)
        )
    parts = [part async for part in stores.deployments.iterate_completed(10, 40)]
    assert [[(d.project_id, d.completed_at) for d in part] for part in parts] == [
        [("q", 10), ("p", 20), ("p", 30)]
    ]
    assert [part async for part in stores.deployments.iterate_completed(42, 99)] == []


async def test_nothing_is_lost_or_repeated_between_two_parts(
    stores: Stores, deployment: Callable[..., Deployment]
) -> None:
    # Many end in the same second, so that a part ends in the middle of it.
    ids: set[str] = set()
    for number in range(BATCH_SIZE + 3):
        one = deployment(completed_at=100 + number // BATCH_SIZE, status=SUCCESS)
        ids.add(one.id)
        await stores.deployments.add(one)
    parts = [part async for part in stores.deployments.iterate_completed(1, 200)]
    assert [len(part) for part in parts] == [BATCH_SIZE, 3]
    assert {d.id for part in parts for d in part} == ids


async def test_all_applications_are_met_also_deleted_ones(
    stores: Stores, application: Callable[..., Application]
) -> None:
    for name, project, created_at, deleted in (("b", "p", 2, True), ("a", "q", 1, False)):
        await stores.applications.add(
            application(name=name, project_id=project, created_at=created_at, deleted=deleted)
        )
    found = [one.name async for part in stores.applications.iterate_all() for one in part]
    assert found == ["a", "b"]


async def test_the_deployments_of_a_chain_are_found(
    stores: Stores, deployment: Callable[..., Deployment]
) -> None:
    for id, chain, created_at in (
        ("late", "c", 2),
        ("other", "d", 1),
        ("early", "c", 1),
        ("x", "", 1),
    ):
        await stores.deployments.add(
            deployment(id=id, deployment_chain_id=chain, created_at=created_at)
        )
    assert [d.id for d in await stores.deployments.list_by_chain("c")] == ["early", "late"]


async def test_chains_that_have_not_ended_are_found(stores: Stores) -> None:
    for number, status in enumerate(pb.ChainStatus.values()):
        await stores.chains.add(
            pb.DeploymentChain(id=str(number), project_id=f"p{number}", status=status)
        )
    found = {chain.status for chain in await stores.chains.list_unfinished()}
    assert found == {pb.DEPLOYMENT_CHAIN_PENDING, pb.DEPLOYMENT_CHAIN_RUNNING}
