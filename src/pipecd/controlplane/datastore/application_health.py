# SPDX-License-Identifier: Apache-2.0
"""The health of applications, beside their live states, which are too large for lists."""

from collections.abc import Mapping

from sqlalchemy import delete, insert, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import param
from pipecd.controlplane.datastore.schema import EXT_APPLICATION_HEALTH
from pipecd.model.health import HealthStatus

TABLE = EXT_APPLICATION_HEALTH
OF_APPLICATION = TABLE.c.ApplicationId == param("application")
GET = select(TABLE.c.Health).where(OF_APPLICATION)
LIST = select(TABLE.c.ApplicationId, TABLE.c.Health).where(TABLE.c.ProjectId == param("project"))
REMOVE = delete(TABLE).where(OF_APPLICATION)
ADD = insert(TABLE).values(
    ApplicationId=param("application"), ProjectId=param("project"), Health=param("health")
)


class ApplicationHealth:
    """The last health of each application that has a live state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_project(self, project: str) -> Mapping[str, HealthStatus]:
        """The health of the applications of a project, by their ids."""
        rows = await self._database.query(LIST, {"project": project})
        return {application: HealthStatus(health) for application, health in rows}

    async def put(self, application_id: str, project: str, health: HealthStatus) -> bool:
        """Stores the health of an application; False if it is the same as before."""
        rows = await self._database.query(GET, {"application": application_id})
        if [health.value] == [row[0] for row in rows]:
            return False
        values = {"application": application_id, "project": project, "health": health.value}

        def work(transaction: Transaction) -> None:
            transaction.execute(REMOVE, {"application": application_id})
            transaction.execute(ADD, values)

        await self._database.write(work)
        return True
