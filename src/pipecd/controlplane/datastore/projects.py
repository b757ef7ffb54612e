# SPDX-License-Identifier: Apache-2.0
"""The tables of projects and of what each of them owns: pipeds, API keys, webhook secrets."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.documents import Documents, Kind
from pipecd.controlplane.datastore.expressions import Row, Values, param
from pipecd.controlplane.datastore.query import BY_EXTRA, OLDEST, enabled_is, equal
from pipecd.controlplane.datastore.schema import API_KEY, EXT_WEBHOOK, PIPED, PROJECT
from pipecd.model.clock import Now, utc_now
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.project_pb2 import Project

# About a thousand pipeds, each of which calls all the time.
CACHED_CHARACTERS = 1_000_000

OF_PROJECT = EXT_WEBHOOK.c.ProjectId == param("project")
COLUMNS = (
    EXT_WEBHOOK.c.Secret,
    EXT_WEBHOOK.c.CreatedAt,
    EXT_WEBHOOK.c.PreviousSecret,
    EXT_WEBHOOK.c.PreviousUntil,
)
FIND = select(*COLUMNS).where(OF_PROJECT)
LIST = select(EXT_WEBHOOK.c.ProjectId, *COLUMNS).order_by(EXT_WEBHOOK.c.ProjectId)
FIND_AND_LOCK = FIND.with_for_update()
SECRET = {
    "Secret": param("current"),
    "CreatedAt": param("created_at"),
    "PreviousSecret": param("previous"),
    "PreviousUntil": param("previous_until"),
}
ADD = insert(EXT_WEBHOOK).values(ProjectId=param("project"), **SECRET)
REPLACE = update(EXT_WEBHOOK).where(OF_PROJECT).values(**SECRET)
REMOVE = delete(EXT_WEBHOOK).where(OF_PROJECT)


class Projects(Documents[Project]):
    """Projects, by id."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(PROJECT, Project), now=now)

    async def list(self) -> tuple[Project, ...]:
        """Returns all projects, by id."""
        return await self.all_of((), BY_EXTRA)


class ApiKeys(Documents[APIKey]):
    """API keys of all projects."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(API_KEY, APIKey, extra="name"), now=now)

    async def list(self, project: str, *, enabled: bool | None = None) -> tuple[APIKey, ...]:
        """Returns the API keys of a project, oldest first."""
        conditions = (equal("ProjectId", project), *enabled_is(enabled))
        return await self.all_of(conditions, OLDEST)


class Pipeds(Documents[Piped]):
    """Pipeds registered in all projects."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        kind = Kind(PIPED, Piped, extra="name", cached_characters=CACHED_CHARACTERS)
        super().__init__(database, kind, now=now)

    async def list(self, project: str, *, enabled: bool | None = None) -> tuple[Piped, ...]:
        """Returns the pipeds of a project, oldest first."""
        conditions = (equal("ProjectId", project), *enabled_is(enabled))
        return await self.all_of(conditions, OLDEST)


@dataclass(frozen=True)
class EncryptedSecret:
    """The encrypted webhook secret of a project, and the previous one while it is valid.

    Times are unix seconds. Without a previous secret, `previous` is empty.
    """

    current: str
    created_at: int
    previous: str = ""
    previous_until: int = 0


class WebhookSecrets:
    """The secret with which the Git hosts of a project sign webhooks, encrypted by the caller."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, project: str) -> EncryptedSecret | None:
        values: Values = {"project": project}
        return _one(await self._database.query(FIND, values))

    async def list(self) -> tuple[tuple[str, EncryptedSecret], ...]:
        """Returns each project that has a secret, with its secret."""
        rows = await self._database.query(LIST, {})
        return tuple((str(project), EncryptedSecret(*secret)) for project, *secret in rows)

    async def update(
        self, project: str, change: Callable[[EncryptedSecret | None], EncryptedSecret]
    ) -> None:
        """Replaces the secret under a lock; `change` may run more than once."""

        def replace(transaction: Transaction) -> None:
            current = _one(transaction.query(FIND_AND_LOCK, {"project": project}))
            values: Values = {"project": project, **asdict(change(current))}
            transaction.execute(REPLACE if current else ADD, values)

        await self._database.write(replace)

    async def remove(self, project: str) -> None:
        """Deletes the secret; a project without one is no error."""
        values: Values = {"project": project}
        await self._database.write(lambda transaction: transaction.execute(REMOVE, values))


def _one(rows: Sequence[Row]) -> EncryptedSecret | None:
    return EncryptedSecret(*rows[0]) if rows else None
