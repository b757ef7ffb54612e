# SPDX-License-Identifier: Apache-2.0
"""A counted cache answers like the one inside and tells whether it knew."""

from pipecd.controlplane.cache.counted import CountedCache
from pipecd.controlplane.cache.memory import MemoryCache


async def test_questions_are_told_and_everything_is_passed_on() -> None:
    told: list[tuple[str, bool]] = []

    def asked(source: str, *, hit: bool) -> None:
        told.append((source, hit))

    inner = MemoryCache()
    cache = CountedCache(inner, "inmemory", asked)
    assert await cache.get("k") is None
    await cache.put("k", b"v", ttl_seconds=60)
    assert await cache.get("k") == await inner.get("k") == b"v"
    assert await cache.get_field("h", "f") is None
    assert await cache.fields("h") == {}
    await cache.put_field("h", "f", b"w")
    assert await cache.get_field("h", "f") == b"w"
    assert await cache.fields("h") == {"f": b"w"}
    await cache.delete_field("h", "f")
    await cache.delete("k")
    assert await inner.fields("h") == {}
    assert await inner.get("k") is None
    assert told == [("inmemory", hit) for hit in (False, True, False, False, True, True)]
