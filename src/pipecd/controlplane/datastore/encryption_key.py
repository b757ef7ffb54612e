# SPDX-License-Identifier: Apache-2.0
"""The digests of the encryption key that the database was used with."""

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.meta import add_meta, read_meta, write_meta

_NAME = "encryption-key"


class EncryptionKeyRecord:
    """What is recorded of the encryption key, as the caller writes it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def recorded(self) -> str:
        """The record; empty in a database that has none, such as one of upstream."""
        return await self._database.read(lambda transaction: read_meta(transaction, _NAME)) or ""

    async def recorded_or(self, digests: str) -> str:
        """The record; these digests are recorded if there is none."""
        await self._database.write(lambda transaction: add_meta(transaction, _NAME, digests))
        return await self.recorded()

    async def record(self, digests: str) -> None:
        """Replaces the record."""
        await self._database.write(lambda transaction: write_meta(transaction, _NAME, digests))
