# SPDX-License-Identifier: Apache-2.0
"""Digests of keys that matched their stored hash, so that a restart does not compare them again."""

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_VERIFIED_KEY

KEY = EXT_VERIFIED_KEY.c
SAME = KEY.Digest == param("digest")
FIND = select(KEY.ExpiresAt).where(SAME)
ADD = insert(EXT_VERIFIED_KEY).values(Digest=param("digest"), ExpiresAt=param("expires_at"))
EXTEND = update(EXT_VERIFIED_KEY).where(SAME).values(ExpiresAt=param("expires_at"))
DELETE_EXPIRED = delete(EXT_VERIFIED_KEY).where(KEY.ExpiresAt <= param("now"))


class VerifiedKeyDigests:
    """The digests that all replicas share, each until it expires.

    A digest is keyed with a secret that is not in the database and covers the hash of its key:
    who reads or writes this table can neither guess a key nor add one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def expiry(self, digest: str, *, now: int) -> int | None:
        """When a digest expires, in unix seconds; None if it is not stored or has expired."""
        rows = await self._database.query(FIND, {"digest": digest})
        return next((at for (at,) in rows if at > now), None)

    async def put(self, digest: str, *, expires_at: int) -> None:
        """Stores a digest until that time."""
        values: Values = {"digest": digest, "expires_at": expires_at}

        def work(transaction: Transaction) -> None:
            if transaction.query(FIND, {"digest": digest}):
                transaction.execute(EXTEND, values)
                return
            try:
                transaction.execute(ADD, values)
            except Duplicate:
                # Another replica stored it after the query, with about the same time.
                return

        await self._database.write(work)

    async def delete_expired(self, now: int) -> int:
        """Deletes the digests that have expired; returns their number."""
        values: Values = {"now": now}
        return await self._database.write(lambda t: t.execute(DELETE_EXPIRED, values))
