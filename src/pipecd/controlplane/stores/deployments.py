# SPDX-License-Identifier: Apache-2.0
"""Deployments, traces and chains, as a control plane must be able to find them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pipecd.controlplane.stores.documents import EVERYTHING, Documents, Page, PageRequest
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.trace_pb2 import DeploymentTrace


@dataclass(frozen=True)
class DeploymentFilter:
    """Empty fields do not filter. `statuses` and `kinds` are the numbers of the wire."""

    project: str
    statuses: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()
    application_ids: tuple[str, ...] = ()
    application_name: str = ""
    trace_commit_hash: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Deployments(Documents[Deployment], Protocol):
    """Every deployment ever made."""

    async def not_completed_of(self, piped_id: str) -> tuple[Deployment, ...]:
        """What this piped still has to bring to an end, oldest first."""
        ...

    async def listed(
        self, wanted: DeploymentFilter, page: PageRequest = EVERYTHING
    ) -> Page[Deployment]:
        """Newest update first, then by id."""
        ...

    async def of_chain(self, chain_id: str) -> tuple[Deployment, ...]:
        """Those that belong to a chain, oldest first."""
        ...

    def completed(self, start: int, end: int) -> AsyncIterator[tuple[Deployment, ...]]:
        """Those that ended from `start` to `end`, both included, in parts, first ended first."""
        ...


class Chains(Documents[DeploymentChain], Protocol):
    """Deployments of several applications, one block after the other."""

    async def unfinished(self) -> tuple[DeploymentChain, ...]:
        """Those of all projects that have not ended yet, oldest first."""
        ...

    async def listed(self, project: str, page: PageRequest = EVERYTHING) -> Page[DeploymentChain]:
        """Newest update first, then by id."""
        ...


class Traces(Documents[DeploymentTrace], Protocol):
    """What a commit of a source repository led to."""

    async def listed(
        self, project: str, commit_hash: str = "", page: PageRequest = EVERYTHING
    ) -> Page[DeploymentTrace]:
        """Newest update first, then by id; only those of `commit_hash` when it is given."""
        ...
