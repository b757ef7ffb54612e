# SPDX-License-Identifier: Apache-2.0
"""No change is lost, and each watch sees it."""

import asyncio
import gc
import time

import pytest

from pipecd.piped.cache.changes import Changes, watch_any


async def test_a_change_before_the_wait_is_not_lost() -> None:
    changes = Changes()
    watch = changes.watch()
    changes.notify()
    assert await watch.wait(0)
    assert not await watch.wait(0)


async def test_each_watch_sees_every_change() -> None:
    changes = Changes()
    first, second = changes.watch(), changes.watch()
    changes.notify()
    assert await first.wait(0)
    changes.notify()
    assert await first.wait(0)
    assert await second.wait(0)
    assert not await second.wait(0)


async def test_a_change_ends_a_wait_at_once() -> None:
    changes = Changes()
    watch = changes.watch()
    waiting = asyncio.create_task(watch.wait(30))
    await asyncio.sleep(0)
    started = time.perf_counter()
    changes.notify()
    assert await waiting
    assert time.perf_counter() - started < 0.1


async def test_a_wait_times_out() -> None:
    assert not await Changes().watch().wait(0.01)


async def test_one_watch_follows_several_sources() -> None:
    first, second = Changes(), Changes()
    watch = watch_any(first, second)
    second.notify()
    assert await watch.wait(0)
    first.notify()
    assert await watch.wait(0)


@pytest.mark.slow
async def test_removed_and_collected_watches_are_dropped() -> None:
    changes = Changes()
    watch = changes.watch()
    changes.remove(watch)
    changes.notify()
    assert not await watch.wait(0)
    kept = [changes.watch() for _ in range(3)]
    kept.clear()
    gc.collect()
    assert not list(changes._watches)
