# SPDX-License-Identifier: Apache-2.0
"""The last reports of pipeds that have been silent for a day are forgotten."""

from datetime import timedelta

from pipecd.controlplane.cache import Cache
from pipecd.controlplane.usecases.piped_connections import STATS_KEY
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import from_json
from pipecd.proto.model.piped_pb2 import PipedStat

FORGOTTEN_AFTER = timedelta(hours=24)


async def forget_stale_stats(cache: Cache, *, now: Now = utc_now) -> int:
    """Removes them and answers how many there were; an unreadable report counts as stale."""
    oldest = to_unix(now() - FORGOTTEN_AFTER)
    stale = [
        piped
        for piped, stat in (await cache.fields(STATS_KEY)).items()
        if _reported_at(stat) < oldest
    ]
    for piped in stale:
        await cache.delete_field(STATS_KEY, piped)
    return len(stale)


def _reported_at(stat: bytes) -> int:
    try:
        return from_json(stat, PipedStat).timestamp
    except ValueError:
        return 0
