# SPDX-License-Identifier: Apache-2.0
"""The digests of the encryption key that the database was used with, in the table `ExtMeta`."""

from sqlalchemy import insert, select, update

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_META

_ROW = EXT_META.c.Name == "encryption-key"
_READ = select(EXT_META.c.Value).where(_ROW)
_ADD = insert(EXT_META).values(Name="encryption-key", Value=param("digests"))
_REPLACE = update(EXT_META).where(_ROW).values(Value=param("digests"))


class EncryptionKeyRecord:
    """What is recorded of the encryption key, as the caller writes it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def recorded(self) -> str:
        """The record; empty in a database that has none, such as one of upstream."""
        rows = await self._database.query(_READ, {})
        return str(rows[0][0]) if rows else ""

    async def recorded_or(self, digests: str) -> str:
        """The record; these digests are recorded if there is none."""

        def work(transaction: Transaction) -> None:
            if not transaction.query(_READ, {}):
                transaction.execute(_ADD, {"digests": digests})

        await self._database.write(work)
        return await self.recorded()

    async def record(self, digests: str) -> None:
        """Replaces the record."""
        values: Values = {"digests": digests}

        def work(transaction: Transaction) -> None:
            if transaction.query(_READ, {}):
                transaction.execute(_REPLACE, values)
            else:
                transaction.execute(_ADD, values)

        await self._database.write(work)
