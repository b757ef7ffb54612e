# SPDX-License-Identifier: Apache-2.0
"""Notices that a piped has fallen silent, which nothing else would tell."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime, timedelta

import structlog

from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.piped_connections import SILENCE_SECONDS, Connections
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import NotFound, PipecdError
from pipecd.proto.model.piped_pb2 import Piped

log = structlog.get_logger()

LOOK_SECONDS = 5.0
_LATER = timedelta(seconds=SILENCE_SECONDS + 1)


class Silence:
    """The pipeds that reported to this replica, and when each of them must have done so again.

    A piped may go on with another replica, so the shared report decides. Two replicas may both say
    that a piped is gone; a signal that comes twice does no harm.
    """

    def __init__(self, stores: Stores, bus: Bus, now: Now = utc_now) -> None:
        self._stores, self._bus, self._now = stores, bus, now
        self._connections = Connections(stores.cache, now)
        self._expected: dict[str, datetime] = {}

    def heard(self, piped_id: str) -> None:
        """The piped has just reported."""
        self._expected[piped_id] = self._now() + _LATER

    async def run(self) -> None:
        await self._attempt(self._remember())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._attempt(self.look())

    async def look(self) -> None:
        """Tells of every piped that should have reported by now and did not."""
        now = self._now()
        for piped_id in [id for id, until in self._expected.items() if until <= now]:
            if await self._connections.status(piped_id) == Piped.ONLINE:
                self.heard(piped_id)
                continue
            try:
                piped = await self._stores.pipeds.get(piped_id)
                await self._bus.publish(Signal(Topic.PIPED, piped.id, piped.project_id))
            except NotFound:
                pass
            self._expected.pop(piped_id, None)

    async def _remember(self) -> None:
        """A replica that starts anew looks after those whom its predecessor heard."""
        for piped_id, status in (await self._connections.statuses()).items():
            if status == Piped.ONLINE:
                self.heard(piped_id)

    async def _attempt(self, work: Awaitable[None]) -> None:
        try:
            await work
        except PipecdError as e:
            log.warning("silent pipeds not looked for, trying again", error=str(e))
