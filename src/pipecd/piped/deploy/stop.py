# SPDX-License-Identifier: Apache-2.0
"""Being told to stop: why, and the one place where that races against the work.

A person cancels, or time is up: both are values and end the deployment. When piped itself stops,
the task that carries out the deployment is cancelled; nothing is decided and the next start
resumes.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import structlog

from pipecd.proto.model.command_pb2 import Command

log = structlog.get_logger()

T = TypeVar("T")

GRACE = 20.0


class StopReason(Enum):
    """Why work is stopped before its end."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Stop:
    """An order to stop; a person may say what is to become of the rollback."""

    reason: StopReason
    by: str = ""
    force_rollback: bool = False
    force_no_rollback: bool = False


def stop_of(command: Command) -> Stop:
    """The order that a person gave by cancelling a deployment."""
    return Stop(
        StopReason.CANCELLED,
        by=command.commander,
        force_rollback=command.cancel_deployment.force_rollback,
        force_no_rollback=command.cancel_deployment.force_no_rollback,
    )


TIME_IS_UP = Stop(StopReason.TIMED_OUT)


async def until_stopped(
    task: asyncio.Task[T],
    stop: asyncio.Future[Stop],
    *,
    at_most: float | None = None,
    grace: float = GRACE,
) -> T | Stop:
    """The result of the task, or what stopped it; a stopped task is over when this returns."""
    try:
        await asyncio.wait({task, stop}, timeout=at_most, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return stop.result() if stop.done() else TIME_IS_UP
    finally:
        await _end(task, grace)


async def _end(task: asyncio.Task[T], grace: float) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=grace)
        if not task.done():
            log.warning("stopped work goes on although it was told to end", task=task.get_name())
            task.add_done_callback(_told)
        elif not task.cancelled():
            _told(task)


def _told(task: asyncio.Task[T]) -> None:
    """Looks at an error that nobody waits for any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("stopped work failed", task=task.get_name(), error=str(error))
