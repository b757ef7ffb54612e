# SPDX-License-Identifier: Apache-2.0
"""Applications on SQL."""

from collections.abc import AsyncIterator

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import Kind, SqlDocuments
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    NOT_DELETED,
    OLDEST,
    disabled_unless,
    equal,
    labelled,
    when_given,
    when_some,
)
from pipecd.controlplane.datastore.schema import APPLICATION
from pipecd.controlplane.stores.applications import ApplicationFilter
from pipecd.controlplane.stores.documents import EVERYTHING, Page, PageRequest
from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.clock import Now, utc_now
from pipecd.proto.model.application_pb2 import Application


class SqlApplications(SqlDocuments[Application]):
    """Every application of every project."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        kind = Kind(APPLICATION, Application, extra="name", labelled=True)
        super().__init__(database, kind, now=now)

    async def enabled_of(self, project: str, piped_id: str) -> tuple[Application, ...]:
        conditions = (
            equal("ProjectId", project),
            equal("PipedId", piped_id),
            equal("Disabled", False),
            NOT_DELETED,
        )
        return await self.all_of(conditions, NEWEST_UPDATE)

    async def listed(
        self, wanted: ApplicationFilter, page: PageRequest = EVERYTHING
    ) -> Page[Application]:
        conditions = (
            equal("ProjectId", wanted.project),
            *disabled_unless(wanted.enabled),
            *when_some("Kind", wanted.kinds, ApplicationKind),
            *when_some("SyncState_Status", wanted.sync_statuses, SyncStatus),
            *when_given("Name", wanted.name),
            *when_given("PipedId", wanted.piped_id),
            *labelled(wanted.labels),
            NOT_DELETED,
        )
        return await self.page_of(conditions, page)

    def everywhere(self) -> AsyncIterator[tuple[Application, ...]]:
        return self.parts_of((), OLDEST)
