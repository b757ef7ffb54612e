# SPDX-License-Identifier: Apache-2.0
"""The lease of a piped: who gets it, who hands it over, and whose requests are refused."""

import asyncio
from dataclasses import replace

import pytest

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.piped_leases import PipedLease
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.piped_leases import (
    CACHE_SECONDS,
    MAX_UNANSWERED_PROBES,
    MAX_UNANSWERED_REQUESTS,
    MAX_UNSEEN_REQUESTS,
    POLLING_HOLDER_SECONDS,
    decide,
)
from pipecd.model.errors import LeaseLost
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest, AcquirePipedLeaseResponse
from pipecd.proto.service.wakeups_pb2 import Wakeup


async def request(
    cases: UseCases,
    piped: PipedCaller,
    ticket: str = "",
    *,
    host: str = "a",
    force: bool = False,
    probe: bool = False,
) -> AcquirePipedLeaseResponse:
    message = AcquirePipedLeaseRequest(ticket=ticket, host=host, force=force, probe=probe)
    return (await cases.piped_leases.acquire(message, by=piped))[0]


async def acquire(cases: UseCases, piped: PipedCaller, *, host: str = "a") -> PipedCaller:
    """Acquires a lease that nobody holds; returns the caller with its epoch."""
    ticket = (await request(cases, piped, host=host)).ticket
    granted = await request(cases, piped, ticket, host=host)
    assert granted.granted
    return replace(piped, epoch=granted.epoch)


async def test_a_restarted_process_gets_the_lease_at_once(
    cases: UseCases, piped: PipedCaller
) -> None:
    first = await acquire(cases, piped)
    async with cases.piped_leases.stream(first):
        await cases.piped_leases.check(first)
    ticket = (await request(cases, piped)).ticket
    granted = await request(cases, piped, ticket)
    assert (granted.granted, granted.wait_millis) == (True, 0)
    second = replace(piped, epoch=granted.epoch)
    assert second.epoch > first.epoch
    await cases.piped_leases.check(second)
    with pytest.raises(LeaseLost, match=r"another piped with the id .* has started on host a at"):
        await cases.piped_leases.check(first)


async def test_requests_without_an_epoch_pass(cases: UseCases, piped: PipedCaller) -> None:
    await acquire(cases, piped)
    await cases.piped_leases.check(piped)


async def test_a_running_process_gets_a_request_to_hand_over(
    cases: UseCases, piped: PipedCaller
) -> None:
    leases = cases.piped_leases
    first = await acquire(cases, piped, host="a")
    async with leases.stream(first):
        assert not await leases.forward_request(first)
        waiting = await request(cases, piped, host="b")
        assert (waiting.granted, waiting.holder.host) == (False, "a")
        assert await leases.forward_request(first)
        assert not await leases.forward_request(first)
        announced = await leases.release(first.epoch, draining=True, by=first)
        assert announced.successor.host == "b"
        waiting = await request(cases, piped, waiting.ticket, host="b")
        assert (waiting.granted, waiting.draining) == (False, True)
        again = await leases.release(first.epoch, draining=True, by=first)
        assert again.requests > announced.requests
        await leases.release(first.epoch, draining=False, by=first)
        with pytest.raises(LeaseLost, match="has ended"):
            await leases.check(first)
    message = AcquirePipedLeaseRequest(ticket=waiting.ticket, host="b")
    granted, is_takeover = await leases.acquire(message, by=piped)
    assert (granted.granted, granted.wait_millis, is_takeover) == (True, 0, True)
    lease = await leases.get(piped.piped)
    assert (lease.host, lease.taken_over_from, bool(lease.taken_over_at)) == ("b", "a", True)


async def test_a_process_that_does_not_react_is_fenced(cases: UseCases, piped: PipedCaller) -> None:
    leases = cases.piped_leases
    first = await acquire(cases, piped, host="a")
    async with leases.stream(first):
        ticket = (await request(cases, piped, host="b")).ticket
        assert await leases.forward_request(first)
        granted = await request(cases, piped, ticket, host="b", force=True)
        assert granted.granted
        assert granted.wait_millis == CACHE_SECONDS * 1000
        with pytest.raises(LeaseLost):
            await leases.forward_request(first)
        second = replace(piped, epoch=granted.epoch)
        async with leases.stream(second):
            pass
    assert (await leases.get(piped.piped)).epoch == second.epoch


async def test_a_holder_without_a_stream_has_time_to_learn_that_it_has_lost_the_lease(
    cases: UseCases, piped: PipedCaller
) -> None:
    first = await acquire(cases, piped, host="a")
    await cases.piped_leases.deployments_polled(first)
    ticket = (await request(cases, piped, host="b")).ticket
    granted = await request(cases, piped, ticket, host="b")
    assert granted.wait_millis == POLLING_HOLDER_SECONDS * 1000
    with pytest.raises(LeaseLost):
        await cases.piped_leases.check(first)


async def test_a_holder_that_was_killed_before_it_began_is_not_waited_for(
    cases: UseCases, piped: PipedCaller
) -> None:
    first = await acquire(cases, piped)
    ticket = (await request(cases, piped)).ticket
    granted = await request(cases, piped, ticket)
    assert (granted.granted, granted.wait_millis) == (True, 0)
    # A late request of the killed one does not count for its successor.
    await cases.piped_leases.deployments_polled(first)
    assert (await cases.piped_leases.get(piped.piped)).stream == ""


