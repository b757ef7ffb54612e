# SPDX-License-Identifier: Apache-2.0
"""The way of work from the event loop to threads and back, in batches.

Work that arrives while the threads are busy waits and then goes together: one thread hop, and for
writes one commit, serves all of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar

from pipecd.model.errors import Unavailable

C = TypeVar("C")
T = TypeVar("T")


class Outcome(NamedTuple):
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
    """A number of threads that take turns at batches of waiting work.

    Only one thread runs Python at a time, and passing that right around costs more than a short
    piece of work does. So another thread joins in only when the last one to begin has been busy for
    longer than `patience`, which in seconds is that of a piece of work that waits for something.
    """

    def __init__(
        self,
        name: str,
        do_batch: Callable[[Batch[C]], Sequence[Outcome]],
        *,
        threads: int,
        most_at_once: int,
        patience: float = 0.0,
    ) -> None:
        self._do_batch = do_batch
        self._most_at_once = most_at_once
        self._patience = patience
        self._began_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._free = threads
        # An executor would make two futures of every batch; a queue costs a tenth of that.
        self._batches: SimpleQueue[Batch[C] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._threads = [
            Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self._waiting: deque[Job[C]] = deque()
        self._kicked = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def do(self, work: Callable[[C], T]) -> T:
        """The result of the work; a cancelled caller takes back only what has not begun."""
        if self._closed:
            raise Unavailable("the database is closed")
        job = Job(work, self._loop.create_future())
        self._waiting.append(job)
        self._idle.clear()
        if not self._kicked:
            # Whatever else arrives in this turn of the loop joins the same batch.
            self._kicked = True
            self._loop.call_soon(self._start)
        return await job.waiter

    async def close(self) -> None:
        """Finishes what was accepted and ends the threads."""
        self._closed = True
        await self._idle.wait()
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                outcomes = self._do_batch(batch)
            except Exception as e:  # noqa: BLE001 - it is raised again where the work is awaited.
                outcomes = [Outcome(error=e)] * len(batch)
            self._loop.call_soon_threadsafe(self._finish, batch, outcomes)

    def _start(self) -> None:
        self._kicked = False
        while self._free and self._waiting and not self._has_to_wait():
            if batch := self._next_batch():
                self._free -= 1
                self._began_at = self._loop.time()
                self._batches.put(batch)
        if not self._waiting and self._free == len(self._threads):
            self._idle.set()

    def _has_to_wait(self) -> bool:
        """Whether a thread that has only just begun is to be awaited."""
        left = self._began_at + self._patience - self._loop.time()
        if left <= 0 or self._free == len(self._threads):
            return False
        if self._timer is None:
            self._timer = self._loop.call_later(left, self._start_late)
        return True

    def _start_late(self) -> None:
        self._timer = None
        self._start()

    def _next_batch(self) -> list[Job[C]]:
        """A fair share of what waits, without the work that nobody awaits any more."""
        # Whoever is patient leaves all of it to one thread.
        share = len(self._waiting) if self._patience else -(-len(self._waiting) // self._free)
        batch: list[Job[C]] = []
        while self._waiting and len(batch) < min(share, self._most_at_once):
            job = self._waiting.popleft()
            if not job.waiter.done():
                batch.append(job)
        return batch

    def _finish(self, batch: Batch[C], outcomes: Sequence[Outcome]) -> None:
        self._free += 1
        for job, outcome in zip(batch, outcomes, strict=True):
            job.settle(outcome)
        self._start()
