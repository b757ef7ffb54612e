# SPDX-License-Identifier: Apache-2.0
"""What must not be accepted again: ended sessions, and authorization codes that were used."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_SESSION_ENDING, EXT_USED_CODE


@dataclass(frozen=True)
class SessionEnding:
    """The sessions of a project that ended: those in the scope that were issued until then.

    `expires_at`, in unix seconds, is when the last of these sessions would have expired.
    """

    project: str
    scope: str
    subject: str
    ended_at_millis: int
    expires_at: int


ENDING = EXT_SESSION_ENDING.c
SAME = (
    ENDING.ProjectId == param("project"),
    ENDING.Scope == param("scope"),
    ENDING.Subject == param("subject"),
)
FIND = select(ENDING.EndedAtMillis, ENDING.ExpiresAt).where(*SAME).with_for_update()
TIMES = {"EndedAtMillis": param("ended_at_millis"), "ExpiresAt": param("expires_at")}
ADD = insert(EXT_SESSION_ENDING).values(
    ProjectId=param("project"), Scope=param("scope"), Subject=param("subject"), **TIMES
)
REPLACE = update(EXT_SESSION_ENDING).where(*SAME).values(**TIMES)
SINCE = select(
    ENDING.ProjectId, ENDING.Scope, ENDING.Subject, ENDING.EndedAtMillis, ENDING.ExpiresAt
).where(ENDING.EndedAtMillis >= param("since"), ENDING.ExpiresAt > param("now"))
DELETE_EXPIRED = delete(EXT_SESSION_ENDING).where(ENDING.ExpiresAt <= param("now"))


class SessionEndings:
    """The endings of sessions that have not expired."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, endings: Sequence[SessionEnding]) -> None:
        """Stores endings; one that is stored already moves to the later time."""

        def work(transaction: Transaction) -> None:
            for ending in endings:
                values: dict[str, str | int] = asdict(ending)
                found = transaction.query(
                    FIND, {name: values[name] for name in ("project", "scope", "subject")}
                )
                for ended_at, expires_at in found:
                    values["ended_at_millis"] = max(ended_at, ending.ended_at_millis)
                    values["expires_at"] = max(expires_at, ending.expires_at)
                transaction.execute(REPLACE if found else ADD, values)

        await self._database.write(work)

    async def since(self, ended_at_millis: int, *, now: int) -> tuple[SessionEnding, ...]:
        """The endings from that time on that still matter."""
        values: Values = {"since": ended_at_millis, "now": now}
        return tuple(SessionEnding(*row) for row in await self._database.query(SINCE, values))

    async def delete_expired(self, now: int) -> int:
        """Deletes the endings of sessions that have expired; returns their number."""
        values: Values = {"now": now}
        return await self._database.write(lambda t: t.execute(DELETE_EXPIRED, values))


CODE = EXT_USED_CODE.c
FIND_CODE = select(CODE.CodeHash).where(CODE.CodeHash == param("hash"))
ADD_CODE = insert(EXT_USED_CODE).values(CodeHash=param("hash"), ExpiresAt=param("expires_at"))
DELETE_EXPIRED_CODES = delete(EXT_USED_CODE).where(CODE.ExpiresAt <= param("now"))


class UsedCodes:
    """Authorization codes of single sign-on that were used, by their hash."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, code_hash: str, *, expires_at: int) -> bool:
        """Stores the code; False if it was used before."""

        def work(transaction: Transaction) -> bool:
            if transaction.query(FIND_CODE, {"hash": code_hash}):
                return False
            try:
                transaction.execute(ADD_CODE, {"hash": code_hash, "expires_at": expires_at})
            except Duplicate:
                # Another request stored it after the query.
                return False
            return True

        return await self._database.write(work)

    async def delete_expired(self, now: int) -> int:
        """Deletes codes that no provider accepts any more; returns their number."""
        values: Values = {"now": now}
        return await self._database.write(lambda t: t.execute(DELETE_EXPIRED_CODES, values))
