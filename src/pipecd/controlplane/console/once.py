# SPDX-License-Identifier: Apache-2.0
"""A form sent twice in a moment is carried out once."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

from pipecd.model.clock import Now

MOMENT = timedelta(seconds=3)


class Once:
    """Remembers for a moment what a form led to, so that a double click does it once."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._done: dict[tuple[str, ...], tuple[datetime, str]] = {}
        self._doing: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    async def do(self, form: tuple[str, ...], deed: Callable[[], Awaitable[str]]) -> str:
        """What the deed leads to, or led to a moment ago."""
        lock = self._doing.setdefault(form, asyncio.Lock())
        async with lock:
            since = self._now() - MOMENT
            self._done = {key: done for key, done in self._done.items() if done[0] > since}
            if form not in self._done:
                self._done[form] = (self._now(), await deed())
            return self._done[form][1]
