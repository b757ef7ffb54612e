# SPDX-License-Identifier: Apache-2.0
"""The way of work from the event loop to threads and back, in batches.

Work that arrives while the threads are busy waits and then goes together: one thread hop, and for
writes one commit, serves all of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pipecd.model.errors import Unavailable

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """How a piece of work ended: with a result or with an error."""

    result: Any = None
    error: BaseException | None = None


class Job(Generic[C]):
    """A piece of work on a `C`, and who waits for it."""

    __slots__ = ("_context", "_work", "waiter")

    def __init__(self, work: Callable[[C], Any], waiter: asyncio.Future[Any]) -> None:
        self._work = work
        self._context = copy_context()
        self.waiter = waiter

    def attempt(self, on: C) -> Outcome:
        """Does the work; an error belongs to the one who waits, not to the thread."""
        try:
            return Outcome(self._context.run(self._work, on))
        except Exception as e:  # noqa: BLE001 - it is raised again where the work is awaited.
            return Outcome(error=e)

    def settle(self, outcome: Outcome) -> None:
        if self.waiter.done():
            return
        if outcome.error is not None:
            self.waiter.set_exception(outcome.error)
        else:
            self.waiter.set_result(outcome.result)


Batch = Sequence[Job[C]]


class Lane(Generic[C]):
    """A number of threads that take turns at batches of waiting work."""

    def __init__(
        self,
        name: str,
        do_batch: Callable[[Batch[C]], Sequence[Outcome]],
        *,
        threads: int,
        most_at_once: int,
    ) -> None:
        self._do_batch = do_batch
        self._most_at_once = most_at_once
        self._free = self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting: deque[Job[C]] = deque()
        self._kicked = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def do(self, work: Callable[[C], T]) -> T:
        """The result of the work; a cancelled caller takes back only what has not begun."""
        if self._closed:
            raise Unavailable("the database is closed")
        loop = asyncio.get_running_loop()
        job = Job(work, loop.create_future())
        self._waiting.append(job)
        self._idle.clear()
        if not self._kicked:
            # Whatever else arrives in this turn of the loop joins the same batch.
            self._kicked = True
            loop.call_soon(self._start)
        return await job.waiter

    async def close(self) -> None:
        """Finishes what was accepted and ends the threads."""
        self._closed = True
        await self._idle.wait()
        await asyncio.to_thread(self._pool.shutdown)

    def _start(self) -> None:
        self._kicked = False
        while self._free and (batch := self._next_batch()):
            self._free -= 1
            running = asyncio.get_running_loop().run_in_executor(self._pool, self._do_batch, batch)
            running.add_done_callback(lambda done, batch=batch: self._finish(batch, done))
        if not self._waiting and self._free == self._threads:
            self._idle.set()

    def _next_batch(self) -> list[Job[C]]:
        """A fair share of what waits, without the work that nobody awaits any more."""
        share = -(-len(self._waiting) // self._free)
        batch: list[Job[C]] = []
        while self._waiting and len(batch) < min(share, self._most_at_once):
            job = self._waiting.popleft()
            if not job.waiter.done():
                batch.append(job)
        return batch

    def _finish(self, batch: Batch[C], done: asyncio.Future[Sequence[Outcome]]) -> None:
        self._free += 1
        error = done.exception()
        if error is not None:
            for job in batch:
                job.settle(Outcome(error=error))
        else:
            for job, outcome in zip(batch, done.result(), strict=True):
                job.settle(outcome)
        self._start()
