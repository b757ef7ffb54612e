# SPDX-License-Identifier: Apache-2.0
"""Waiting for a control plane that is away: what needs it goes on when it is back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from pipecd.model.backoff import Backoff
from pipecd.model.errors import Unavailable

log = structlog.get_logger()

T = TypeVar("T")

_BACKOFF = Backoff(first=0.5, longest=30.0)


async def persistently(call: Callable[[], Awaitable[T]], *, what: str) -> T:
    """Repeats a call until the other side is there; any other error is raised."""
    pauses = iter(_BACKOFF)
    while True:
        try:
            return await call()
        except Unavailable as e:
            log.warning("the other side is away, trying again", what=what, error=str(e))
            await asyncio.sleep(next(pauses))
