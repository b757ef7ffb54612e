# SPDX-License-Identifier: Apache-2.0
"""Runs a task until it ends, a user cancels it, or it times out.

A cancellation or timeout is a value (`Stop`) and ends the deployment. When piped itself shuts down
it cancels the task that runs the deployment: nothing is decided, and the next start resumes.
"""

import asyncio
from typing import TypeVar

import structlog

from pipecd.piped.plan.rollback import TIMED_OUT, Stop

log = structlog.get_logger()

T = TypeVar("T")

GRACE_PERIOD = 20.0


async def until_stopped(
    task: asyncio.Task[T],
    stop: asyncio.Future[Stop],
    *,
    time_limit: float | None = None,
    grace_period: float = GRACE_PERIOD,
) -> T | Stop:
    """Returns the result of the task, or what stopped it.

    A stopped task is cancelled and has ended when this returns, unless it ignores the
    cancellation for longer than the grace period.
    """
    try:
        await asyncio.wait({task, stop}, timeout=time_limit, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return stop.result() if stop.done() else TIMED_OUT
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=grace_period)
            if not task.done():
                log.warning("stopped task is still running", task=task.get_name())
                task.add_done_callback(_log_error)
            elif not task.cancelled():
                _log_error(task)


def _log_error(task: asyncio.Task[T]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("stopped task failed", task=task.get_name(), error=str(error))
