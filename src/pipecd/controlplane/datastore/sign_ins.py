# SPDX-License-Identifier: Apache-2.0
"""Sessions that began, those that ended, and authorization codes that were used."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.expressions import Row, Values, param
from pipecd.controlplane.datastore.schema import EXT_SESSION, EXT_SESSION_ENDING, EXT_USED_CODE


@dataclass(frozen=True)
class SessionRecord:
    """A session that began here.

    `subject` identifies the user: the name, or its hash if it is long. `expires_at` is in unix
    seconds.
    """

    project: str
    id: str
    subject: str
    user: str
    roles: tuple[str, ...]
    via: str
    issued_millis: int
    expires_at: int


SESSION = EXT_SESSION.c
SESSIONS = select(EXT_SESSION)
ONE_SESSION = (SESSION.ProjectId == param("project"), SESSION.SessionId == param("id"))
OF_SUBJECT = (SESSION.ProjectId == param("project"), SESSION.Subject == param("subject"))
FIND_SESSION = SESSIONS.where(*ONE_SESSION)
LIST_SESSIONS = (
    SESSIONS.where(SESSION.ProjectId == param("project"), SESSION.ExpiresAt > param("now"))
    .order_by(SESSION.IssuedAtMillis.desc(), SESSION.SessionId)
    .limit(param("limit"))
)
LIST_OF_SUBJECT = LIST_SESSIONS.where(SESSION.Subject == param("subject"))
IDS_OF_SUBJECT = (
    select(SESSION.SessionId)
    .where(*OF_SUBJECT)
    .order_by(SESSION.IssuedAtMillis.desc(), SESSION.SessionId)
)
ADD_SESSION = insert(EXT_SESSION).values(
    ProjectId=param("project"),
    SessionId=param("id"),
    Subject=param("subject"),
    UserName=param("user"),
    Roles=param("roles"),
    Via=param("via"),
    IssuedAtMillis=param("issued_millis"),
    ExpiresAt=param("expires_at"),
)
DELETE_SESSION = delete(EXT_SESSION).where(*ONE_SESSION)
DELETE_EXPIRED_SESSIONS = delete(EXT_SESSION).where(SESSION.ExpiresAt <= param("now"))


class SessionRecords:
    """The sessions that began here and have not expired, also those that have ended since."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: SessionRecord, *, max_of_user: int) -> None:
        """Stores a session; beyond the maximum, the oldest ones of its user are dropped."""
        values: dict[str, str | int] = {**asdict(record), "roles": json.dumps(record.roles)}
        of_user: Values = {"project": record.project, "subject": record.subject}

        def work(transaction: Transaction) -> None:
            transaction.execute(ADD_SESSION, values)
            for (id,) in transaction.query(IDS_OF_SUBJECT, of_user)[max_of_user:]:
                transaction.execute(DELETE_SESSION, {"project": record.project, "id": id})

        await self._database.write(work)

    async def find(self, project: str, id: str) -> SessionRecord | None:
        rows = await self._database.query(FIND_SESSION, {"project": project, "id": id})
        return _record(rows[0]) if rows else None

    async def list(
        self, project: str, *, subject: str = "", now: int, limit: int
    ) -> tuple[SessionRecord, ...]:
        """The newest sessions of a project, or of one of its users, that have not expired."""
        values: dict[str, str | int] = {"project": project, "now": now, "limit": limit}
        statement = LIST_SESSIONS
        if subject:
            statement, values["subject"] = LIST_OF_SUBJECT, subject
        return tuple(_record(row) for row in await self._database.query(statement, values))

    async def delete_expired(self, now: int) -> int:
        """Deletes expired sessions; returns their number."""
        values: Values = {"now": now}
        return await self._database.write(lambda t: t.execute(DELETE_EXPIRED_SESSIONS, values))


def _record(row: Row) -> SessionRecord:
    project, id, subject, user, roles, via, issued_millis, expires_at = row
    return SessionRecord(
        project, id, subject, user, tuple(json.loads(roles)), via, issued_millis, expires_at
    )


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
