# SPDX-License-Identifier: Apache-2.0
"""The tables of deployments, their chains and traces, and of commands to pipeds."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.documents import (
    EVERYTHING,
    Documents,
    Kind,
    Page,
    PageRequest,
)
from pipecd.controlplane.datastore.expressions import Row
from pipecd.controlplane.datastore.history import DeploymentHistory
from pipecd.controlplane.datastore.labelled_applications import (
    LabelledApplications,
    add_of_other_releases,
    labelled_statement,
    labelled_values,
)
from pipecd.controlplane.datastore.query import (
    FIRST_COMPLETED,
    NEWEST,
    OLDEST,
    Selection,
    any_member_of,
    any_of,
    at_least,
    below,
    equal,
    labelled,
    mentions,
    piped_selection,
)
from pipecd.controlplane.datastore.ranges import MAX_RANGES
from pipecd.controlplane.datastore.schema import (
    COMMAND,
    DEPLOYMENT,
    DEPLOYMENT_CHAIN,
    DEPLOYMENT_TRACE,
)
from pipecd.controlplane.datastore.sequences import last_of
from pipecd.model.application import ApplicationKind
from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.trace_pb2 import DeploymentTrace

NOT_COMPLETED = tuple(int(s) for s in DeploymentStatus if not s.is_completed)
STARTED = tuple(status for status in NOT_COMPLETED if status != DeploymentStatus.PENDING)
COMPLETED = tuple(int(s) for s in DeploymentStatus if s.is_completed)
# Among so many of the newest deployments a common text or label fills a page.
NEWEST_ENTRIES = 1000
UNHANDLED = int(CommandStatus.NOT_HANDLED_YET)
UNFINISHED = (int(pb.DEPLOYMENT_CHAIN_PENDING), int(pb.DEPLOYMENT_CHAIN_RUNNING))


@dataclass(frozen=True)
class DeploymentFilter:
    """Empty fields do not filter. `statuses` and `kinds` are the numbers of the wire.

    `text` is contained in the name, the commit message or the summary, or begins the id or the
    hash of the commit.
    """

    project: str
    statuses: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()
    application_ids: tuple[str, ...] = ()
    application_name: str = ""
    trace_commit_hash: str = ""
    piped_id: str = ""
    text: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Deployments(Documents[Deployment]):
    """Deployments of all projects."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        kind = Kind(
            DEPLOYMENT,
            Deployment,
            extra="application_name",
            labelled=True,
            scope=lambda deployment: _scope(deployment.application_id),
        )
        super().__init__(database, kind, now=now)
        self._labelled_applications = LabelledApplications()
        self._history = DeploymentHistory(database, now=now)

    async def list_not_completed(self, piped_id: str) -> tuple[Deployment, ...]:
        """Returns the deployments that this piped has not completed yet, oldest first."""
        return await self.lookup_of(piped_selection(DEPLOYMENT.name, piped_id, NOT_COMPLETED))

    async def list_started(self, piped_id: str, application_id: str) -> tuple[Deployment, ...]:
        """Returns the deployments of an application that are planned and not completed.

        During a push to many applications most deployments of a piped are pending.
        """
        selection = piped_selection(DEPLOYMENT.name, piped_id, STARTED)
        # JSON writes other characters in several ways.
        is_plain = application_id.isascii() and application_id.replace("-", "").isalnum()
        listed = await self.lookup_of(selection, mentioning=application_id if is_plain else "")
        return tuple(each for each in listed if each.application_id == application_id)

    async def last_id(self, application_id: str) -> str:
        """Returns the deployment of an application that was triggered last; empty if none is."""
        return (await last_of(self._database, _scope(application_id)))[1]

    async def list(
        self, filter: DeploymentFilter, page: PageRequest = EVERYTHING
    ) -> Page[Deployment]:
        """Returns a page of a project's deployments, newest update first, then by id."""
        conditions = (
            equal("ProjectId", filter.project),
            *any_member_of("Status", filter.statuses, DeploymentStatus),
            *any_member_of("Kind", filter.kinds, ApplicationKind),
            *any_of("ApplicationId", *filter.application_ids),
            *any_of("ApplicationName", filter.application_name),
            *any_of("DeploymentTraceCommitHash", filter.trace_commit_hash),
            *any_of("PipedId", filter.piped_id),
            *labelled(filter.labels),
            *mentions(filter.text),
        )
        return await self.page_of(conditions, page)

    async def list_by_chain(self, chain_id: str) -> tuple[Deployment, ...]:
        """Returns the deployments of a chain, oldest first."""
        return await self.all_of((equal("DeploymentChainId", chain_id),), OLDEST)

    def iterate_completed(self, start: int, end: int) -> AsyncIterator[tuple[Deployment, ...]]:
        """Iterates over the deployments completed from `start` to `end`, both inclusive.

        They come in the order of their completion, in batches.
        """
        # CompletedAt of a running deployment is 0, so the lower bound is at least 1.
        within = (*at_least("CompletedAt", max(start, 1)), *below("CompletedAt", end + 1))
        return self.batches_of(within, FIRST_COMPLETED)

    async def index_other_releases(self) -> int:
        """Indexes labels of deployments that servers of another release have stored."""
        return await add_of_other_releases(self._database)

    async def pack_history(self) -> int:
        """Packs deployments that have not changed for a while, for searches by text and label."""
        return await self._history.extend()

    def _add_labels(self, transaction: Transaction, document: Deployment) -> None:
        super()._add_labels(transaction, document)
        self._labelled_applications.add(
            transaction, document.project_id, document.application_id, document.labels
        )

    async def _rows(self, selection: Selection) -> Sequence[Row]:
        """Selects the rows; those with a label or a text by an index of them, if it helps.

        A page by a label of few applications is merged from their ranges. One by a label of many,
        or by a text, is looked for among the newest deployments first, and in the packed history if
        these do not fill it.
        """
        if labels := tuple(selection.labels):
            values = labelled_values(selection.project_by_label, labels, MAX_RANGES + 1)
            statement = labelled_statement(len(labels))
            applications = [id for (id,) in await self._database.query(statement, values)]
            if len(applications) <= MAX_RANGES:
                return await self._rows_of(applications, selection)
        elif not selection.searches_text:
            return await self._database.select(selection)
        since = await self._database.time_of_entry(selection, NEWEST_ENTRIES)
        if since is None:
            return await self._database.select(selection)
        newest = await self._database.select(selection.and_also(at_least("UpdatedAt", since)))
        if len(newest) >= selection.limit:
            return newest
        return await self._history.rows(selection)

    async def _rows_of(self, application_ids: Sequence[str], selection: Selection) -> Sequence[Row]:
        if not application_ids:
            return ()
        among = selection.and_also(any_of("ApplicationId", *application_ids))
        # MySQL takes a tenth of a millisecond to look for a text in a document.
        if among.searches_text and self._database.engine == "mysql":
            return await self._history.rows(among)
        return await self._database.select(among)


