# SPDX-License-Identifier: Apache-2.0
"""A few connections on which the event loop asks single questions."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

from pipecd.controlplane.datastore.database import Doubtful, Row
from pipecd.controlplane.datastore.engine.link import Arguments, Collided, Lost, closed
from pipecd.controlplane.datastore.engine.pace import Pace
from pipecd.controlplane.datastore.engine.pool import Pool
from pipecd.controlplane.datastore.engine.pooled import for_the_caller, no_answer
from pipecd.controlplane.datastore.postgres.line import Answer, Line, Question
from pipecd.model.errors import PipecdError

MOST_IN_A_ROUND = 64


class Lines:
    """At most so many rounds at once; what is asked meanwhile goes together in the next one."""

    def __init__(self, pool: "Pool[Line]", most: int, *, patience: float) -> None:
        self._pool, self._most, self._patience = pool, most, patience
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(self._begin)
        self._waiting: deque[Question] = deque()
        # All that have no answer yet, oldest first, and some that have.
        self._asked_for: deque[Question] = deque()
        self._is_watched = False
        self._rounds = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._openings: set[asyncio.Task[None]] = set()

    async def rows(self, text: str, arguments: Arguments) -> Sequence[Row]:
        """What a question finds; one that was lost on the way is asked once more."""
        try:
            try:
                answer = await self._asked(text, arguments)
            except (Lost, Collided):
                answer = await self._asked(text, arguments)
        except (Lost, Collided) as e:
            raise for_the_caller(e) or e from e
        return cast("Sequence[Row]", answer)

    async def run(self, text: str, arguments: Arguments) -> int:
        """How many rows were changed; Doubtful when the answer was lost."""
        try:
            answer = await self._asked(text, arguments)
        except (Lost, Collided) as e:
            raise Doubtful(str(e)) from e
        return cast("int", answer)

    async def close(self) -> None:
        """Waits for the statements that are under way."""
        self._closed = True
        await self._idle.wait()

    def _asked(self, text: str, arguments: Arguments) -> "asyncio.Future[Answer]":
        if self._closed:
            raise closed()
        question = Question(text, arguments, self._loop.time(), self._loop.create_future())
        self._waiting.append(question)
        self._asked_for.append(question)
        if not self._is_watched:
            self._watch()
        self._idle.clear()
        self._pace.ask()
        return question.answer

    def _watch(self) -> None:
        """Fails what is not answered in time; one timer for all costs less than one for each."""
        too_old = self._loop.time() - self._patience
        is_stuck = False
        while self._asked_for:
            first = self._asked_for[0]
            if not first.answer.done():
                if first.asked_at > too_old:
                    break
                first.failed(no_answer(self._patience))
                is_stuck = True
            self._asked_for.popleft()
        if is_stuck:
            self._pool.abort_stuck(self._patience)
        self._is_watched = bool(self._asked_for)
        if self._is_watched:
            self._loop.call_later(min(self._patience / 4, 1.0), self._watch)

    def _begin(self) -> int:
        """Sends what waits, and tells how much that is."""
        begun = len(self._waiting)
        if not begun or self._rounds >= self._most:
            return 0
        self._rounds += 1
        line = self._pool.take_idle()
        if line is not None:
            self._ask(line)
            return begun
        opening = asyncio.ensure_future(self._open())
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)
        return begun

    async def _open(self) -> None:
        try:
            line = await asyncio.to_thread(self._pool.take_new)
        except PipecdError as e:
            while self._waiting:
                self._waiting.popleft().failed(e)
            self._over()
        else:
            self._ask(line)

    def _ask(self, line: Line) -> None:
        questions: list[Question] = []
        while self._waiting and len(questions) < MOST_IN_A_ROUND:
            question = self._waiting.popleft()
            # Nobody waits for the answer any more.
            if not question.answer.done():
                questions.append(question)
        if questions:
            line.ask(questions, self._ended)
        else:
            self._ended(line, True, ())

    def _ended(self, line: Line, is_in_order: bool, again: Sequence[Question]) -> None:
        if is_in_order:
            self._pool.give_back(line)
        else:
            self._pool.discard(line)
        self._waiting.extendleft(reversed(again))
        self._over()

    def _over(self) -> None:
        self._rounds -= 1
        if self._waiting:
            self._pace.ask()
        elif not self._rounds:
            self._idle.set()
