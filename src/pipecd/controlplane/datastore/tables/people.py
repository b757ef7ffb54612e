# SPDX-License-Identifier: Apache-2.0
"""Projects, API keys and pipeds on SQL."""

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import Kind, SqlDocuments
from pipecd.controlplane.datastore.query import BY_EXTRA, OLDEST, disabled_unless, equal
from pipecd.controlplane.datastore.schema import API_KEY, PIPED, PROJECT
from pipecd.model.clock import Now, utc_now
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.project_pb2 import Project


class SqlProjects(SqlDocuments[Project]):
    """Every project, by its name."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(PROJECT, Project), now=now)

    async def listed(self) -> tuple[Project, ...]:
        return await self.all_of((), BY_EXTRA)


class SqlApiKeys(SqlDocuments[APIKey]):
    """The keys of pipectl and other programs."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(API_KEY, APIKey, extra="name"), now=now)

    async def listed(self, project: str, *, enabled: bool | None = None) -> tuple[APIKey, ...]:
        conditions = (equal("ProjectId", project), *disabled_unless(enabled))
        return await self.all_of(conditions, OLDEST)


class SqlPipeds(SqlDocuments[Piped]):
    """The registered agents."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(PIPED, Piped, extra="name"), now=now)

    async def listed(self, project: str, *, enabled: bool | None = None) -> tuple[Piped, ...]:
        conditions = (equal("ProjectId", project), *disabled_unless(enabled))
        return await self.all_of(conditions, OLDEST)
