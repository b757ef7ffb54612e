# SPDX-License-Identifier: Apache-2.0
"""The insight collector: writes applications and completed deployments into the insight files.

A milestone file has the time up to which every completed deployment is collected. Each run starts
somewhat before the milestone, because a piped without a connection reports the end of a deployment
late. So the writers see deployments again and must count them once.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.insight.applications import (
    ApplicationData,
    ApplicationSnapshot,
    application_data,
    applications_path,
    encode_applications,
)
from pipecd.controlplane.insight.chunks import (
    Block,
    Chunk,
    add_deployments,
    block_path,
    chunk_path,
    chunks_to_read,
    decode_block,
    decode_chunk,
    encode_block,
    encode_chunk,
    year_of,
)
from pipecd.controlplane.insight.days import month_days_path
from pipecd.controlplane.insight.deployments import CompletedDeployment, completed_deployment
from pipecd.controlplane.insight.dora import CompletedOutcome, outcome_of
from pipecd.controlplane.insight.files import decode_file, go_json
from pipecd.controlplane.insight.months import (
    Month,
    add_outcomes,
    decode_month,
    encode_month,
    month_from_path,
    month_of,
    month_path,
    months_prefix,
)
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import NotFound
from pipecd.proto.model.deployment_pb2 import Deployment

CHUNK_MILESTONE = "insights/milestone.json"
MONTH_MILESTONE = "insights/ext-milestone.json"

# The longest range of a chart.
MAX_AGE = timedelta(days=731)
OVERLAP = timedelta(hours=24)

_MILESTONE_KEY = "deployment_completed_at_milestone"

# A month is written when the next one begins, or after so many deployments.
MAX_KEPT_DEPLOYMENTS = 50_000


class DeploymentWriter(Protocol):
    """Writes completed deployments to insight files; keeps up to `max_kept` of them in memory."""

    @property
    def max_kept(self) -> int: ...

    async def write(self, project: str, deployments: Sequence[Deployment], since: int) -> None:
        """Takes deployments of a project; those that ended before `since` do not come again."""
        ...

    async def flush(self) -> None:
        """Stores what `write` has kept in memory."""
        ...


async def collect_applications(stores: Stores, *, now: Now = utc_now) -> int:
    """Writes one file for each project that ever had an application; returns their number."""
    projects: dict[str, list[ApplicationData]] = {}
    async for page in stores.applications.iterate_all():
        for application in page:
            # A project whose applications are all deleted gets an empty file.
            applications = projects.setdefault(application.project_id, [])
            if not application.deleted:
                applications.append(application_data(application))
    updated_at = to_unix(now())
    for project, applications in projects.items():
        content = encode_applications(ApplicationSnapshot(tuple(applications), updated_at))
        await stores.files.put(applications_path(project), content)
    return len(projects)


async def collect_deployments(
    stores: Stores, milestone_path: str, writer: DeploymentWriter, *, now: Now = utc_now
) -> int:
    """Writes the deployments that completed since the milestone; returns their number."""
    end = to_unix(now())
    milestone = await Milestone.read(stores.files, milestone_path)
    since = max(end - int(MAX_AGE.total_seconds()), milestone.settled_before)
    count = flushed = 0
    month = ""
    async for page in stores.deployments.iterate_completed(since, end):
        by_project: dict[str, list[Deployment]] = {}
        for deployment in page:
            by_project.setdefault(deployment.project_id, []).append(deployment)
        for project, deployments in by_project.items():
            await writer.write(project, deployments, milestone.settled_before)
        count += len(page)
        last = page[-1].completed_at
        month = month or month_of(page[0].completed_at)
        if month_of(last) != month or count - flushed >= writer.max_kept:
            await writer.flush()
            await milestone.advance(last)
            month, flushed = month_of(last), count
    await writer.flush()
    await milestone.advance(end)
    return count


class Milestone:
    """The time up to which all deployments are collected, in unix seconds; it never goes back."""

    def __init__(self, files: Files, path: str, reached: int) -> None:
        self._files, self._path, self._reached = files, path, reached

    @classmethod
    async def read(cls, files: Files, path: str) -> "Milestone":
        """Reads the milestone; without a file it is 0."""
        try:
            content = await files.get(path)
        except NotFound:
            return cls(files, path, 0)
        reached = decode_file(path, content, lambda text: int(json.loads(text)[_MILESTONE_KEY]))
        return cls(files, path, reached)

    @property
    def reached(self) -> int:
        return self._reached

    @property
    def settled_before(self) -> int:
        """Deployments that ended before this time are not collected again."""
        return max(0, self._reached - int(OVERLAP.total_seconds()))

    async def advance(self, reached: int) -> None:
        if reached > self._reached:
            await self._files.put(self._path, go_json({_MILESTONE_KEY: reached}))
            self._reached = reached


class ChunkWriter:
    """Adds completed deployments to upstream's blocks of chunks.

    A chunk has up to `chunk_size` deployments.
    """

    max_kept = 0

    def __init__(self, files: Files, *, chunk_size: int) -> None:
        self._files, self._chunk_size = files, chunk_size

    async def write(self, project: str, deployments: Sequence[Deployment], since: int) -> None:
        del since
        by_year: dict[int, list[CompletedDeployment]] = {}
        for deployment in deployments:
            if (completed := completed_deployment(deployment)) is not None:
                by_year.setdefault(year_of(completed.completed_at), []).append(completed)
        for year, new in by_year.items():
            await self._add_to_block(project, year, new)

    async def _add_to_block(
        self, project: str, year: int, new: Sequence[CompletedDeployment]
    ) -> None:
        path = block_path(project, year)
        block = Block(year)
        if (content := await self._read(path)) is not None:
            block = decode_file(path, content, lambda text: decode_block(text, year))
        chunks: dict[int, Chunk] = {}
        for meta in chunks_to_read(block, new):
            chunk = chunk_path(project, year, meta)
            content = await self._read(chunk)
            chunks[meta.index] = (
                ()
                if content is None
                else await asyncio.to_thread(decode_file, chunk, content, decode_chunk)
            )
        updated, changed = await asyncio.to_thread(
            add_deployments, block, chunks, new, chunk_size=self._chunk_size
        )
        for meta in updated.chunks:
            if meta.index in changed:
                content = await asyncio.to_thread(encode_chunk, meta, changed[meta.index])
                await self._files.put(chunk_path(project, year, meta), content)
        if updated != block:
            # The block is written last, so the chunks it lists exist.
            await self._files.put(path, encode_block(updated))

    async def flush(self) -> None:
        """Does nothing, since `write` keeps nothing in memory."""

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self._files.get(path)
        except NotFound:
            return None


class MonthWriter:
    """Adds completed deployments to the monthly totals of lead time and time to restore.

    A month is read and written as a whole, so the deployments are kept until `flush`.
    """

    def __init__(self, files: Files, *, max_kept: int = MAX_KEPT_DEPLOYMENTS) -> None:
        self._files, self.max_kept = files, max_kept
        self._kept: dict[str, list[CompletedOutcome]] = {}
        self._since = 0

    async def write(self, project: str, deployments: Sequence[Deployment], since: int) -> None:
        outcomes = [outcome for d in deployments if (outcome := outcome_of(d)) is not None]
        self._kept.setdefault(project, []).extend(outcomes)
        self._since = since

    async def flush(self) -> None:
        # What is lost by an error is collected again, since the milestone is written afterwards.
        kept, self._kept = self._kept, {}
        for project, outcomes in kept.items():
            if outcomes:
                await self._add(project, outcomes, self._since)

    async def _add(self, project: str, outcomes: Sequence[CompletedOutcome], since: int) -> None:
        first = month_of(min(outcome.completed_at for outcome in outcomes))
        stored = sorted(month_from_path(p) for p in await self._files.list(months_prefix(project)))
        earlier = [name for name in stored if name < first]
        months: dict[str, Month] = {}
        # The last month before the first one has the applications that were failing at its end.
        for name in (*earlier[-1:], *(name for name in stored if name >= first)):
            path = month_path(project, name)
            content = await self._files.get(path)
            months[name] = await asyncio.to_thread(decode_file, path, content, decode_month)
        updated = await asyncio.to_thread(add_outcomes, months, outcomes, forget_before=since)
        for name in sorted(updated):
            if updated[name] != months.get(name):
                # The totals of a month must not outlive what they were derived from.
                await self._files.delete(month_days_path(project, name))
                content = await asyncio.to_thread(encode_month, updated[name])
                await self._files.put(month_path(project, name), content)
