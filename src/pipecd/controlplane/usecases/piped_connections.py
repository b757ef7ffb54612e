# SPDX-License-Identifier: Apache-2.0
"""Whether a piped is there: it is while it goes on reporting its metrics."""

from pipecd.controlplane.cache import Cache
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import PipecdError
from pipecd.proto.model.piped_pb2 import Piped, PipedStat

STATS_KEY = "HASHKEY:PIPED:STATS"
SILENCE_SECONDS = 120

Status = Piped.ConnectionStatus.ValueType


class Connections:
    """The last report of every piped."""

    def __init__(self, cache: Cache, now: Now = utc_now) -> None:
        self._cache, self._now = cache, now

    async def report(self, piped_id: str, metrics: bytes) -> None:
        stat = PipedStat(piped_id=piped_id, metrics=metrics, timestamp=to_unix(self._now()))
        await self._cache.put_field(STATS_KEY, piped_id, to_json(stat).encode())

    async def status(self, piped_id: str) -> Status:
        return self._read(await self._cache.get_field(STATS_KEY, piped_id))

    async def statuses(self) -> dict[str, Status]:
        """Of every piped that ever reported."""
        stats = await self._cache.fields(STATS_KEY)
        return {piped_id: self._read(stat) for piped_id, stat in stats.items()}

    async def heard(self) -> dict[str, int]:
        """When every piped that ever reported last did so, in unix seconds."""
        stats = await self._cache.fields(STATS_KEY)
        moments = {piped_id: _heard(stat) for piped_id, stat in stats.items()}
        return {piped_id: moment for piped_id, moment in moments.items() if moment is not None}

    async def metrics(self) -> tuple[bytes, ...]:
        """What each piped that is there last told about itself, in the order of their ids."""
        stats = sorted((await self._cache.fields(STATS_KEY)).items())
        return tuple(
            from_json(stat, PipedStat).metrics
            for _, stat in stats
            if self._read(stat) == Piped.ONLINE
        )

    def _read(self, stat: bytes | None) -> Status:
        if stat is None:
            return Piped.OFFLINE
        heard = _heard(stat)
        if heard is None:
            return Piped.UNKNOWN
        silent = to_unix(self._now()) - heard
        return Piped.ONLINE if silent <= SILENCE_SECONDS else Piped.OFFLINE


def _heard(stat: bytes) -> int | None:
    """When the report was made, or None for one that cannot be read."""
    try:
        return from_json(stat, PipedStat).timestamp
    except (ValueError, PipecdError):
        return None
