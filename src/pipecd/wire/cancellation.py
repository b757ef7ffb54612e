# SPDX-License-Identifier: Apache-2.0
"""Tells the cancellation of a task from that of a call whose channel was closed."""

import asyncio
from collections.abc import Callable


def watch_cancellation() -> Callable[[], bool]:
    """Returns a function that says whether the current task was cancelled since.

    `Task.cancelling` alone does not: before Python 3.13 a TaskGroup in which a task fails while it
    is being left never takes its cancellation of the parent back.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    return lambda: task is not None and task.cancelling() > before
