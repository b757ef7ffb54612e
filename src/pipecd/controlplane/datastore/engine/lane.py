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

from pipecd.controlplane.datastore.engine.link import closed

C = TypeVar("C")
T = TypeVar("T")


class Outcome(NamedTuple):
    """How a piece of work ended: with a result or with an error."""

    result: Any = None
    error: BaseException | None = None


class Job(Generic[C]):
    """A piece of work on a `C`, and who waits for it."""

    __slots__ = ("_context", "waiter", "work")

    def __init__(self, work: Callable[[C], Any], waiter: asyncio.Future[Any]) -> None:
        self.work = work
        self._context = copy_context()
        self.waiter = waiter

    def attempt(self, on: C) -> Outcome:
        """Does the work; an error belongs to the one who waits, not to the thread."""
        try:
            return Outcome(self._context.run(self.work, on))
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

    Only one thread runs Python at a time, and waking another costs more than a short piece of work
    does. So a thread goes on as long as something waits, and another one joins in only when nothing
    was heard of them for longer than `patience`, in seconds: when they wait for something.
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
        self._loop = asyncio.get_running_loop()
        # Filled by the loop and emptied by the threads.
        self._waiting: deque[Job[C]] = deque()
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._busy = 0
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._kicked = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._threads = [
            Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def do(self, work: Callable[[C], T]) -> T:
        """The result of the work; a cancelled caller takes back only what has not begun."""
        if self._closed:
            raise closed()
        job = Job(work, self._loop.create_future())
        self.take(job)
        return await job.waiter

    def take(self, job: Job[C]) -> None:
        """Does what somebody waits for already."""
        self._waiting.append(job)
        self._idle.clear()
        if not self._kicked:
            # Whatever else arrives in this turn of the loop joins the same batch.
            self._kicked = True
            self._loop.call_soon(self._start)

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and no thread is at work."""
        return self._idle.is_set()

    async def close(self) -> None:
        """Finishes what was accepted and ends the threads."""
        self._closed = True
        await self._idle.wait()
        if self._timer is not None:
            self._timer.cancel()
        for _ in self._threads:
            self._wakes.put(False)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _start(self) -> None:
        """Wakes threads for what waits."""
        self._kicked = False
        while self._waiting and self._busy < len(self._threads) and not self._has_to_wait():
            self._busy += 1
            self._heard_at = self._loop.time()
            self._wakes.put(True)
        if not self._waiting and not self._busy:
            self._idle.set()

    def _has_to_wait(self) -> bool:
        """Whether the threads that are busy may be left to it."""
        left = self._heard_at + self._patience - self._loop.time()
        if left <= 0 or not self._busy:
            return False
        if self._timer is None:
            self._timer = self._loop.call_later(left, self._start_late)
        return True

    def _start_late(self) -> None:
        self._timer = None
        self._start()

    def _finish(self, batch: Batch[C], outcomes: Sequence[Outcome], rests: bool) -> None:
        """A thread has done a batch; one that rests has to be woken again."""
        self._heard_at = self._loop.time()
        if rests:
            self._busy -= 1
        for job, outcome in zip(batch, outcomes, strict=True):
            job.settle(outcome)
        self._start()

    def _work(self) -> None:
        """The life of a thread."""
        while self._wakes.get():
            rests = False
            while not rests:
                batch = self._next_batch()
                outcomes = self._outcomes(batch)
                # What is added after this look is seen when the end of the batch is.
                rests = not self._waiting
                self._loop.call_soon_threadsafe(self._finish, batch, outcomes, rests)

    def _next_batch(self) -> list[Job[C]]:
        """What waits, without the work that nobody awaits any more."""
        batch: list[Job[C]] = []
        while len(batch) < self._most_at_once:
            try:
                job = self._waiting.popleft()
            except IndexError:
                break
            if not job.waiter.done():
                batch.append(job)
        return batch

    def _outcomes(self, batch: Batch[C]) -> Sequence[Outcome]:
        if not batch:
            return ()
        try:
            return self._do_batch(batch)
        except Exception as e:  # noqa: BLE001 - it is raised again where the work is awaited.
            return [Outcome(error=e)] * len(batch)
