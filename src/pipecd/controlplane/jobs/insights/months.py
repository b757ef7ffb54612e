# SPDX-License-Identifier: Apache-2.0
"""Adds ended deployments to the sums of lead time and time to restore."""

import asyncio
from collections.abc import Sequence

from pipecd.controlplane.filestore import Files
from pipecd.controlplane.insight.decoding import decoded
from pipecd.controlplane.insight.facts import fact_of
from pipecd.controlplane.insight.months import (
    Month,
    added,
    month_at,
    month_of,
    month_path,
    months_prefix,
    read_month,
    write_month,
)
from pipecd.proto.model.deployment_pb2 import Deployment


class MonthWriter:
    """Keeps the months of each project."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def take(self, project: str, deployments: Sequence[Deployment], since: int) -> None:
        facts = [fact for d in deployments if (fact := fact_of(d)) is not None]
        if not facts:
            return
        first = month_of(min(fact.completed_at for fact in facts))
        months = await self._months(project, first)
        grown = await asyncio.to_thread(added, months, facts, forget_before=since)
        for name in sorted(grown):
            if grown[name] != months.get(name):
                content = await asyncio.to_thread(write_month, grown[name])
                await self._files.put(month_path(project, name), content)

    async def _months(self, project: str, first: str) -> dict[str, Month]:
        """The given month and all later ones, and the last one before them."""
        names = sorted(month_at(p) for p in await self._files.list(months_prefix(project)))
        earlier = [name for name in names if name < first]
        wanted = [*earlier[-1:], *(name for name in names if name >= first)]
        return {name: await self._month(month_path(project, name)) for name in wanted}

    async def _month(self, path: str) -> Month:
        content = await self._files.get(path)
        return await asyncio.to_thread(decoded, path, content, read_month)
