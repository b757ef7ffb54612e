# SPDX-License-Identifier: Apache-2.0
"""The tables of sessions, of their endings and of used authorization codes."""

import asyncio
from dataclasses import replace

import pytest

from pipecd.controlplane.datastore.sign_ins import SessionEnding, SessionRecord
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


async def test_sessions_are_listed_newest_first_by_project_and_user(stores: Stores) -> None:
    older = SessionRecord("shop", "a" * 64, "vera", "vera", ("dev", "Viewer"), "sso", 1, NOW + 100)
    newer = replace(older, id="b" * 64, issued_millis=2)
    other_user = replace(older, id="c" * 64, subject="Vera", user="Vera", issued_millis=3)
    expired = replace(older, id="d" * 64, expires_at=NOW)
    foreign = replace(older, project="bank")
    for record in (older, newer, other_user, expired, foreign):
        await stores.sessions.add(record, max_of_user=9)
    listed = stores.sessions.list
    assert await listed("shop", now=NOW, limit=9) == (other_user, newer, older)
    assert await listed("shop", now=NOW, limit=2) == (other_user, newer)
    assert await listed("shop", subject="vera", now=NOW, limit=9) == (newer, older)
    assert await stores.sessions.find("bank", older.id) == foreign
    assert await stores.sessions.find("bank", newer.id) is None
    assert await stores.sessions.delete_expired(NOW) == 1
    assert await stores.sessions.find("shop", expired.id) is None


async def test_the_oldest_sessions_of_a_user_are_dropped_beyond_the_maximum(stores: Stores) -> None:
    first = SessionRecord("shop", "1", "vera", "vera", (), "sso", 1, NOW)
    olga = replace(first, id="9", subject="olga", user="olga")
    await stores.sessions.add(olga, max_of_user=2)
    for number in (1, 3, 2):
        record = replace(first, id=str(number), issued_millis=number)
        await stores.sessions.add(record, max_of_user=2)
    listed = await stores.sessions.list("shop", now=0, limit=9)
    assert [record.id for record in listed] == ["3", "2", "9"]
