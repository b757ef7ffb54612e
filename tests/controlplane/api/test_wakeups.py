# SPDX-License-Identifier: Apache-2.0
"""The wake-up stream over a real channel."""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
import pytest

from pipecd.controlplane.api import wakeups
from pipecd.controlplane.api.wakeups import PendingWakeups, heartbeat_seconds, wakeup_for
from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.usecases import UseCases
from pipecd.model.errors import LeaseLost
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.lease import EPOCH
from pipecd.wire.status import from_rpc_error

PATH = "/grpc.service.pipedservice.PipedService/WatchWakeups"
ME = PipedCaller("shop", "me")


def watch(channel: grpc.aio.Channel, heartbeat_seconds: float = 0) -> AsyncIterator[Wakeup]:
    call = channel.unary_stream(
        PATH,
        request_serializer=WatchWakeupsRequest.SerializeToString,
        response_deserializer=Wakeup.FromString,
    )
    return aiter(call(WatchWakeupsRequest(heartbeat_seconds=heartbeat_seconds)))


async def kind_of_next(stream: AsyncIterator[Wakeup]) -> str:
    async with asyncio.timeout(5):
        return Wakeup.Kind.Name((await anext(stream)).kind)


async def test_a_piped_receives_wakeups_for_its_changes(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    bus: MemoryBus,
    application: Application,
    program: ApiKeyCaller,
    other_piped: PipedCaller,
) -> None:
    stream = watch(piped_channel)
    assert await kind_of_next(stream) == "CONNECTED"
    await cases.pipeds.restart(other_piped.piped, by=program)
    await cases.applications.sync(application.id, by=program)
    assert await kind_of_next(stream) == "COMMANDS"
    await cases.applications.disable(application.id, by=program)
    assert await kind_of_next(stream) == "APPLICATIONS"
    await cases.events.register(RegisterEventRequest(name="n", data="d"), by=program)
    assert await kind_of_next(stream) == "EVENTS"
    await bus.publish(Signal(Topic.REPOSITORY, "site", "shop", application.piped_id))
    async with asyncio.timeout(5):
        assert await anext(stream) == Wakeup(kind=Wakeup.REPOSITORY, repository="site")


async def test_a_report_of_a_piped_does_not_wake_itself(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    application: Application,
    piped: PipedCaller,
    program: ApiKeyCaller,
    new_deployment: Callable[[], Deployment],
) -> None:
    stream = watch(piped_channel)
    assert await kind_of_next(stream) == "CONNECTED"
    await cases.deployment_reports.create(new_deployment(), by=piped)
    await cases.application_reports.report_deploying(application.id, True, by=piped)
    await cases.pipeds.report_stat(b"", by=piped)
    await cases.applications.sync(application.id, by=program)
    assert await kind_of_next(stream) == "COMMANDS"


@pytest.mark.parametrize(
    "revoke",
    [
        pytest.param("disable", id="the piped is disabled"),
        pytest.param("drop", id="its key is deleted"),
    ],
)
async def test_the_stream_ends_when(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    piped: PipedCaller,
    admin: User,
    revoke: str,
) -> None:
    stream = watch(piped_channel)
    assert await kind_of_next(stream) == "CONNECTED"
    if revoke == "disable":
        await cases.pipeds.disable(piped.piped, by=admin)
    else:
        # Both keys have the same creation time; the first in the list, which is the new one, stays.
        await cases.pipeds.add_key(piped.piped, by=admin)
        await cases.pipeds.delete_old_keys(piped.piped, by=admin)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        while True:
            # The signal of the new key arrives before that of the deletion.
            assert await kind_of_next(stream) == "PIPED"
    assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_change_that_keeps_the_key_keeps_the_stream_open(
    piped_channel: grpc.aio.Channel, cases: UseCases, piped: PipedCaller, admin: User
) -> None:
    stream = watch(piped_channel)
    assert await kind_of_next(stream) == "CONNECTED"
    await cases.pipeds.update(piped.piped, "renamed", "", by=admin)
    assert await kind_of_next(stream) == "PIPED"
    await cases.pipeds.restart(piped.piped, by=admin)
    assert await kind_of_next(stream) == "COMMANDS"


async def test_an_idle_stream_checks_its_key(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    piped: PipedCaller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "RECHECK_SECONDS", 0.02)
    stream = watch(piped_channel)
    assert await kind_of_next(stream) == "CONNECTED"
    store = cases.pipeds._stores.pipeds
    await store.update(piped.piped, lambda stored: setattr(stored, "disabled", True))
    with pytest.raises(grpc.aio.AioRpcError):
        await kind_of_next(stream)


async def test_a_stream_sends_heartbeats_to_a_client_that_asks_for_them(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    application: Application,
    program: ApiKeyCaller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "HEARTBEAT_SECONDS", (0.1, 60.0))
    stream = watch(piped_channel, heartbeat_seconds=0.1)
    async with asyncio.timeout(5):
        assert await anext(stream) == Wakeup(kind=Wakeup.CONNECTED, heartbeat_seconds=0.1)
    assert [await kind_of_next(stream) for _ in range(3)] == ["HEARTBEAT"] * 3
    await cases.applications.sync(application.id, by=program)
    while (kind := await kind_of_next(stream)) == "HEARTBEAT":
        pass
    assert kind == "COMMANDS"


async def test_a_client_that_does_not_ask_gets_no_heartbeat(
    piped_channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "HEARTBEAT_SECONDS", (0.01, 60.0))
    stream = watch(piped_channel)
    async with asyncio.timeout(5):
        assert await anext(stream) == Wakeup(kind=Wakeup.CONNECTED)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(stream)


