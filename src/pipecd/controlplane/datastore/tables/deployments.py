# SPDX-License-Identifier: Apache-2.0
"""Deployments, chains and traces on SQL."""

from collections.abc import AsyncIterator
from functools import lru_cache

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import Kind, SqlDocuments
from pipecd.controlplane.datastore.query import (
    FIRST_ENDED,
    MOST_PIPEDS,
    OLDEST,
    Selection,
    at_least,
    below,
    equal,
    labelled,
    when_given,
    when_some,
)
from pipecd.controlplane.datastore.schema import DEPLOYMENT, DEPLOYMENT_CHAIN, DEPLOYMENT_TRACE
from pipecd.controlplane.stores.deployments import DeploymentFilter
from pipecd.controlplane.stores.documents import EVERYTHING, Page, PageRequest
from pipecd.model.application import ApplicationKind
from pipecd.model.clock import Now, utc_now
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.trace_pb2 import DeploymentTrace

NOT_COMPLETED = tuple(int(s) for s in DeploymentStatus if not s.is_completed)
UNFINISHED = (int(pb.DEPLOYMENT_CHAIN_PENDING), int(pb.DEPLOYMENT_CHAIN_RUNNING))


class SqlDeployments(SqlDocuments[Deployment]):
    """Every deployment ever made."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        kind = Kind(DEPLOYMENT, Deployment, extra="application_name", labelled=True)
        super().__init__(database, kind, now=now)

    async def not_completed_of(self, piped_id: str) -> tuple[Deployment, ...]:
        return await self.few_of(_not_completed_of(piped_id))

    async def listed(
        self, wanted: DeploymentFilter, page: PageRequest = EVERYTHING
    ) -> Page[Deployment]:
        conditions = (
            equal("ProjectId", wanted.project),
            *when_some("Status", wanted.statuses, DeploymentStatus),
            *when_some("Kind", wanted.kinds, ApplicationKind),
            *when_given("ApplicationId", *wanted.application_ids),
            *when_given("ApplicationName", wanted.application_name),
            *when_given("DeploymentTraceCommitHash", wanted.trace_commit_hash),
            *labelled(wanted.labels),
        )
        return await self.page_of(conditions, page)

    async def of_chain(self, chain_id: str) -> tuple[Deployment, ...]:
        return await self.all_of((equal("DeploymentChainId", chain_id),), OLDEST)

    def completed(self, start: int, end: int) -> AsyncIterator[tuple[Deployment, ...]]:
        # A deployment that has not ended has no such time, so there is always a lower bound.
        within = (*at_least("CompletedAt", max(start, 1)), *below("CompletedAt", end + 1))
        return self.parts_of(within, FIRST_ENDED)


@lru_cache(MOST_PIPEDS)
def _not_completed_of(piped_id: str) -> Selection:
    conditions = (equal("PipedId", piped_id), *when_given("Status", *NOT_COMPLETED))
    return Selection(DEPLOYMENT.name, conditions, OLDEST)


class SqlChains(SqlDocuments[DeploymentChain]):
    """Deployments of several applications, one block after the other."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(DEPLOYMENT_CHAIN, DeploymentChain), now=now)

    async def unfinished(self) -> tuple[DeploymentChain, ...]:
        return await self.all_of(when_given("Status", *UNFINISHED), OLDEST)

    async def listed(self, project: str, page: PageRequest = EVERYTHING) -> Page[DeploymentChain]:
        return await self.page_of((equal("ProjectId", project),), page)


class SqlTraces(SqlDocuments[DeploymentTrace]):
    """What a commit of a source repository led to."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(DEPLOYMENT_TRACE, DeploymentTrace), now=now)

    async def listed(
        self, project: str, commit_hash: str = "", page: PageRequest = EVERYTHING
    ) -> Page[DeploymentTrace]:
        conditions = (equal("ProjectId", project), *when_given("CommitHash", commit_hash))
        return await self.page_of(conditions, page)
