# SPDX-License-Identifier: Apache-2.0
"""The controller watches the bus, updates chains and wakes the pipeds that wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.chains import ChainController
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.chains import Matcher, Plannability
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.clock import Now
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import IN_CHAIN
from pipecd.model.deployment import DeploymentStatus as Status
from pipecd.model.errors import Unavailable
from pipecd.model.ids import new_id
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2 as rpc

FOLLOWER = "web"


@pytest.fixture
async def follower(cases: UseCases, draft: Application, admin: User) -> str:
    """The id of an application that follows another in a chain."""
    draft.name = FOLLOWER
    return await cases.applications.add(draft, by=admin)


@pytest.fixture
async def first(
    cases: UseCases, new_deployment: Callable[[], Deployment], piped: PipedCaller, follower: str
) -> Deployment:
    """The first deployment of a chain whose second block is the follower."""
    made = new_deployment()
    await cases.chains.create(made, [Matcher(name=FOLLOWER)], by=piped)
    return made


@pytest.fixture
def controller(stores: Stores, bus: MemoryBus, now: Now) -> ChainController:
    return ChainController(stores, bus, now=now)


@pytest.fixture
def follow(
    cases: UseCases, first: Deployment, follower: str, piped: PipedCaller
) -> Callable[[], asyncio.Future[str]]:
    """Creates the deployment of the follower, as its piped does for the sync command."""

    async def create() -> str:
        second = Deployment()
        second.CopyFrom(first)
        second.id, second.application_id, second.application_name = new_id(), follower, FOLLOWER
        second.deployment_chain_block_index = 1
        await cases.deployment_reports.create(second, by=piped)
        return second.id

    return lambda: asyncio.ensure_future(create())


async def report(cases: UseCases, id: str, status: Status, piped: PipedCaller) -> None:
    number = int(status)
    if status.is_completed:
        done = rpc.ReportDeploymentCompletedRequest(deployment_id=id, status=number, completed_at=9)  # pyright: ignore[reportArgumentType]
        await cases.deployment_reports.report_completed(done, by=piped)
        return
    changed = rpc.ReportDeploymentStatusChangedRequest(deployment_id=id, status=number)  # pyright: ignore[reportArgumentType]
    await cases.deployment_reports.report_status(changed, by=piped)


async def stored(stores: Stores, first: Deployment) -> DeploymentChain:
    return await stores.chains.get(first.deployment_chain_id)


async def wait_for_status(
    stores: Stores, bus: MemoryBus, first: Deployment, status: int
) -> DeploymentChain:
    """Returns the chain once it has the status; its signals announce changes."""
    async with asyncio.timeout(10), bus.subscribe() as signals:
        while (chain := await stored(stores, first)).status != status:
            while (await anext(signals)).topic is not Topic.CHAIN:
                pass
        return chain


@asynccontextmanager
async def running(controller: ChainController) -> AsyncIterator[None]:
    task = asyncio.ensure_future(controller.run())
    try:
        yield
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_signals_alone_move_a_chain_to_its_end(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    first: Deployment,
    follow: Callable[[], asyncio.Future[str]],
    piped: PipedCaller,
) -> None:
    # A resync this rare cannot be what moves the chain.
    async with running(ChainController(stores, bus, resync_seconds=3600)):
        second = await follow()
        chain = first.deployment_chain_id
        assert await cases.chains.plannable(second, chain, 1, by=piped) == Plannability()
        await report(cases, first.id, Status.RUNNING, piped)
        await wait_for_status(stores, bus, first, pb.DEPLOYMENT_CHAIN_RUNNING)
        await report(cases, first.id, Status.SUCCESS, piped)
        async with asyncio.timeout(10), bus.subscribe() as signals:
            while not (await cases.chains.plannable(second, chain, 1, by=piped)).plannable:
                await anext(signals)
        await report(cases, second, Status.SUCCESS, piped)
        completed = await wait_for_status(stores, bus, first, pb.DEPLOYMENT_CHAIN_SUCCESS)
    assert completed.completed_at > 0
    refs = [block.nodes[0].deployment_ref.deployment_id for block in completed.blocks]
    assert refs == [first.id, second]


async def test_a_follower_that_starts_a_chain_is_updated_in_both_chains(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    first: Deployment,
    follower: str,
    piped: PipedCaller,
) -> None:
    second = Deployment()
    second.CopyFrom(first)
    second.id, second.application_id, second.application_name = new_id(), follower, FOLLOWER
    second.trigger.commander = first.deployment_chain_id
    second.trigger.strategy_summary = IN_CHAIN
    async with running(ChainController(stores, bus, resync_seconds=3600)):
        await cases.chains.create(second, [Matcher(name="nobody")], by=piped)
        await report(cases, first.id, Status.SUCCESS, piped)
        await wait_for_status(stores, bus, first, pb.DEPLOYMENT_CHAIN_RUNNING)
        await report(cases, second.id, Status.SUCCESS, piped)
        for deployment in (first, second):
            await wait_for_status(stores, bus, deployment, pb.DEPLOYMENT_CHAIN_SUCCESS)


async def test_a_failure_cancels_the_later_blocks_and_their_commands(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    controller: ChainController,
    first: Deployment,
    piped: PipedCaller,
) -> None:
    (command,) = await stores.commands.list_unhandled(piped.piped)
    await report(cases, first.id, Status.FAILURE, piped)
    async with bus.subscribe() as signals:
        assert await controller.update(first.deployment_chain_id)
        received = [await anext(signals), await anext(signals)]
    assert received == [
        Signal(Topic.COMMAND, command.id, "shop", piped.piped),
        Signal(Topic.CHAIN, first.deployment_chain_id, "shop"),
    ]
    chain = await stored(stores, first)
    assert [b.status for b in chain.blocks] == [
        pb.DEPLOYMENT_BLOCK_FAILURE,
        pb.DEPLOYMENT_BLOCK_CANCELLED,
    ]
    assert (await stores.commands.get(command.id)).status == CommandStatus.FAILED


async def test_a_waiting_deployment_gets_the_reason_of_its_cancellation(
    *,
    cases: UseCases,
    controller: ChainController,
    first: Deployment,
    follow: Callable[[], asyncio.Future[str]],
    piped: PipedCaller,
) -> None:
    second = await follow()
    await report(cases, first.id, Status.FAILURE, piped)
    await controller.update_chains_of([first.id])
    decision = await cases.chains.plannable(second, first.deployment_chain_id, 1, by=piped)
    assert decision.cancel_reason == "The previous block of the deployment chain ended with FAILURE"


@pytest.mark.parametrize("result", [CommandStatus.FAILED, CommandStatus.TIMEOUT])
async def test_a_failed_command_cancels_the_block_in_its_turn(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    first: Deployment,
    piped: PipedCaller,
    result: CommandStatus,
) -> None:
    (command,) = await stores.commands.list_unhandled(piped.piped)
    async with running(ChainController(stores, bus, resync_seconds=3600)):
        await report(cases, first.id, Status.RUNNING, piped)
        await wait_for_status(stores, bus, first, pb.DEPLOYMENT_CHAIN_RUNNING)
        await cases.commands.report_handled(CommandResult(command.id, result, 1), by=piped)
        await report(cases, first.id, Status.SUCCESS, piped)
        chain = await wait_for_status(stores, bus, first, pb.DEPLOYMENT_CHAIN_CANCELLED)
    # The first block was not cancelled.
    assert [b.status for b in chain.blocks] == [
        pb.DEPLOYMENT_BLOCK_SUCCESS,
        pb.DEPLOYMENT_BLOCK_CANCELLED,
    ]


@pytest.mark.parametrize("action", ["delete", "disable"])
async def test_a_deleted_or_disabled_follower_cancels_the_chain(
    *,
    cases: UseCases,
    stores: Stores,
    controller: ChainController,
    first: Deployment,
    follower: str,
    piped: PipedCaller,
    admin: User,
    action: str,
) -> None:
    await report(cases, first.id, Status.SUCCESS, piped)
    await controller.resync()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_RUNNING
    await getattr(cases.applications, action)(follower, by=admin)
    await controller.resync()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_CANCELLED


async def test_a_chain_of_upstream_is_cancelled_after_a_day(
    *,
    cases: UseCases,
    stores: Stores,
    controller: ChainController,
    first: Deployment,
    piped: PipedCaller,
    advance: Callable[[float], None],
) -> None:
    (command,) = await stores.commands.list_unhandled(piped.piped)
    await report(cases, first.id, Status.SUCCESS, piped)
    # The ids of upstream's commands are random, so the command of the node is unknown.
    await stores.commands.update(command.id, lambda c: c.ClearField("chain_sync_application"))
    advance(24 * 3600)
    await controller.resync()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_RUNNING
    advance(2 * 3600)
    await controller.resync()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_CANCELLED


async def test_an_unchanged_chain_is_not_written_and_not_signalled(
    stores: Stores, bus: MemoryBus, controller: ChainController, first: Deployment
) -> None:
    before = await stored(stores, first)
    async with bus.subscribe() as signals:
        assert not await controller.update(first.deployment_chain_id)
        await bus.publish(Signal(Topic.PIPED, "marker", "shop"))
        assert (await anext(signals)).id == "marker"
    assert await stored(stores, first) == before


async def test_a_resync_makes_up_for_lost_signals(
    cases: UseCases,
    stores: Stores,
    controller: ChainController,
    first: Deployment,
    follow: Callable[[], asyncio.Future[str]],
    piped: PipedCaller,
) -> None:
    second = await follow()
    await report(cases, first.id, Status.FAILURE, piped)
    await controller.resync()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_FAILURE
    # The chain is completed, but one of its deployments is not.
    await report(cases, second, Status.CANCELLED, piped)
    await controller.resync()
    node = (await stored(stores, first)).blocks[1].nodes[0]
    assert node.deployment_ref.status == Status.CANCELLED


async def test_deployments_without_a_chain_and_unknown_chains_are_ignored(
    controller: ChainController, deployment: Deployment
) -> None:
    await controller.update_chains_of([deployment.id, "unknown"])
    assert not await controller.update("unknown")


async def test_an_update_is_retried_after_an_outage_of_the_datastore(
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    first: Deployment,
    piped: PipedCaller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Flaky:
        """A table of chains that cannot be listed at first."""

        failures = 1

        def __getattr__(self, name: str) -> object:
            if name == "list_unfinished" and self.failures:
                self.failures -= 1
                raise Unavailable("the datastore is unavailable")
            return getattr(stores.chains, name)

    monkeypatch.setattr("pipecd.controlplane.jobs.chains.RETRY_SECONDS", 0.01)
    await report(cases, first.id, Status.SUCCESS, piped)
    chains = Flaky()
    flaky = replace(stores, chains=chains)  # pyright: ignore[reportArgumentType]
    async with (
        running(ChainController(flaky, bus)),
        asyncio.timeout(10),
        bus.subscribe() as signals,
    ):
        while (await anext(signals)).topic is not Topic.CHAIN:
            pass
    assert chains.failures == 0
    assert (await stored(stores, first)).blocks[0].status == pb.DEPLOYMENT_BLOCK_SUCCESS
