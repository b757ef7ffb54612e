# SPDX-License-Identifier: Apache-2.0
"""The controller follows the bus, leads chains to their end and wakes who waits."""

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
    """Makes the deployment of the follower, as its piped does when it is told to."""

    async def made() -> str:
        second = Deployment()
        second.CopyFrom(first)
        second.id, second.application_id, second.application_name = new_id(), follower, FOLLOWER
        second.deployment_chain_block_index = 1
        await cases.deployment_reports.create(second, by=piped)
        return second.id

    return lambda: asyncio.ensure_future(made())


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


async def until(stores: Stores, bus: MemoryBus, first: Deployment, status: int) -> DeploymentChain:
    """The chain once it has that status, which its signals announce."""
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


async def test_a_chain_is_led_to_its_end_by_signals_alone(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    first: Deployment,
    follow: Callable[[], asyncio.Future[str]],
    piped: PipedCaller,
) -> None:
    # So rare a look at everything cannot be what moves the chain.
    async with running(ChainController(stores, bus, sweep_seconds=3600)):
        second = await follow()
        chain = first.deployment_chain_id
        assert await cases.chains.plannable(second, chain, 1, by=piped) == Plannability()
        await report(cases, first.id, Status.RUNNING, piped)
        await until(stores, bus, first, pb.DEPLOYMENT_CHAIN_RUNNING)
        await report(cases, first.id, Status.SUCCESS, piped)
        async with asyncio.timeout(10), bus.subscribe() as signals:
            while not (await cases.chains.plannable(second, chain, 1, by=piped)).plannable:
                await anext(signals)
        await report(cases, second, Status.SUCCESS, piped)
        ended = await until(stores, bus, first, pb.DEPLOYMENT_CHAIN_SUCCESS)
    assert ended.completed_at > 0
    refs = [block.nodes[0].deployment_ref.deployment_id for block in ended.blocks]
    assert refs == [first.id, second]


