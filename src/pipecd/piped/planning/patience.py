# SPDX-License-Identifier: Apache-2.0
"""Waiting for a control plane that is away: what needs it goes on when it is back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from pipecd.model.errors import Unavailable
from pipecd.model.pauses import Pauses

log = structlog.get_logger()

T = TypeVar("T")

_PAUSES = Pauses(first=0.5, longest=30.0)


async def persistently(call: Callable[[], Awaitable[T]], *, what: str) -> T:
    """Repeats a call until the other side is there; any other error is raised."""
    pauses = iter(_PAUSES)
    while True:
        try:
            return await call()
        except Unavailable as e:
            log.warning("the other side is away, trying again", what=what, error=str(e))
            await asyncio.sleep(next(pauses))