@pytest.mark.parametrize(
    ("requested", "interval"), [(0, 0), (-1, 0), (float("nan"), 0), (0.01, 1), (3, 3), (1e9, 60)]
)
def test_the_interval_of_heartbeats_is_limited(requested: float, interval: float) -> None:
    assert heartbeat_seconds(WatchWakeupsRequest(heartbeat_seconds=requested)) == interval


async def test_a_command_whose_signal_was_lost_wakes_its_piped_once(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    piped: PipedCaller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "COMMAND_POLL_SECONDS", 0.02)
    stream = watch(piped_channel)
    assert await kind_of_next(stream) == "CONNECTED"
    # As a replica leaves it that dies after it has stored the command.
    await cases.commands._stores.commands.add(
        Command(id=new_id(), piped_id=piped.piped, project_id=piped.project, commander="me")
    )
    assert await kind_of_next(stream) == "COMMANDS"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(stream)


async def test_a_command_with_a_signal_wakes_its_piped_once(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    application: Application,
    program: ApiKeyCaller,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "COMMAND_POLL_SECONDS", 0.02)
    stream = watch(piped_channel)
    assert await kind_of_next(stream) == "CONNECTED"
    await cases.applications.sync(application.id, by=program)
    assert await kind_of_next(stream) == "COMMANDS"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(stream)


async def test_commands_are_polled_only_while_pipeds_are_connected(
    cases: UseCases, piped: PipedCaller
) -> None:
    streams = wakeups.Wakeups(cases.bus, cases.credentials, cases.commands, cases.piped_leases)
    first = streams.watch(WatchWakeupsRequest(), piped)
    second = streams.watch(WatchWakeupsRequest(), piped)
    await anext(first)
    await anext(second)
    poll = streams._command_poll
    assert poll is not None
    await first.aclose()
    assert not poll.cancelling()
    await second.aclose()
    assert poll.cancelling()
    assert not streams._connected


@pytest.mark.parametrize(
    ("signal", "kind"),
    [
        pytest.param(Signal(Topic.COMMAND, "c", "shop", "me"), Wakeup.COMMANDS, id="a command"),
        pytest.param(Signal(Topic.COMMAND, "c", "shop", "you"), None, id="another piped's command"),
        pytest.param(Signal(Topic.COMMAND, "c", "shop"), None, id="a handled command"),
        pytest.param(Signal(Topic.COMMAND, "c", "x", "me"), None, id="another project's command"),
        pytest.param(
            Signal(Topic.DEPLOYMENT, "d", "shop", "me"), Wakeup.DEPLOYMENTS, id="a deployment"
        ),
        pytest.param(Signal(Topic.CHAIN, "c", "shop"), Wakeup.DEPLOYMENTS, id="a chain"),
        pytest.param(Signal(Topic.EVENT, "e", "shop"), Wakeup.EVENTS, id="an event"),
        pytest.param(Signal(Topic.EVENT, "e", "shop", "me"), None, id="a handled event"),
        pytest.param(Signal(Topic.STAGE_LOG, "d/s", "shop", "me"), None, id="a log line"),
        pytest.param(Signal(Topic.PIPED, "me", "shop", "me"), Wakeup.PIPED, id="the piped itself"),
        pytest.param(Signal(Topic.EVERYTHING, "", ""), Wakeup.CONNECTED, id="everything"),
    ],
)
def test_the_wakeup_of_a_signal(signal: Signal, kind: Wakeup.Kind.ValueType | None) -> None:
    wakeup = wakeup_for(signal, ME)
    assert (wakeup and wakeup[0]) == kind


async def test_equal_wakeups_are_merged_while_the_receiver_is_slow() -> None:
    pending = PendingWakeups()
    assert pending.take() == ((Wakeup.CONNECTED, ""),)
    for number in range(100):
        pending.add(Signal(Topic.COMMAND, str(number), "shop", "me"), ME)
        pending.add(Signal(Topic.REPOSITORY, f"repo{number % 2}", "shop", "me"), ME)
    assert pending.take() == (
        (Wakeup.COMMANDS, ""),
        (Wakeup.REPOSITORY, "repo0"),
        (Wakeup.REPOSITORY, "repo1"),
    )
    assert pending.take() == ()


async def test_the_holder_of_a_lease_gets_a_request_to_hand_over_and_is_then_refused(
    piped_channel: grpc.aio.Channel, cases: UseCases, piped: PipedCaller
) -> None:
    leases = cases.piped_leases
    ticket = (await leases.acquire(AcquirePipedLeaseRequest(host="a"), by=piped))[0].ticket
    first = AcquirePipedLeaseRequest(host="a", ticket=ticket)
    epoch = (await leases.acquire(first, by=piped))[0].epoch
    call = piped_channel.unary_stream(
        PATH,
        request_serializer=WatchWakeupsRequest.SerializeToString,
        response_deserializer=Wakeup.FromString,
    )
    stream = aiter(call(WatchWakeupsRequest(), metadata=((EPOCH, str(epoch)),)))
    assert await kind_of_next(stream) == "CONNECTED"
    ticket = (await leases.acquire(AcquirePipedLeaseRequest(host="b"), by=piped))[0].ticket
    assert await kind_of_next(stream) == "LEASE"
    # A stream without an epoch, such as that of the launcher, gets no request.
    assert await kind_of_next(watch(piped_channel)) == "CONNECTED"
    second = AcquirePipedLeaseRequest(host="b", ticket=ticket, force=True)
    assert (await leases.acquire(second, by=piped))[0].granted
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kind_of_next(stream)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert isinstance(from_rpc_error(refused.value), LeaseLost)
