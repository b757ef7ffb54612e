# SPDX-License-Identifier: Apache-2.0
"""Leases: which of several replicas runs a background job."""

from datetime import timedelta

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.expressions import Values, given
from pipecd.controlplane.datastore.schema import EXT_LEASE
from pipecd.model.clock import Now, utc_now

NAMED = EXT_LEASE.c.Name == given("name")
FIND = select(EXT_LEASE.c.Holder, EXT_LEASE.c.ExpiresAtMillis).where(NAMED).with_for_update()
TAKE = insert(EXT_LEASE).values(
    Name=given("name"), Holder=given("holder"), ExpiresAtMillis=given("expires")
)
RENEW = (
    update(EXT_LEASE).where(NAMED).values(Holder=given("holder"), ExpiresAtMillis=given("expires"))
)
RELEASE = delete(EXT_LEASE).where(NAMED, EXT_LEASE.c.Holder == given("holder"))


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
        now_millis = _millis(now.timestamp())
        return await self._database.write(
            lambda transaction: _acquire(transaction, values, now_millis)
        )

    async def release(self, name: str, holder: str) -> None:
        """Releases the lease; one of another holder is left alone."""
        values: Values = {"name": name, "holder": holder}
        await self._database.write(lambda transaction: transaction.execute(RELEASE, values))


def _acquire(transaction: Transaction, values: Values, now_millis: int) -> bool:
    rows = transaction.query(FIND, {"name": values["name"]})
    if rows:
        holder, expires = rows[0]
        if holder != values["holder"] and expires > now_millis:
            return False
        transaction.execute(RENEW, values)
        return True
    try:
        transaction.execute(TAKE, values)
    except Duplicate:
        # Someone else was faster between the look and the step.
        return False
    return True


def _millis(seconds: float) -> int:
    return int(seconds * 1000)