def _scope(application_id: str) -> str:
    return f"deployments/{application_id}"


class Chains(Documents[DeploymentChain]):
    """Deployment chains: deployments of several applications, block after block."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(DEPLOYMENT_CHAIN, DeploymentChain), now=now)

    async def list_unfinished(self) -> tuple[DeploymentChain, ...]:
        """Returns the chains of all projects that have not ended yet, oldest first."""
        return await self.all_of(any_of("Status", *UNFINISHED), OLDEST)

    async def list(self, project: str, page: PageRequest = EVERYTHING) -> Page[DeploymentChain]:
        """Returns a page of a project's chains, newest update first, then by id."""
        return await self.page_of((equal("ProjectId", project),), page)


class Traces(Documents[DeploymentTrace]):
    """Deployment traces: the deployments that a commit of a source repository caused."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(DEPLOYMENT_TRACE, DeploymentTrace), now=now)

    async def list(
        self, project: str, commit_hash: str = "", page: PageRequest = EVERYTHING
    ) -> Page[DeploymentTrace]:
        """Returns a page of a project's traces, newest update first, then by id.

        With `commit_hash` only the traces of that commit are listed.
        """
        conditions = (equal("ProjectId", project), *any_of("CommitHash", commit_hash))
        return await self.page_of(conditions, page)


class Commands(Documents[Command]):
    """Commands of all projects: what users and deployment chains requested of pipeds."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(COMMAND, Command), now=now)

    async def list_unhandled(self, piped_id: str) -> tuple[Command, ...]:
        """Returns the commands that this piped has not handled yet, oldest first."""
        return await self.lookup_of(piped_selection(COMMAND.name, piped_id, (UNHANDLED,)))

    async def list_of_deployment(self, deployment: Deployment) -> tuple[Command, ...]:
        """Returns what users requested for a deployment while it ran, oldest first."""
        conditions = (
            equal("PipedId", deployment.piped_id),
            *any_of("Status", *map(int, CommandStatus)),
            *at_least("CreatedAt", deployment.created_at),
            *(below("CreatedAt", deployment.completed_at + 1) if deployment.completed_at else ()),
        )
        commands = await self.all_of(conditions, OLDEST)
        return tuple(command for command in commands if command.deployment_id == deployment.id)

    def iterate_of_pipeds(
        self, piped_ids: Sequence[str], created_since: int, *, size: int = 500
    ) -> AsyncIterator[tuple[Command, ...]]:
        """Iterates over the commands of these pipeds since that time, newest first, in batches."""
        conditions = (
            *any_of("PipedId", *piped_ids),
            *any_of("Status", *map(int, CommandStatus)),
            *at_least("CreatedAt", created_since),
        )
        return self.batches_of(conditions, NEWEST, size=size)

    async def list_all_unhandled(self) -> tuple[Command, ...]:
        """Returns the commands of all pipeds that are not handled yet, oldest first."""
        return await self.all_of((equal("Status", UNHANDLED),), OLDEST)

    async def list_unhandled_before(self, created_before: int) -> tuple[Command, ...]:
        """Returns the commands created before that time and not handled yet, oldest first."""
        if created_before <= 0:
            return ()
        conditions = (equal("Status", UNHANDLED), *below("CreatedAt", created_before))
        return await self.all_of(conditions, OLDEST)
