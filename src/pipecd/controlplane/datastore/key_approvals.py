# SPDX-License-Identifier: Apache-2.0
"""Which API keys may approve and reject stages."""

from sqlalchemy import delete, insert, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_KEY_APPROVAL
from pipecd.model.clock import Now, to_unix, utc_now

GRANT = EXT_KEY_APPROVAL.c
OF_KEY = GRANT.KeyId == param("key")
FIND = select(GRANT.KeyId).where(OF_KEY)
LIST = select(GRANT.KeyId).where(GRANT.ProjectId == param("project"))
REVOKE = delete(EXT_KEY_APPROVAL).where(OF_KEY)
ADD = insert(EXT_KEY_APPROVAL).values(
    KeyId=param("key"),
    ProjectId=param("project"),
    GrantedBy=param("granted_by"),
    GrantedAt=param("granted_at"),
)


class KeyApprovals:
    """The API keys that may approve, each with who granted it and when.

    Upstream's keys read or also write; this permission of ours is stored beside them.
    """

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        self._database, self._now = database, now

    async def is_granted(self, key_id: str) -> bool:
        return bool(await self._database.query(FIND, {"key": key_id}))

    async def granted(self, project: str) -> frozenset[str]:
        """The ids of the keys of a project that may approve."""
        rows = await self._database.query(LIST, {"project": project})
        return frozenset(id for (id,) in rows)

    async def grant(self, key_id: str, project: str, *, by: str) -> None:
        """Lets a key approve; the name of who granted it is stored."""
        values: Values = {
            "key": key_id,
            "project": project,
            "granted_by": by,
            "granted_at": to_unix(self._now()),
        }

        def work(transaction: Transaction) -> None:
            transaction.execute(REVOKE, {"key": key_id})
            transaction.execute(ADD, values)

        await self._database.write(work)

    async def revoke(self, key_id: str) -> None:
        """Takes the permission from a key, if it has it."""
        await self._database.write(lambda t: t.execute(REVOKE, {"key": key_id}))
