# SPDX-License-Identifier: Apache-2.0
"""How replicas learn of ended sessions, and what an ending leaves alone."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import pytest

from pipecd.controlplane.auth.ended_sessions import EndingScope, EndingTarget
from pipecd.controlplane.auth.sessions import SessionTokens
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import session_endings
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.model.clock import Now
from servers.polling import eventually

KEY = b"0123456789abcdef0123456789abcdef\n"
VERA = User("shop", "vera", ("Viewer",))
ALL = EndingTarget(EndingScope.ALL)


@pytest.fixture
def start_replica(stores: Stores, now: Now) -> Callable[..., SessionEndings]:
    """Starts replicas, each with a bus of its own unless one is given."""
    return lambda bus=None, clock=now: SessionEndings(
        stores.session_endings, bus or MemoryBus(), clock
    )


async def is_ended(replica: SessionEndings, token: str, now: Now) -> bool:
    return await replica.contain(SessionTokens(KEY, now).verify(token))


def issue(replica: SessionEndings, now: Now, user: User = VERA) -> str:
    return SessionTokens(KEY, now).sign(user, via="sso", issued_millis=replica.issue_millis())


@pytest.mark.parametrize("shared_bus", [True, False], ids=["by signal", "by polling"])
async def test_a_replica_learns_of_the_endings_of_another(
    *,
    start_replica: Callable[..., SessionEndings],
    now: Now,
    shared_bus: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_endings, "POLL_SECONDS", 60 if shared_bus else 0.01)
    bus = MemoryBus()
    one, two = start_replica(bus), start_replica(bus if shared_bus else None)
    token = issue(one, now)
    assert not await is_ended(two, token, now)
    running = asyncio.create_task(two.run())
    await asyncio.sleep(0)
    await one.end("shop", ALL)
    await eventually(lambda: is_ended(two, token, now))
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_replica_with_another_clock_issues_sessions_after_an_ending(
    start_replica: Callable[..., SessionEndings], now: Now
) -> None:
    def behind() -> datetime:
        return now() - timedelta(seconds=30)

    one, two = start_replica(), start_replica(None, behind)
    early = issue(one, now)
    await two.end("shop", ALL)
    # The session was issued by a clock that is ahead, and ended by one that is behind.
    assert await is_ended(two, early, now)
    assert not await is_ended(two, issue(two, behind), now)
    await one.refresh()
    assert not await is_ended(one, issue(one, now), now)


async def test_two_endings_at_the_same_moment_end_what_is_between(
    start_replica: Callable[..., SessionEndings], now: Now
) -> None:
    replica = start_replica()
    await replica.end("shop", ALL)
    token = issue(replica, now)
    assert not await is_ended(replica, token, now)
    await replica.end("shop", ALL)
    assert await is_ended(replica, token, now)


async def test_concurrent_refreshes_share_a_query(
    start_replica: Callable[..., SessionEndings], stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = 0
    since = stores.session_endings.since

    async def counted(*arguments: int, **options: int) -> object:
        nonlocal queries
        queries += 1
        await asyncio.sleep(0.01)
        return await since(*arguments, **options)

    monkeypatch.setattr(stores.session_endings, "since", counted)
    replica = start_replica()
    await asyncio.gather(*(replica.refresh() for _ in range(50)))
    assert queries <= 2


async def test_endings_are_forgotten_when_the_sessions_have_expired(
    start_replica: Callable[..., SessionEndings],
    now: Now,
    advance: Callable[[float], None],
) -> None:
    replica = start_replica()
    token = issue(replica, now)
    await replica.end_session(SessionTokens(KEY, now).verify(token))
    assert await is_ended(replica, token, now)
    verified = SessionTokens(KEY, now).verify(token)
    advance(8 * 24 * 3600)
    await replica.refresh()
    assert not await replica.contain(verified)
