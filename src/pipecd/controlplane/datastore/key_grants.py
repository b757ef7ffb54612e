# SPDX-License-Identifier: Apache-2.0
"""Which API keys have a permission that upstream's roles of keys do not know."""

from sqlalchemy import Table, delete, insert, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.model.clock import Now, to_unix, utc_now


class KeyGrants:
    """The API keys that have one permission, each with who granted it and when.

    Upstream's keys read or also write; permissions of ours are stored beside them, one table each.
    """

    def __init__(self, database: Database, table: Table, *, now: Now = utc_now) -> None:
        self._database, self._now = database, now
        grant, of_key = table.c, table.c.KeyId == param("key")
        self._find = select(grant.KeyId).where(of_key)
        self._list = select(grant.KeyId).where(grant.ProjectId == param("project"))
        self._revoke = delete(table).where(of_key)
        self._add = insert(table).values(
            KeyId=param("key"),
            ProjectId=param("project"),
            GrantedBy=param("granted_by"),
            GrantedAt=param("granted_at"),
        )

    async def is_granted(self, key_id: str) -> bool:
        return bool(await self._database.query(self._find, {"key": key_id}))

    async def granted(self, project: str) -> frozenset[str]:
        """The ids of the keys of a project that have the permission."""
        rows = await self._database.query(self._list, {"project": project})
        return frozenset(id for (id,) in rows)

    async def grant(self, key_id: str, project: str, *, by: str) -> None:
        """Gives a key the permission; the name of who granted it is stored."""
        values: Values = {
            "key": key_id,
            "project": project,
            "granted_by": by,
            "granted_at": to_unix(self._now()),
        }

        def work(transaction: Transaction) -> None:
            transaction.execute(self._revoke, {"key": key_id})
            transaction.execute(self._add, values)

        await self._database.write(work)

    async def revoke(self, key_id: str) -> None:
        """Takes the permission from a key, if it has it."""
        await self._database.write(lambda t: t.execute(self._revoke, {"key": key_id}))
