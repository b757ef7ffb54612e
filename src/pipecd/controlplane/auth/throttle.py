# SPDX-License-Identifier: Apache-2.0
"""Limits how often an attempt may fail."""

from collections import deque
from datetime import datetime, timedelta

from pipecd.cache import LruCache
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import Unavailable

# A full throttle evicts the key that was not used for the longest time.
MAX_KEYS = 10_000


class Throttle:
    """At most `limit` failures per key within `window`."""

    def __init__(
        self, limit: int, *, window: timedelta = timedelta(minutes=1), now: Now = utc_now
    ) -> None:
        self._limit, self._window, self._now = limit, window, now
        self._failures = LruCache[str, deque[datetime]](MAX_KEYS)

    def attempt(self, key: str, message: str) -> None:
        """Counts a failure until `succeeded` is called; Unavailable after too many of them.

        An attempt counts from its start, so that concurrent attempts cannot exceed the limit.
        """
        failures = self._failures.get(key) or deque(maxlen=self._limit)
        since = self._now() - self._window
        while failures and failures[0] <= since:
            failures.popleft()
        if len(failures) >= self._limit:
            raise Unavailable(message, hint="wait a minute and try again")
        failures.append(self._now())
        self._failures.put(key, failures)

    def succeeded(self, key: str) -> None:
        """Resets the failures of a key."""
        self._failures.pop(key)
