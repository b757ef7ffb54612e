# SPDX-License-Identifier: Apache-2.0
"""Single statements that change something, run on the event loop.

To wake the thread that writes and to take turns with it costs more than such a statement does. The
thread is left what takes its time: to wait for a lock that another program holds, to move the
write-ahead log into the file, and large batches.
"""

import asyncio
import sqlite3
from pathlib import Path

from pipecd.controlplane.datastore.database import Writing
from pipecd.controlplane.datastore.engine.lane import Job, Lane
from pipecd.controlplane.datastore.engine.pace import Pace
from pipecd.controlplane.datastore.engine.statement import Alone
from pipecd.controlplane.datastore.sqlite.commits import commit
from pipecd.controlplane.datastore.sqlite.errors import Locked

MOST_ON_THE_LOOP = 32
# After so many the log is long enough to be moved into the file.
MOST_IN_A_ROW = 256


class Changes:
    """Statements on a connection of the event loop; what waits together is committed together."""

    def __init__(self, connection: sqlite3.Connection, path: Path, thread: Lane[Writing]) -> None:
        self._connection, self._path, self._thread = connection, path, thread
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(self._begin)
        self._waiting: list[Job[Writing]] = []
        self._in_a_row = 0

    async def run(self, work: Alone) -> int:
        """How many rows the statement has changed, once it is committed."""
        job: Job[Writing] = Job(work, self._loop.create_future())
        self._waiting.append(job)
        self._pace.ask()
        return await job.waiter

    def close(self) -> None:
        """Brings what waits to its end or to the thread."""
        self._begin()

    def _begin(self) -> int:
        """Does what waits, and tells how much that is."""
        batch = [job for job in self._waiting if not job.waiter.done()]
        self._waiting.clear()
        self._in_a_row += len(batch)
        if (
            len(batch) > MOST_ON_THE_LOOP
            or self._in_a_row > MOST_IN_A_ROW
            or not self._thread.is_idle
        ):
            self._leave_to_the_thread(batch)
        else:
            outcomes = commit(self._connection, self._path, batch)
            locked: list[Job[Writing]] = []
            for job, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome.error, Locked):
                    locked.append(job)
                else:
                    job.settle(outcome)
            self._leave_to_the_thread(locked)
        return len(batch)

    def _leave_to_the_thread(self, batch: list[Job[Writing]]) -> None:
        if batch:
            self._in_a_row = 0
        for job in batch:
            self._thread.take(job)
