# SPDX-License-Identifier: Apache-2.0
"""Retry policies: how often piped repeats what failed, and how long it waits in between.

Each RPC has its policy in one row of `control_plane_client`; its callers do not retry. Reads of
Git use `retry_while_unavailable`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from pipecd.model.backoff import Backoff
from pipecd.model.errors import Unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

T = TypeVar("T")

_GIT_BACKOFF = Backoff(first=0.5, longest=30.0)


@dataclass(frozen=True)
class RpcRetryPolicy:
    """How often a call is made in all; None means until it works.

    `when_unavailable` counts while the control plane cannot be reached, is overloaded or does not
    answer in time. `on_error` counts when it answers with an error that may pass: a request that
    it can never handle must not block its caller forever. `deadline` is that of the first attempt,
    in seconds; it doubles with every further one up to LONGEST_DEADLINE.
    """

    when_unavailable: int | None
    on_error: int | None
    deadline: float

    def deadline_after(self, attempts: int) -> float:
        """Returns the deadline of the next attempt after so many have failed."""
        return Backoff(self.deadline, LONGEST_DEADLINE).after(attempts + 1)


LONGEST_DEADLINE = 30.0
# Lists, logs and live states may be large, and a slow link must have the time to carry them.
ONCE = RpcRetryPolicy(1, 1, LONGEST_DEADLINE)
A_FEW_TIMES = RpcRetryPolicy(3, 3, LONGEST_DEADLINE)
# Most requests are small. A short deadline repeats soon what a proxy sent to a dead replica.
SHORT_ONCE = RpcRetryPolicy(1, 1, 8.0)
# A piped that ends does not wait for a control plane that is unavailable.
RELEASE = RpcRetryPolicy(1, 1, 3.0)
UNTIL_AVAILABLE = RpcRetryPolicy(None, 10, 8.0)
UNTIL_IT_WORKS = RpcRetryPolicy(None, None, 8.0)


async def retry_while_unavailable(
    read: Callable[[], Awaitable[T]],
    *,
    repository: str,
    chance: Callable[[], float] = random.random,
) -> T:
    """Reads from a Git repository, with backoff and jitter as long as it is unavailable."""
    pauses = iter(_GIT_BACKOFF)
    while True:
        try:
            return await read()
        except Unavailable as e:
            pause = next(pauses) * (1 + chance()) / 2
            log.warning(
                "Git repository unavailable, retrying",
                repository=repository,
                retry_in=round(pause, 1),
                error=str(e),
            )
            await asyncio.sleep(pause)
