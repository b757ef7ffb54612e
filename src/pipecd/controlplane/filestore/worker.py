# SPDX-License-Identifier: Apache-2.0
"""Work that blocks, off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def finished(task: "asyncio.Future[T]") -> T:
    """The result; work that has begun is waited for, even by a cancelled caller.

    A write that went on unobserved could replace a newer one.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        # Nobody is left to hear how it ended; asked for, the loop does not complain about it.
        if not task.cancelled():
            task.exception()
        raise


class Workers:
    """Threads of one filestore, so that a slow one keeps nobody else waiting."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def do(self, work: Callable[[], T]) -> T:
        return await finished(asyncio.get_running_loop().run_in_executor(self._pool, work))

    async def close(self) -> None:
        """Waits for what was begun."""
        await asyncio.to_thread(self._pool.shutdown)
