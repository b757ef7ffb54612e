# SPDX-License-Identifier: Apache-2.0
"""The table of applications."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import (
    EVERYTHING,
    Documents,
    Kind,
    Page,
    PageRequest,
)
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    NOT_DELETED,
    OLDEST,
    any_member_of,
    any_of,
    enabled_is,
    equal,
    labelled,
)
from pipecd.controlplane.datastore.schema import APPLICATION
from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.clock import Now, utc_now
from pipecd.proto.model.application_pb2 import Application

# The console lists all applications of a project; these are about 25,000. With more than fit,
# a list would find none of its documents in the cache.
CACHED_CHARACTERS = 30_000_000


@dataclass(frozen=True)
class ApplicationFilter:
    """Empty fields and None do not filter; deleted applications are never listed."""

    project: str
    enabled: bool | None = None
    kinds: tuple[int, ...] = ()
    sync_statuses: tuple[int, ...] = ()
    name: str = ""
    piped_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Applications(Documents[Application]):
    """Applications of all projects."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        kind = Kind(
            APPLICATION,
            Application,
            extra="name",
            labelled=True,
            cached_characters=CACHED_CHARACTERS,
        )
        super().__init__(database, kind, now=now)

    async def list_enabled(self, project: str, piped_id: str) -> tuple[Application, ...]:
        """Returns the enabled applications of a piped, newest update first."""
        conditions = (
            equal("ProjectId", project),
            equal("PipedId", piped_id),
            equal("Disabled", False),
            NOT_DELETED,
        )
        return await self.all_of(conditions, NEWEST_UPDATE)

    async def list(
        self, filter: ApplicationFilter, page: PageRequest = EVERYTHING
    ) -> Page[Application]:
        """Returns a page of a project's applications, newest update first, then by id."""
        conditions = (
            equal("ProjectId", filter.project),
            *enabled_is(filter.enabled),
            *any_member_of("Kind", filter.kinds, ApplicationKind),
            *any_member_of("SyncState_Status", filter.sync_statuses, SyncStatus),
            *any_of("Name", filter.name),
            *any_of("PipedId", filter.piped_id),
            *labelled(filter.labels),
            NOT_DELETED,
        )
        return await self.page_of(conditions, page)

    def iterate_all(self) -> AsyncIterator[tuple[Application, ...]]:
        """Iterates over the applications of all projects, deleted ones included, oldest first."""
        return self.batches_of((), OLDEST)
