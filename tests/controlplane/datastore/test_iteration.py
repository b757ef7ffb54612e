# SPDX-License-Identifier: Apache-2.0
"""Queries of background jobs: iteration in batches, and unfinished chains."""

from collections.abc import Callable

from pipecd.controlplane.datastore.documents import BATCH_SIZE
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

SUCCESS = int(DeploymentStatus.SUCCESS)


async def test_completed_deployments_are_iterated_in_the_order_of_completion(
    stores: Stores, deployment: Callable[..., Deployment]
) -> None:
    for project, completed_at in (("p", 30), ("q", 10), ("p", 20), ("p", 41), ("p", 9), ("p", 0)):
        status = SUCCESS if completed_at else 0
        await stores.deployments.add(
            deployment(project_id=project, completed_at=completed_at, status=status)
        )
    batches = [batch async for batch in stores.deployments.iterate_completed(10, 40)]
    assert [[(d.project_id, d.completed_at) for d in batch] for batch in batches] == [
        [("q", 10), ("p", 20), ("p", 30)]
    ]
    assert [batch async for batch in stores.deployments.iterate_completed(42, 99)] == []


async def test_no_deployment_is_skipped_or_repeated_between_batches(
    stores: Stores, deployment: Callable[..., Deployment]
) -> None:
    # Many are completed in the same second, so that a batch ends within it.
    ids: set[str] = set()
    for number in range(BATCH_SIZE + 3):
        one = deployment(completed_at=100 + number // BATCH_SIZE, status=SUCCESS)
        ids.add(one.id)
        await stores.deployments.add(one)
    batches = [batch async for batch in stores.deployments.iterate_completed(1, 200)]
    assert [len(batch) for batch in batches] == [BATCH_SIZE, 3]
    assert {d.id for batch in batches for d in batch} == ids


async def test_iterate_all_includes_deleted_applications(
    stores: Stores, application: Callable[..., Application]
) -> None:
    for name, project, created_at, deleted in (("b", "p", 2, True), ("a", "q", 1, False)):
        await stores.applications.add(
            application(name=name, project_id=project, created_at=created_at, deleted=deleted)
        )
    listed = [one.name async for batch in stores.applications.iterate_all() for one in batch]
    assert listed == ["a", "b"]


async def test_list_by_chain_returns_the_deployments_of_a_chain(
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


async def test_list_unfinished_returns_pending_and_running_chains(stores: Stores) -> None:
    for number, status in enumerate(pb.ChainStatus.values()):
        await stores.chains.add(
            pb.DeploymentChain(id=str(number), project_id=f"p{number}", status=status)
        )
    listed = {chain.status for chain in await stores.chains.list_unfinished()}
    assert listed == {pb.DEPLOYMENT_CHAIN_PENDING, pb.DEPLOYMENT_CHAIN_RUNNING}
