# SPDX-License-Identifier: Apache-2.0
"""Leases: which of several replicas runs a background job."""

from datetime import timedelta

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_LEASE
from pipecd.model.clock import Now, utc_now

NAMED = EXT_LEASE.c.Name == param("name")
GET = select(EXT_LEASE.c.Holder, EXT_LEASE.c.ExpiresAtMillis).where(NAMED).with_for_update()
ADD = insert(EXT_LEASE).values(
    Name=param("name"), Holder=param("holder"), ExpiresAtMillis=param("expires")
)
RENEW = (
    update(EXT_LEASE).where(NAMED).values(Holder=param("holder"), ExpiresAtMillis=param("expires"))
)
RELEASE = delete(EXT_LEASE).where(NAMED, EXT_LEASE.c.Holder == param("holder"))


class Leases:
    """Named leases with one holder at a time, as long as the clocks of the replicas agree."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        self._database = database
        self._now = now

    async def acquire(self, name: str, holder: str, *, seconds: float) -> bool:
        """Acquires or renews the lease; False while another holder has it."""
        now = self._now()
        expires = now + timedelta(seconds=seconds)
        values: Values = {"name": name, "holder": holder, "expires": _millis(expires.timestamp())}

        def work(transaction: Transaction) -> bool:
            rows = transaction.query(GET, {"name": name})
            if rows:
                current_holder, expires_at = rows[0]
                if current_holder != holder and expires_at > _millis(now.timestamp()):
                    return False
                transaction.execute(RENEW, values)
                return True
            try:
                transaction.execute(ADD, values)
            except Duplicate:
                # Another replica inserted the row after the query.
                return False
            return True

        return await self._database.write(work)

    async def release(self, name: str, holder: str) -> None:
        """Releases the lease if `holder` has it."""
        values: Values = {"name": name, "holder": holder}
        await self._database.write(lambda transaction: transaction.execute(RELEASE, values))


def _millis(seconds: float) -> int:
    return int(seconds * 1000)
