# SPDX-License-Identifier: Apache-2.0
"""Connections are kept while they are good and replaced when they are not."""

from collections.abc import Sequence

import pytest

from pipecd.controlplane.datastore.database import Row
from pipecd.controlplane.datastore.engine.link import Arguments, Begin
from pipecd.controlplane.datastore.engine.pool import LONGEST_IDLE, LONGEST_LIFE, PAUSE, Pool
from pipecd.model.errors import Unavailable, UserMistake


class Wire:
    """A connection that leads nowhere."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = "open"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def rows(self, text: str, arguments: Arguments) -> Sequence[Row]:
        raise NotImplementedError

    def run(self, text: str, arguments: Arguments) -> int:
        raise NotImplementedError

    def run_many(self, text: str, arguments: Sequence[Arguments]) -> None:
        raise NotImplementedError

    def begin(self, what: Begin) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def roll_back(self) -> None:
        raise NotImplementedError


class Exchange:
    """Opens connections, unless it is told to refuse; its clock is set by hand."""

    def __init__(self) -> None:
        self.opened: list[Wire] = []
        self.asked = 0
        self.refusal: Exception | None = None
        self.seconds = 0.0

    def connect(self) -> Wire:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        self.opened.append(Wire(len(self.opened)))
        return self.opened[-1]

    def clock(self) -> float:
        return self.seconds


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


@pytest.fixture
def pool(exchange: Exchange) -> Pool:
    return Pool(exchange.connect, clock=exchange.clock)


def states(exchange: Exchange) -> list[str]:
    return [wire.state for wire in exchange.opened]


def test_a_connection_is_used_again(exchange: Exchange, pool: Pool) -> None:
    one, two = pool.take(), pool.take()
    assert one is not two
    pool.give_back(one)
    assert pool.take() is one


def test_the_last_one_used_comes_first_so_that_the_others_grow_old(
    exchange: Exchange, pool: Pool
) -> None:
    one, two = pool.take(), pool.take()
    pool.give_back(one)
    pool.give_back(two)
    for _ in range(3):
        exchange.seconds += LONGEST_IDLE / 2
        again = pool.take()
        assert again is two
        pool.give_back(again)
    pool.take()
    assert pool.take() is not one
    assert one.state == "closed"  # type: ignore[attr-defined]


def test_a_connection_is_not_kept_for_ever(exchange: Exchange, pool: Pool) -> None:
    one = pool.take()
    for _ in range(int(LONGEST_LIFE / 100) + 1):
        pool.give_back(one)
        exchange.seconds += 100
        one = pool.take()
    assert states(exchange)[:2] == ["closed", "open"]


def test_with_a_broken_connection_go_all_of_its_time(exchange: Exchange, pool: Pool) -> None:
    broken, idle, busy = pool.take(), pool.take(), pool.take()
    pool.give_back(idle)
    pool.discard(broken)
    assert states(exchange) == ["closed", "closed", "open"]
    fresh = pool.take()
    pool.give_back(busy)
    assert states(exchange) == ["closed", "closed", "closed", "open"]
    pool.give_back(fresh)
    assert pool.take() is fresh


def test_a_second_broken_connection_does_not_take_the_new_ones_along(
    exchange: Exchange, pool: Pool
) -> None:
    one, two = pool.take(), pool.take()
    pool.discard(one)
    pool.give_back(pool.take())
    pool.discard(two)
    assert states(exchange) == ["closed", "closed", "open"]


def test_a_server_that_is_away_is_left_alone_for_a_moment(exchange: Exchange, pool: Pool) -> None:
    exchange.refusal = Unavailable("no route")
    for _ in range(5):
        with pytest.raises(Unavailable, match="no route"):
            pool.take()
    assert exchange.asked == 1
    exchange.seconds += PAUSE
    exchange.refusal = None
    pool.take()
    assert exchange.asked == 2


def test_whoever_asks_for_data_is_not_blamed_for_a_wrong_password(
    exchange: Exchange, pool: Pool
) -> None:
    exchange.refusal = UserMistake("wrong password")
    with pytest.raises(Unavailable, match="wrong password"):
        pool.take()


def test_only_what_is_stuck_is_aborted(exchange: Exchange, pool: Pool) -> None:
    pool.give_back(pool.take())
    stuck = pool.take()
    exchange.seconds += 30
    pool.take()
    pool.abort_stuck(30)
    assert states(exchange) == ["aborted", "open"]
    pool.discard(stuck)


def test_at_the_end_all_are_closed(exchange: Exchange, pool: Pool) -> None:
    busy, idle = pool.take(), pool.take()
    pool.give_back(idle)
    pool.close()
    pool.give_back(busy)
    assert states(exchange) == ["closed", "closed"]
