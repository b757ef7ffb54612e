# SPDX-License-Identifier: Apache-2.0
"""The table of applications."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar, cast

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
    Condition,
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

D = TypeVar("D")

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
        )
        return _not_deleted(await self.all_of(conditions, NEWEST_UPDATE))

    async def list(
        self, filter: ApplicationFilter, page: PageRequest = EVERYTHING
    ) -> Page[Application]:
        """Returns a page of a project's applications, newest update first, then by id.

        If it is all of them, they are shared with other callers, and nobody may change them.
        """
        if page != EVERYTHING:
            return await self.page_of((*_conditions(filter), NOT_DELETED), page)
        # No engine has a column for it, and they would parse every document, which is cached here.
        return Page(_not_deleted(await self.shared_of(_conditions(filter), NEWEST_UPDATE)))

    async def list_derived(
        self, filter: ApplicationFilter, derive: Callable[[Application], D]
    ) -> tuple[D, ...]:
        """Returns what `derive` makes of each of a project's applications, newest update first.

        See `Documents.derived_of`. A list of ten thousand takes a quarter of the time of `list`.
        """
        # Whether one is deleted is cached too: no engine has a column for it.
        unless_deleted = cast("Callable[[Application], D | None]", _unless_deleted(derive))
        listed = await self.derived_of(_conditions(filter), NEWEST_UPDATE, unless_deleted)
        return tuple(each for each in listed if each is not None)

    def iterate_all(self) -> AsyncIterator[tuple[Application, ...]]:
        """Iterates over the applications of all projects, deleted ones included, oldest first."""
        return self.batches_of((), OLDEST)


def _conditions(filter: ApplicationFilter) -> tuple[Condition, ...]:
    return (
        equal("ProjectId", filter.project),
        *enabled_is(filter.enabled),
        *any_member_of("Kind", filter.kinds, ApplicationKind),
        *any_member_of("SyncState_Status", filter.sync_statuses, SyncStatus),
        *any_of("Name", filter.name),
        *any_of("PipedId", filter.piped_id),
        *labelled(filter.labels),
    )


def _not_deleted(applications: Iterable[Application]) -> tuple[Application, ...]:
    return tuple(each for each in applications if not each.deleted)


# The cache of documents compares functions.
@lru_cache(maxsize=16)
def _unless_deleted(
    derive: Callable[[Application], object],
) -> Callable[[Application], object]:
    return lambda application: None if application.deleted else derive(application)
