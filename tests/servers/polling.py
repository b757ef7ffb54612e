# SPDX-License-Identifier: Apache-2.0
"""Polls a condition until it holds."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")


async def eventually(
    condition: Callable[[], Awaitable[T | None]] | Callable[[], T | None], within: float = 10
) -> T:
    """Returns the first true result of the condition; raises TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return cast("T", result)
            await asyncio.sleep(0.005)
