# SPDX-License-Identifier: Apache-2.0
"""The lease of each piped: which process runs with its id."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from sqlalchemy import insert, select, update

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_PIPED_LEASE

# What `stream` is while there is no open one.
NO_STREAM, POLLING, CLOSED_STREAM = "", "polling", "closed"


@dataclass(frozen=True)
class PipedLease:
    """The holder of a lease and the candidate that waits for it; times are unix seconds.

    `epoch` only grows: a request with an earlier one comes from a process that has ended or must
    end. Without a holder, `instance` is empty, and `host` is that of the last one.
    """

    epoch: int = 0
    instance: str = ""
    host: str = ""
    acquired_at: int = 0
    draining: bool = False
    """The holder has announced that it releases the lease when its running stages have ended."""
    stream: str = NO_STREAM
    """The open wake-up stream of the holder, left behind if a replica is killed; `CLOSED_STREAM`
    after it has ended, `POLLING` if the holder works without one, empty before it begins."""
    candidate: str = ""
    candidate_host: str = ""
    requested_at: int = 0
    is_requested: bool = False
    """The candidate has requested the lease since a replica last forwarded that to the holder."""
    requests: int = 0
    forwarded: int = 0
    """The last request that a replica with an open stream of the holder has seen."""
    answered: int = 0
    """The last request that the holder itself has answered; replicas and proxies may have a stream
    open long after the holder is gone."""
    taken_over_at: int = 0
    taken_over_from: str = ""
    """The host of the process that the holder replaced while that was running."""

    @property
    def has_open_stream(self) -> bool:
        return self.stream not in (NO_STREAM, POLLING, CLOSED_STREAM)


COLUMNS = {
    "Epoch": "epoch",
    "Instance": "instance",
    "Host": "host",
    "AcquiredAt": "acquired_at",
    "Draining": "draining",
    "Stream": "stream",
    "Candidate": "candidate",
    "CandidateHost": "candidate_host",
    "RequestedAt": "requested_at",
    "IsRequested": "is_requested",
    "Requests": "requests",
    "Forwarded": "forwarded",
    "Answered": "answered",
    "TakenOverAt": "taken_over_at",
    "TakenOverFrom": "taken_over_from",
}
OF_PIPED = EXT_PIPED_LEASE.c.PipedId == param("piped")
GET = select(*(EXT_PIPED_LEASE.c[column] for column in COLUMNS)).where(OF_PIPED)
GET_LOCKED = GET.with_for_update()
HELD = select(EXT_PIPED_LEASE.c.PipedId).where(EXT_PIPED_LEASE.c.Instance != "")
VALUES = {column: param(field) for column, field in COLUMNS.items()}
ADD = insert(EXT_PIPED_LEASE).values(PipedId=param("piped"), **VALUES)
REPLACE = update(EXT_PIPED_LEASE).where(OF_PIPED).values(**VALUES)


class PipedLeases:
    """The leases of all pipeds; a piped without a row has never requested its lease."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, piped_id: str) -> PipedLease:
        rows = await self._database.lookup(GET, {"piped": piped_id})
        return PipedLease(*rows[0]) if rows else PipedLease()

    async def holders(self) -> set[str]:
        """The ids of the pipeds whose lease a process holds."""
        return {piped_id for (piped_id,) in await self._database.query(HELD)}

    async def update(self, piped_id: str, change: Callable[[PipedLease], PipedLease]) -> PipedLease:
        """Changes a lease under a lock and returns it; `change` may run more than once."""

        def work(transaction: Transaction) -> PipedLease:
            rows = transaction.query(GET_LOCKED, {"piped": piped_id})
            before = PipedLease(*rows[0]) if rows else PipedLease()
            after = change(before)
            if after != before:
                values: Values = {"piped": piped_id, **asdict(after)}
                transaction.execute(REPLACE if rows else ADD, values)
            return after

        return await self._database.write(work)