async def test_a_poll_does_not_replace_an_open_stream(cases: UseCases, piped: PipedCaller) -> None:
    first = await acquire(cases, piped)
    async with cases.piped_leases.stream(first):
        await cases.piped_leases.deployments_polled(first)
        assert (await cases.piped_leases.get(piped.piped)).has_open_stream


async def test_the_newest_process_gets_the_lease(cases: UseCases, piped: PipedCaller) -> None:
    first = await acquire(cases, piped)
    async with cases.piped_leases.stream(first):
        second = (await request(cases, piped, host="b")).ticket
        third = (await request(cases, piped, host="c")).ticket
        with pytest.raises(LeaseLost, match="on host c"):
            await request(cases, piped, second, host="b")
    assert (await request(cases, piped, third, host="c")).granted
    # The response may be lost, and a late request of the other one changes nothing.
    assert (await request(cases, piped, third, host="c")).granted
    with pytest.raises(LeaseLost, match="on host c"):
        await request(cases, piped, second, host="b")


async def test_a_process_that_was_replaced_and_is_restarted_stands_by(
    cases: UseCases, piped: PipedCaller
) -> None:
    first = await acquire(cases, piped, host="a")
    async with cases.piped_leases.stream(first):
        ticket = (await request(cases, piped, host="b")).ticket
        granted = await request(cases, piped, ticket, host="b", force=True)
    second = replace(piped, epoch=granted.epoch)
    async with cases.piped_leases.stream(second):
        restarted = await request(cases, piped, host="a")
        assert (restarted.standby, restarted.ticket) == (True, "")
        assert not await cases.piped_leases.forward_request(second)
        assert not (await request(cases, piped, host="c")).standby
    assert not (await request(cases, piped, host="a")).standby


async def test_late_requests_for_a_lease_are_not_granted(
    cases: UseCases, piped: PipedCaller
) -> None:
    late = (await request(cases, piped)).ticket
    assert (await request(cases, piped, late)).granted
    second = await acquire(cases, piped)
    assert not (await request(cases, piped)).granted
    with pytest.raises(LeaseLost):
        await request(cases, piped, late)
    await cases.piped_leases.check(second)


async def test_a_probe_changes_nothing_for_a_holder_that_answers(
    cases: UseCases, piped: PipedCaller
) -> None:
    leases = cases.piped_leases
    assert not (await request(cases, piped, probe=True)).HasField("holder")
    first = await acquire(cases, piped)
    async with leases.stream(first):
        for _ in range(2 * MAX_UNANSWERED_REQUESTS):
            assert (await request(cases, piped, probe=True)).HasField("holder")
            assert await leases.forward_request(first) == Wakeup.LEASE_PROBE
            assert await leases.forward_request(first) is None
            await request(cases, first, probe=True)
    assert not (await request(cases, piped, probe=True)).HasField("holder")
    await leases.check(first)


async def test_a_holder_that_answers_nobody_is_replaced_although_its_stream_is_open(
    cases: UseCases, piped: PipedCaller
) -> None:
    leases = cases.piped_leases
    first = await acquire(cases, piped)
    async with leases.stream(first):
        for _ in range(MAX_UNANSWERED_PROBES + 1):
            assert (await request(cases, piped, probe=True)).HasField("holder")
            await leases.forward_request(first)
        assert not (await request(cases, piped, probe=True)).HasField("holder")
        granted = await request(cases, piped)
        ticket = granted.ticket
        while not granted.granted:
            await leases.forward_request(first)
            granted = await request(cases, piped, ticket)
        assert granted.granted
        assert granted.wait_millis == CACHE_SECONDS * 1000
    with pytest.raises(LeaseLost):
        await leases.check(first)


def test_a_holder_whose_replica_was_killed_is_not_waited_for() -> None:
    lease = PipedLease(epoch=1, instance="first", host="a", stream="left behind")
    message = AcquirePipedLeaseRequest(host="b")
    for _ in range(MAX_UNSEEN_REQUESTS):
        decision = decide(lease, message, piped_id="p", new_ticket="second", now=1)
        assert not decision.is_granted
        lease, message.ticket = decision.after, "second"
    decision = decide(lease, message, piped_id="p", new_ticket="", now=1)
    assert (decision.is_granted, decision.is_fenced, decision.is_takeover) == (True, True, False)


async def test_another_replica_refuses_earlier_requests_on_the_signal(
    cases: UseCases, stores: Stores, bus: MemoryBus, piped: PipedCaller
) -> None:
    other = build_use_cases(stores, bus, address="", encryption_key=b"k" * 64)
    running = asyncio.create_task(other.run())
    await asyncio.sleep(0)
    first = await acquire(cases, piped)
    await other.piped_leases.check(first)
    second = await acquire(cases, piped)
    async with asyncio.timeout(CACHE_SECONDS / 2):
        while True:
            try:
                await other.piped_leases.check(first)
            except LeaseLost:
                break
            await asyncio.sleep(0.01)
    await other.piped_leases.check(second)
    running.cancel()
    await asyncio.wait({running})
