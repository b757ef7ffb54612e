# SPDX-License-Identifier: Apache-2.0
"""Whether pipeds are connected: a piped is online while it reports its metrics."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime, timedelta

import structlog

from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.cache import Cache
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import NotFound, PipecdError
from pipecd.proto.model.piped_pb2 import Piped, PipedStat

log = structlog.get_logger()

STATS_KEY = "HASHKEY:PIPED:STATS"
# A piped without a report for longer than this is offline.
OFFLINE_AFTER_SECONDS = 120
CHECK_INTERVAL_SECONDS = 5.0
_DEADLINE = timedelta(seconds=OFFLINE_AFTER_SECONDS + 1)

Status = Piped.ConnectionStatus.ValueType


class PipedConnections:
    """The last metrics report of each piped, in the shared cache."""

    def __init__(self, cache: Cache, now: Now = utc_now) -> None:
        self._cache, self._now = cache, now

    async def report(self, piped_id: str, metrics: bytes) -> None:
        stat = PipedStat(piped_id=piped_id, metrics=metrics, timestamp=to_unix(self._now()))
        await self._cache.put_field(STATS_KEY, piped_id, to_json(stat).encode())

    async def status(self, piped_id: str) -> Status:
        return self._status_of(await self._cache.get_field(STATS_KEY, piped_id))

    async def statuses(self) -> dict[str, Status]:
        """The status of every piped that ever reported."""
        stats = await self._cache.fields(STATS_KEY)
        return {piped_id: self._status_of(stat) for piped_id, stat in stats.items()}

    async def last_reports(self) -> dict[str, int]:
        """The time of each piped's last report in unix seconds."""
        stats = await self._cache.fields(STATS_KEY)
        times = {piped_id: _reported_at(stat) for piped_id, stat in stats.items()}
        return {piped_id: time for piped_id, time in times.items() if time is not None}

    async def metrics(self) -> dict[str, bytes]:
        """The last metrics of each online piped, in the order of their ids."""
        stats = sorted((await self._cache.fields(STATS_KEY)).items())
        return {
            piped_id: from_json(stat, PipedStat).metrics
            for piped_id, stat in stats
            if self._status_of(stat) == Piped.ONLINE
        }

    def _status_of(self, stat: bytes | None) -> Status:
        if stat is None:
            return Piped.OFFLINE
        reported_at = _reported_at(stat)
        if reported_at is None:
            return Piped.UNKNOWN
        age = to_unix(self._now()) - reported_at
        return Piped.ONLINE if age <= OFFLINE_AFTER_SECONDS else Piped.OFFLINE


def _reported_at(stat: bytes) -> int | None:
    """The time of a report; None if it cannot be decoded."""
    try:
        return from_json(stat, PipedStat).timestamp
    except (ValueError, PipecdError):
        return None


class OfflineDetector:
    """Signals when a piped that reported to this replica goes offline.

    A piped may have moved to another replica, so the shared cache decides. Two replicas may both
    signal the same piped, which does no harm.
    """

    def __init__(self, stores: Stores, bus: Bus, now: Now = utc_now) -> None:
        self._stores, self._bus, self._now = stores, bus, now
        self._connections = PipedConnections(stores.cache, now)
        self._deadlines: dict[str, datetime] = {}

    def reported(self, piped_id: str) -> None:
        """Sets the deadline of the piped's next report."""
        self._deadlines[piped_id] = self._now() + _DEADLINE

    async def run(self) -> None:
        await self._attempt(self._load())
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            await self._attempt(self.check())

    async def check(self) -> None:
        """Signals every piped that missed its deadline."""
        now = self._now()
        for piped_id in [id for id, deadline in self._deadlines.items() if deadline <= now]:
            if await self._connections.status(piped_id) == Piped.ONLINE:
                self.reported(piped_id)
                continue
            try:
                piped = await self._stores.pipeds.get(piped_id)
                await self._bus.publish(Signal(Topic.PIPED, piped.id, piped.project_id))
            except NotFound:
                pass
            self._deadlines.pop(piped_id, None)

    async def _load(self) -> None:
        """A replica that starts takes over the pipeds of its predecessor."""
        for piped_id, status in (await self._connections.statuses()).items():
            if status == Piped.ONLINE:
                self.reported(piped_id)

    async def _attempt(self, work: Awaitable[None]) -> None:
        try:
            await work
        except PipecdError as e:
            log.warning("pipeds not checked for being offline, retrying", error=str(e))
