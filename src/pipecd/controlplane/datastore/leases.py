# SPDX-License-Identifier: Apache-2.0
"""Leases: which of several replicas runs a background job."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, insert, select, update

from pipecd.cache import LruCache
from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_LEASE
from pipecd.model.clock import Now, seconds_clock, utc_now

NAMED = EXT_LEASE.c.Name == param("name")
GET = select(EXT_LEASE.c.Holder, EXT_LEASE.c.ExpiresAtMillis).where(NAMED).with_for_update()
ADD = insert(EXT_LEASE).values(
    Name=param("name"), Holder=param("holder"), ExpiresAtMillis=param("expires")
)
RENEW = (
    update(EXT_LEASE).where(NAMED).values(Holder=param("holder"), ExpiresAtMillis=param("expires"))
)
RELEASE = delete(EXT_LEASE).where(NAMED, EXT_LEASE.c.Holder == param("holder"))


# The leases of others that are waited for at the same time.
_MAX_AWAITED = 10_000


@dataclass(frozen=True)
class _Renewal:
    """The last renewal of a lease: who has it, and until when by the clock of that replica."""

    holder: str
    expires_at: int


class Leases:
    """Named leases with one holder at a time, as long as the clocks of the replicas agree.

    A holder whose clock was ahead may have died with a lease of hours. So a lease is also over if
    it has not been renewed for its time, by the monotonic clock of the replica that waits for it.
    """

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        self._database = database
        self._now, self._clock = now, seconds_clock(now)
        # By name the renewal that was seen last, and since when.
        self._awaited = LruCache[str, tuple[_Renewal, float]](_MAX_AWAITED)

    async def acquire(self, name: str, holder: str, *, seconds: float) -> bool:
        """Acquires or renews the lease; False while another holder has it."""
        now = self._now()
        expires = now + timedelta(seconds=seconds)
        values: Values = {"name": name, "holder": holder, "expires": _millis(expires.timestamp())}
        awaited, since = self._awaited.get(name) or (None, 0.0)
        is_over = self._clock() - since >= seconds

        def work(transaction: Transaction) -> _Renewal | None:
            """Returns the renewal of another holder that has the lease."""
            rows = transaction.query(GET, {"name": name})
            if rows:
                last = _Renewal(*rows[0])
                is_expired = last.expires_at <= _millis(now.timestamp())
                if last.holder != holder and not is_expired and not (is_over and last == awaited):
                    return last
                transaction.execute(RENEW, values)
                return None
            try:
                transaction.execute(ADD, values)
            except Duplicate:
                # Another replica inserted the row after the query.
                return _Renewal("", 0)
            return None

        last = await self._database.write(work)
        if last is None:
            self._awaited.pop(name)
        elif last != awaited:
            self._awaited.put(name, (last, self._clock()))
        return last is None

    async def release(self, name: str, holder: str) -> None:
        """Releases the lease if `holder` has it."""
        values: Values = {"name": name, "holder": holder}
        await self._database.write(lambda transaction: transaction.execute(RELEASE, values))


def _millis(seconds: float) -> int:
    return int(seconds * 1000)