async def test_a_follower_that_begins_a_chain_of_its_own_is_followed_in_both(
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
    async with running(ChainController(stores, bus, sweep_seconds=3600)):
        await cases.chains.create(second, [Matcher(name="nobody")], by=piped)
        await report(cases, first.id, Status.SUCCESS, piped)
        await until(stores, bus, first, pb.DEPLOYMENT_CHAIN_RUNNING)
        await report(cases, second.id, Status.SUCCESS, piped)
        for begun in (first, second):
            await until(stores, bus, begun, pb.DEPLOYMENT_CHAIN_SUCCESS)


async def test_a_failure_cancels_the_rest_and_takes_back_what_was_asked(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    controller: ChainController,
    first: Deployment,
    piped: PipedCaller,
) -> None:
    (asked,) = await stores.commands.list_unhandled(piped.piped)
    await report(cases, first.id, Status.FAILURE, piped)
    async with bus.subscribe() as signals:
        assert await controller.update(first.deployment_chain_id)
        heard = [await anext(signals), await anext(signals)]
    assert heard == [
        Signal(Topic.COMMAND, asked.id, "shop", piped.piped),
        Signal(Topic.CHAIN, first.deployment_chain_id, "shop"),
    ]
    chain = await stored(stores, first)
    assert [b.status for b in chain.blocks] == [
        pb.DEPLOYMENT_BLOCK_FAILURE,
        pb.DEPLOYMENT_BLOCK_CANCELLED,
    ]
    assert (await stores.commands.get(asked.id)).status == CommandStatus.FAILED


async def test_a_deployment_that_waits_is_told_why_it_is_cancelled(
    *,
    cases: UseCases,
    controller: ChainController,
    first: Deployment,
    follow: Callable[[], asyncio.Future[str]],
    piped: PipedCaller,
) -> None:
    second = await follow()
    await report(cases, first.id, Status.FAILURE, piped)
    await controller.deployments_changed([first.id])
    decision = await cases.chains.plannable(second, first.deployment_chain_id, 1, by=piped)
    assert decision.cancel_reason == "The previous block of the deployment chain ended with FAILURE"


@pytest.mark.parametrize("answer", [CommandStatus.FAILED, CommandStatus.TIMEOUT])
async def test_a_follower_that_its_piped_does_not_deploy_ends_the_chain_in_its_turn(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    first: Deployment,
    piped: PipedCaller,
    answer: CommandStatus,
) -> None:
    (asked,) = await stores.commands.list_unhandled(piped.piped)
    async with running(ChainController(stores, bus, sweep_seconds=3600)):
        await report(cases, first.id, Status.RUNNING, piped)
        await until(stores, bus, first, pb.DEPLOYMENT_CHAIN_RUNNING)
        await cases.commands.report_handled(CommandResult(asked.id, answer, 1), by=piped)
        await report(cases, first.id, Status.SUCCESS, piped)
        chain = await until(stores, bus, first, pb.DEPLOYMENT_CHAIN_CANCELLED)
    # What had begun was not cut short.
    assert [b.status for b in chain.blocks] == [
        pb.DEPLOYMENT_BLOCK_SUCCESS,
        pb.DEPLOYMENT_BLOCK_CANCELLED,
    ]


@pytest.mark.parametrize("end", ["delete", "disable"])
async def test_a_follower_that_is_taken_away_ends_the_chain(
    *,
    cases: UseCases,
    stores: Stores,
    controller: ChainController,
    first: Deployment,
    follower: str,
    piped: PipedCaller,
    admin: User,
    end: str,
) -> None:
    await report(cases, first.id, Status.SUCCESS, piped)
    await controller.sweep()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_RUNNING
    await getattr(cases.applications, end)(follower, by=admin)
    await controller.sweep()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_CANCELLED


async def test_a_chain_of_upstream_is_given_up_after_a_day(
    *,
    cases: UseCases,
    stores: Stores,
    controller: ChainController,
    first: Deployment,
    piped: PipedCaller,
    advance: Callable[[float], None],
) -> None:
    (asked,) = await stores.commands.list_unhandled(piped.piped)
    await report(cases, first.id, Status.SUCCESS, piped)
    # Upstream names its commands by chance, so that nobody can tell which one is meant.
    await stores.commands.update(asked.id, lambda c: c.ClearField("chain_sync_application"))
    advance(24 * 3600)
    await controller.sweep()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_RUNNING
    advance(2 * 3600)
    await controller.sweep()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_CANCELLED


async def test_nothing_is_written_or_told_when_nothing_changed(
    stores: Stores, bus: MemoryBus, controller: ChainController, first: Deployment
) -> None:
    before = await stored(stores, first)
    async with bus.subscribe() as signals:
        assert not await controller.update(first.deployment_chain_id)
        await bus.publish(Signal(Topic.PIPED, "marker", "shop"))
        assert (await anext(signals)).id == "marker"
    assert await stored(stores, first) == before


async def test_a_look_at_everything_makes_good_for_lost_signals(
    cases: UseCases,
    stores: Stores,
    controller: ChainController,
    first: Deployment,
    follow: Callable[[], asyncio.Future[str]],
    piped: PipedCaller,
) -> None:
    second = await follow()
    await report(cases, first.id, Status.FAILURE, piped)
    await controller.sweep()
    assert (await stored(stores, first)).status == pb.DEPLOYMENT_CHAIN_FAILURE
    # The chain has ended, but one of its deployments has not.
    await report(cases, second, Status.CANCELLED, piped)
    await controller.sweep()
    node = (await stored(stores, first)).blocks[1].nodes[0]
    assert node.deployment_ref.status == Status.CANCELLED


async def test_deployments_without_a_chain_and_unknown_chains_are_left_alone(
    controller: ChainController, deployment: Deployment
) -> None:
    await controller.deployments_changed([deployment.id, "unknown"])
    assert not await controller.update("unknown")


async def test_a_store_that_was_away_is_asked_again(
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    first: Deployment,
    piped: PipedCaller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Flaky:
        """Chains that cannot be read at first."""

        failures = 1

        def __getattr__(self, name: str) -> object:
            if name == "unfinished" and self.failures:
                self.failures -= 1
                raise Unavailable("the store is away")
            return getattr(stores.chains, name)

    monkeypatch.setattr("pipecd.controlplane.jobs.chains.RETRY_SECONDS", 0.01)
    await report(cases, first.id, Status.SUCCESS, piped)
    flaky = replace(stores, chains=Flaky())  # pyright: ignore[reportArgumentType]
    async with (
        running(ChainController(flaky, bus)),
        asyncio.timeout(10),
        bus.subscribe() as signals,
    ):
        while (await anext(signals)).topic is not Topic.CHAIN:
            pass
    assert (await stored(stores, first)).blocks[0].status == pb.DEPLOYMENT_BLOCK_SUCCESS
