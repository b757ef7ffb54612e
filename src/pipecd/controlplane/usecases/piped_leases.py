# SPDX-License-Identifier: Apache-2.0
"""The lease of a piped: one process runs with an id, and requests of earlier ones are refused.

A newer process requests the lease until it gets it. While the holder has its wake-up stream open on
some replica, that replica forwards the request to it, and the holder hands over at the next safe
point. Nothing here depends on a clock: requests are counted, and the new process, which waits, says
when it has waited long enough.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from pipecd.cache import LruCache
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.piped_leases import (
    CLOSED_STREAM,
    NO_STREAM,
    POLLING,
    PipedLease,
)
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError
from pipecd.model.ids import new_id
from pipecd.proto.service.lease_pb2 import (
    AcquirePipedLeaseRequest,
    AcquirePipedLeaseResponse,
    PipedInstance,
    ReleasePipedLeaseResponse,
)
from pipecd.proto.service.wakeups_pb2 import Wakeup
from pipecd.wire.lease import lease_lost

log = structlog.get_logger()

# How long a replica that misses a signal accepts requests of an earlier epoch.
CACHE_SECONDS = 2.0
MAX_CACHED = 10_000
# A holder without a wake-up stream polls for commands every 5 seconds, and ends when the request is
# refused. The new process waits until then, so that no stage runs twice.
POLLING_HOLDER_SECONDS = 6.0 + CACHE_SECONDS
# A holder whose stream no replica has seen during so many requests in a row is gone.
MAX_UNSEEN_REQUESTS = 8
# So is one that has not answered so many requests in a row. A candidate sends them in 5 seconds: a
# holder that is only stopped for a moment shall not be fenced.
MAX_UNANSWERED_REQUESTS = 12
# A process that only waits is told about a holder that has answered one of the last requests.
MAX_UNANSWERED_PROBES = 2
_MAX_HOST_CHARACTERS = 255


@dataclass(frozen=True)
class LeaseDecision:
    """What becomes of a request; `after` is the lease from then on."""

    after: PipedLease
    is_connected: bool = False
    """The holder has a wake-up stream, over which it is asked to hand over."""
    is_standby: bool = False
    """The holder has replaced a process of the machine that requests the lease."""
    is_granted: bool = False
    is_takeover: bool = False
    """The holder was running, and has handed over or is fenced now."""
    is_fenced: bool = False
    """The holder has not released the lease, so it may not know yet that it has lost it."""


def holder_of(lease: PipedLease) -> PipedInstance:
    return PipedInstance(id=lease.instance, host=lease.host, started_at=lease.acquired_at)


def candidate_of(lease: PipedLease) -> PipedInstance:
    return PipedInstance(
        id=lease.candidate, host=lease.candidate_host, started_at=lease.requested_at
    )


def is_connected(lease: PipedLease) -> bool:
    """Whether the holder is there: its stream is open, and it has answered a recent request."""
    return (
        bool(lease.instance and lease.has_open_stream)
        and lease.requests - lease.forwarded < MAX_UNSEEN_REQUESTS
        and lease.requests - lease.answered < MAX_UNANSWERED_REQUESTS
    )


def decide_probe(lease: PipedLease, *, epoch: int) -> LeaseDecision:
    """Decides on a probe: a process that waits asks for the holder, or the holder answers."""
    if epoch:
        is_holder = epoch == lease.epoch
        return LeaseDecision(replace(lease, answered=lease.requests) if is_holder else lease)
    is_there = is_connected(lease)
    return LeaseDecision(
        replace(lease, requests=lease.requests + is_there),
        is_connected=is_there and lease.requests - lease.answered <= MAX_UNANSWERED_PROBES,
    )


def decide(
    lease: PipedLease,
    request: AcquirePipedLeaseRequest,
    *,
    piped_id: str,
    new_ticket: str,
    now: int,
) -> LeaseDecision:
    """Decides on a request; raises LeaseLost if a newer process has requested the lease since."""
    is_there = is_connected(lease)
    requests = lease.requests + is_there
    host = request.host[:_MAX_HOST_CHARACTERS]
    if not request.ticket:
        if is_there and lease.taken_over_from == host != lease.host:
            # Its supervisor has restarted it. If it took over again, the two would go on forever.
            return LeaseDecision(lease, is_connected=True, is_standby=True)
        requested = replace(
            lease,
            candidate=new_ticket,
            candidate_host=host,
            requested_at=now,
            is_requested=True,
            draining=False,
            requests=requests,
        )
        return LeaseDecision(requested, is_connected=is_there)
    if lease.instance == request.ticket:
        # The response to the request that was granted got lost.
        return LeaseDecision(lease, is_granted=True)
    if lease.candidate != request.ticket:
        raise lease_lost(piped_id, candidate_of(lease) if lease.candidate else holder_of(lease))
    if is_there and not request.force:
        requested = replace(lease, is_requested=True, requests=requests)
        return LeaseDecision(requested, is_connected=True)
    # A process that was asked to hand over has released the lease, or does not react.
    is_takeover = lease.draining or (request.force and is_there)
    return LeaseDecision(
        PipedLease(
            epoch=lease.epoch + 1,
            instance=request.ticket,
            host=host,
            acquired_at=now,
            taken_over_at=now if is_takeover else lease.taken_over_at,
            taken_over_from=lease.host if is_takeover else lease.taken_over_from,
        ),
        is_granted=True,
        is_takeover=is_takeover,
        is_fenced=bool(lease.instance and (lease.has_open_stream or lease.stream == POLLING)),
    )


class PipedLeaseUseCases:
    """Grants leases, and refuses the requests of processes that have lost theirs."""

    def __init__(self, stores: Stores, bus: Bus, now: Now = utc_now) -> None:
        self._leases, self._bus, self._now = stores.piped_leases, bus, now
        self._cached = LruCache[str, PipedLease](MAX_CACHED, ttl=CACHE_SECONDS)

    async def check(self, by: PipedCaller) -> None:
        """Raises LeaseLost for a request of an earlier epoch; one without an epoch passes."""
        if not by.epoch:
            return
        lease = await self._cached.get_or_load(by.piped, lambda: self._leases.get(by.piped))
        if by.epoch > lease.epoch:
            # Another replica has granted the lease a moment ago.
            self.invalidate(by.piped)
            lease = await self._cached.get_or_load(by.piped, lambda: self._leases.get(by.piped))
        if by.epoch < lease.epoch:
            raise lease_lost(by.piped, holder_of(lease))

    async def get(self, piped_id: str) -> PipedLease:
        return await self._leases.get(piped_id)

    async def acquire(
        self, request: AcquirePipedLeaseRequest, *, by: PipedCaller
    ) -> tuple[AcquirePipedLeaseResponse, bool]:
        """Grants the lease or forwards the request to its holder; also whether it is a takeover."""
        now, ticket = to_unix(self._now()), new_id()
        before, decision = PipedLease(), LeaseDecision(PipedLease())

        def change(lease: PipedLease) -> PipedLease:
            nonlocal before, decision
            before = lease
            decision = (
                decide_probe(lease, epoch=by.epoch)
                if request.probe
                else decide(lease, request, piped_id=by.piped, new_ticket=ticket, now=now)
            )
            return decision.after

        lease = await self._leases.update(by.piped, change)
        if decision.is_granted or lease.requests != before.requests:
            await self._changed(by)
        if not decision.is_granted:
            holder = holder_of(lease) if decision.is_connected else None
            response = AcquirePipedLeaseResponse(
                ticket="" if decision.is_standby else lease.candidate,
                holder=holder,
                draining=lease.draining,
                standby=decision.is_standby,
            )
            return response, False
        if decision.is_takeover:
            log.warning(
                "a newer piped has taken over",
                piped=by.piped,
                host=lease.host,
                previous_host=before.host,
                fenced=decision.is_fenced,
            )
        wait = 0.0
        if decision.is_fenced:
            wait = CACHE_SECONDS if before.has_open_stream else POLLING_HOLDER_SECONDS
        response = AcquirePipedLeaseResponse(
            granted=True, epoch=lease.epoch, wait_millis=int(wait * 1000)
        )
        return response, decision.is_takeover

    async def release(
        self, epoch: int, *, draining: bool, by: PipedCaller
    ) -> ReleasePipedLeaseResponse:
        """Releases the lease, or announces that; either way it names the process that waits."""

        def change(lease: PipedLease) -> PipedLease:
            if lease.epoch != epoch:
                return lease
            if draining:
                return replace(lease, draining=True, answered=lease.requests)
            # From now on requests of this epoch are late ones.
            return replace(lease, epoch=epoch + 1, instance="", stream=NO_STREAM)

        lease = await self._leases.update(by.piped, change)
        if not draining:
            await self._changed(by)
        response = ReleasePipedLeaseResponse(requests=lease.requests)
        if lease.candidate:
            response.successor.CopyFrom(candidate_of(lease))
        return response

    @asynccontextmanager
    async def stream(self, by: PipedCaller) -> AsyncGenerator[None, None]:
        """Records that the holder has a wake-up stream open on this replica."""
        if not by.epoch:
            yield
            return
        stream = new_id()

        def opened(lease: PipedLease) -> PipedLease:
            return replace(lease, stream=stream) if lease.epoch == by.epoch else lease

        await self._leases.update(by.piped, opened)
        try:
            yield
        finally:
            try:
                await self._leases.update(
                    by.piped,
                    lambda lease: (
                        replace(lease, stream=CLOSED_STREAM) if lease.stream == stream else lease
                    ),
                )
            except PipecdError as e:
                # A newer process waits until a few of its requests were not forwarded.
                log.warning("end of the wake-up stream not recorded", piped=by.piped, error=str(e))

    async def deployments_polled(self, by: PipedCaller) -> None:
        """Records that the holder works on deployments, maybe without ever opening a stream."""
        if not by.epoch:
            return
        lease = await self._cached.get_or_load(by.piped, lambda: self._leases.get(by.piped))
        if lease.stream != NO_STREAM:
            return

        def polls(lease: PipedLease) -> PipedLease:
            is_new = lease.epoch == by.epoch and lease.stream == NO_STREAM
            return replace(lease, stream=POLLING) if is_new else lease

        await self._leases.update(by.piped, polls)
        self.invalidate(by.piped)

    async def forward_request(self, by: PipedCaller) -> "Wakeup.Kind.ValueType | None":
        """Returns the wake-up for the caller, who is connected, if another process wants its lease.

        LEASE_PROBE if that process only asks whether the caller still runs.
        """
        if not by.epoch:
            return None
        lease = await self._leases.get(by.piped)
        if by.epoch < lease.epoch:
            raise lease_lost(by.piped, holder_of(lease))
        if lease.forwarded == lease.requests:
            return None
        is_requested = False

        def change(lease: PipedLease) -> PipedLease:
            nonlocal is_requested
            if lease.epoch != by.epoch:
                return lease
            is_requested = lease.is_requested
            return replace(lease, is_requested=False, forwarded=lease.requests)

        await self._leases.update(by.piped, change)
        return Wakeup.LEASE if is_requested else Wakeup.LEASE_PROBE

    def invalidate(self, piped_id: str) -> None:
        """Drops the cached lease of a piped."""
        self._cached.pop(piped_id)

    def invalidate_all(self) -> None:
        self._cached.clear()

    async def _changed(self, by: PipedCaller) -> None:
        self.invalidate(by.piped)
        await self._bus.publish(Signal(Topic.LEASE, by.piped, by.project, by.piped))
