# SPDX-License-Identifier: Apache-2.0
"""When API keys were last used, from the cache to their documents."""

from pipecd.controlplane.auth.credentials import LAST_USED_KEY
from pipecd.controlplane.cache import Cache
from pipecd.controlplane.datastore.projects import ApiKeys
from pipecd.proto.model.apikey_pb2 import APIKey


async def keep_key_uses(cache: Cache, api_keys: ApiKeys) -> int:
    """Copies the times, only forward, and answers how many there were."""
    noted = await cache.fields(LAST_USED_KEY)
    used = {id: int(at) for id, at in noted.items() if at.isdigit()}
    known = await api_keys.get_many(tuple(used))
    newer = {
        id: used[id]
        for id, key in known.items()
        if not key.disabled and key.last_used_at < used[id]
    }
    for id, at in newer.items():
        await api_keys.update(id, _Use(at), touch=False)
    return len(newer)


class _Use:
    """Sets the time of the last use, never back."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __call__(self, key: APIKey) -> None:
        key.last_used_at = max(key.last_used_at, self._at)
