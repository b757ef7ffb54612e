# SPDX-License-Identifier: Apache-2.0
"""The tables of ended sessions and of used authorization codes."""

import asyncio
from dataclasses import replace

import pytest

from pipecd.controlplane.datastore.sign_ins import SessionEnding
from pipecd.controlplane.datastore.stores import Stores

NOW = 1_700_000_000
ENDING = SessionEnding("shop", "user", "vera", ended_at_millis=NOW * 1000, expires_at=NOW + 100)


async def test_endings_are_read_from_a_time_on(stores: Stores) -> None:
    later = replace(ENDING, subject="Vera", ended_at_millis=ENDING.ended_at_millis + 1)
    await stores.session_endings.add([ENDING, later])
    assert set(await stores.session_endings.since(0, now=NOW)) == {ENDING, later}
    assert await stores.session_endings.since(later.ended_at_millis, now=NOW) == (later,)
    assert await stores.session_endings.since(later.ended_at_millis + 1, now=NOW) == ()


async def test_an_ending_moves_to_the_later_time(stores: Stores) -> None:
    later = replace(ENDING, ended_at_millis=ENDING.ended_at_millis + 5, expires_at=NOW + 200)
    for ending in (ENDING, later, ENDING):
        await stores.session_endings.add([ending])
    assert await stores.session_endings.since(0, now=NOW) == (later,)


async def test_expired_endings_are_neither_read_nor_kept(stores: Stores) -> None:
    lasting = replace(ENDING, subject="olga", expires_at=NOW + 200)
    await stores.session_endings.add([ENDING, lasting])
    assert await stores.session_endings.since(0, now=NOW + 100) == (lasting,)
    assert await stores.session_endings.delete_expired(NOW + 100) == 1
    assert await stores.session_endings.since(0, now=0) == (lasting,)


async def test_concurrent_endings_are_all_stored(stores: Stores) -> None:
    endings = [replace(ENDING, ended_at_millis=ENDING.ended_at_millis + n) for n in range(8)]
    await asyncio.gather(*(stores.session_endings.add([ending]) for ending in endings))
    assert await stores.session_endings.since(0, now=NOW) == (endings[-1],)


@pytest.mark.usefixtures("row_locks")
async def test_a_code_is_used_once(stores: Stores) -> None:
    results = await asyncio.gather(
        *(stores.used_codes.add("a" * 64, expires_at=NOW + 10) for _ in range(5))
    )
    assert sorted(results) == [False] * 4 + [True]
    assert await stores.used_codes.add("b" * 64, expires_at=NOW + 20)
    assert await stores.used_codes.delete_expired(NOW + 10) == 1
    assert await stores.used_codes.add("a" * 64, expires_at=NOW + 10)
    assert not await stores.used_codes.add("b" * 64, expires_at=NOW + 20)
