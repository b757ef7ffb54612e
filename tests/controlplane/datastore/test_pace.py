# SPDX-License-Identifier: Apache-2.0
"""When rounds of statements wait for company."""

import asyncio

from pipecd.controlplane.datastore.engine.pace import RARELY, TRY_AFTER, Company, Pace


def waits_in(rounds: int, size: int, company: Company) -> int:
    """How many of the rounds, each of this size, were told to wait."""
    waited = 0
    for _ in range(rounds):
        waited += company.is_expected
        company.met(size)
    return waited


def test_a_single_caller_hardly_ever_waits() -> None:
    assert waits_in(10_000, 1, Company()) < 20


def test_a_single_caller_waits_ever_more_rarely() -> None:
    company = Company()
    waits_in(100 * RARELY, 1, company)
    assert waits_in(10 * RARELY, 1, company) <= 10


def test_many_callers_soon_wait_for_one_another_every_time() -> None:
    company = Company()
    assert waits_in(TRY_AFTER, 1, company) == 0
    assert waits_in(1000, 5, company) == 1000


def test_nobody_waits_any_more_when_the_others_have_gone() -> None:
    company = Company()
    waits_in(1000, 5, company)
    assert waits_in(100, 1, company) < 10


def test_company_that_was_there_lately_is_looked_for_soon() -> None:
    company = Company()
    waits_in(100 * RARELY, 1, company)
    # It is found once, is there for a while, and goes.
    waits_in(RARELY, 1, company)
    while not company.is_expected:
        company.met(1)
    waits_in(100, 5, company)
    waits_in(10, 1, company)
    assert not company.is_expected
    assert waits_in(3 * TRY_AFTER, 1, company) >= 1


class Desk:
    """Answers all that wait at once, and notes how many they were."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.rounds: list[int] = []
        self.pace = Pace(self.begin)

    def begin(self) -> int:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.set_result(None)
        if waiting:
            self.rounds.append(len(waiting))
        return len(waiting)

    async def ask(self, times: int) -> None:
        for _ in range(times):
            answer = asyncio.get_running_loop().create_future()
            self.waiting.append(answer)
            self.pace.ask()
            await answer
            await asyncio.sleep(0)


async def test_a_question_by_itself_is_asked_at_once() -> None:
    desk = Desk()
    await desk.ask(1)
    assert desk.rounds == [1]


async def test_callers_who_ask_all_the_time_come_to_ask_together() -> None:
    desk = Desk()
    await asyncio.gather(*(desk.ask(20) for _ in range(8)))
    assert sum(desk.rounds) == 8 * 20
    assert max(desk.rounds) == 8
    assert len(desk.rounds) < 8 * 20 / 3
