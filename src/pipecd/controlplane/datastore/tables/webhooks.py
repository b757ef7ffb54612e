# SPDX-License-Identifier: Apache-2.0
"""The secrets of webhooks on SQL: a row for each project."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.database import Database, Row, Values, Writing, given
from pipecd.controlplane.datastore.schema import EXT_WEBHOOK
from pipecd.controlplane.stores.webhooks import SealedSecret

OF_PROJECT = EXT_WEBHOOK.c.ProjectId == given("project")
FIND = select(
    EXT_WEBHOOK.c.Secret,
    EXT_WEBHOOK.c.CreatedAt,
    EXT_WEBHOOK.c.PreviousSecret,
    EXT_WEBHOOK.c.PreviousUntil,
).where(OF_PROJECT)
FIND_AND_LOCK = FIND.with_for_update()
SECRET = {
    "Secret": given("current"),
    "CreatedAt": given("created_at"),
    "PreviousSecret": given("previous"),
    "PreviousUntil": given("previous_until"),
}
ADD = insert(EXT_WEBHOOK).values(ProjectId=given("project"), **SECRET)
REPLACE = update(EXT_WEBHOOK).where(OF_PROJECT).values(**SECRET)
REMOVE = delete(EXT_WEBHOOK).where(OF_PROJECT)


class SqlWebhookSecrets:
    """The secrets with which Git hosts sign, encrypted before they come here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, project: str) -> SealedSecret | None:
        values: Values = {"project": project}
        return _one(await self._database.read(lambda reading: reading.rows(FIND, values)))

    async def update(
        self, project: str, change: Callable[[SealedSecret | None], SealedSecret]
    ) -> None:
        def replace(writing: Writing) -> None:
            found = _one(writing.rows(FIND_AND_LOCK, {"project": project}))
            values: Values = {"project": project, **asdict(change(found))}
            writing.run(REPLACE if found else ADD, values)

        await self._database.write(replace)

    async def remove(self, project: str) -> None:
        values: Values = {"project": project}
        await self._database.write(lambda writing: writing.run(REMOVE, values))


def _one(rows: Sequence[Row]) -> SealedSecret | None:
    return SealedSecret(*rows[0]) if rows else None
