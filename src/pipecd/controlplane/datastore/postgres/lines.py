# SPDX-License-Identifier: Apache-2.0
"""A few connections on which the event loop asks single questions."""

import asyncio
from collections.abc import Sequence

from psycopg.pq.abc import PGresult

from pipecd.controlplane.datastore.database import Doubtful, Row
from pipecd.controlplane.datastore.engine.link import Arguments, Collided, Lost
from pipecd.controlplane.datastore.engine.pool import Pool
from pipecd.controlplane.datastore.engine.pooled import for_the_caller
from pipecd.controlplane.datastore.postgres.line import Line
from pipecd.model.errors import Unavailable


class Lines:
    """At most so many statements at once; the others wait for their turn."""

    def __init__(self, pool: "Pool[Line]", most: int) -> None:
        self._pool, self._most = pool, most
        self._turns = asyncio.Semaphore(most)
        self._closed = False

    async def rows(self, text: str, arguments: Arguments) -> Sequence[Row]:
        """What a question finds; one that was lost on the way is asked once more."""
        try:
            try:
                line, answer = await self._asked(text, arguments)
            except (Lost, Collided):
                line, answer = await self._asked(text, arguments)
        except (Lost, Collided) as e:
            raise for_the_caller(e) or e from e
        return line.rows(answer)

    async def run(self, text: str, arguments: Arguments) -> int:
        """How many rows were changed; Doubtful when the answer was lost."""
        try:
            _, answer = await self._asked(text, arguments)
        except (Lost, Collided) as e:
            raise Doubtful(str(e)) from e
        return answer.command_tuples or 0

    async def close(self) -> None:
        """Waits for the statements that are under way."""
        self._closed = True
        for _ in range(self._most):
            await self._turns.acquire()

    async def _asked(self, text: str, arguments: Arguments) -> tuple[Line, PGresult]:
        if self._closed:
            raise Unavailable("the database is closed")
        await self._turns.acquire()
        try:
            line = self._pool.take_idle() or await self._opened()
        except BaseException:
            self._turns.release()
            raise
        return line, await line.ask(text, arguments, self._freed)

    async def _opened(self) -> Line:
        opening = asyncio.ensure_future(asyncio.to_thread(self._pool.take_new))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, opening: "asyncio.Future[Line]") -> None:
        """Nobody waits for the connection any more; the next one may have it."""
        if not opening.cancelled() and opening.exception() is None:
            self._pool.give_back(opening.result())

    def _freed(self, line: Line, is_in_order: bool) -> None:
        if is_in_order:
            self._pool.give_back(line)
        else:
            self._pool.discard(line)
        self._turns.release()
