# SPDX-License-Identifier: Apache-2.0
"""Runs each job when it is due, on one replica only."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from pipecd.controlplane.stores.leases import Leases
from pipecd.model.errors import PipecdError

log = structlog.get_logger()


@dataclass(frozen=True)
class Job:
    """Some work that is due at every interval, wherever the lease is held."""

    name: str
    every_seconds: float
    work: Callable[[], Awaitable[object]]


class Upkeep:
    """The jobs of one replica; a lease outlives its interval, so one replica keeps it."""

    def __init__(self, leases: Leases, holder: str, jobs: Sequence[Job]) -> None:
        self._leases, self._holder, self._jobs = leases, holder, jobs

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as loops:
                for job in self._jobs:
                    loops.create_task(self._repeat(job), name=job.name)
        finally:
            for job in self._jobs:
                await asyncio.shield(self._leases.release(job.name, self._holder))

    async def _repeat(self, job: Job) -> None:
        while True:
            await self.once(job)
            await asyncio.sleep(job.every_seconds * random.uniform(0.9, 1.1))  # noqa: S311

    async def once(self, job: Job) -> bool:
        """Does the job now if this replica may; a job that fails is tried at its next turn."""
        seconds = job.every_seconds * 1.5
        try:
            if not await self._leases.acquire(job.name, self._holder, seconds=seconds):
                return False
            await job.work()
        except PipecdError as e:
            log.warning("job failed, trying again at its next turn", job=job.name, error=str(e))
            return False
        return True
