# SPDX-License-Identifier: Apache-2.0
"""A limit on how often something may fail before it has to wait."""

from collections import OrderedDict, deque
from datetime import datetime, timedelta

from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import Unavailable

# More names than this are never remembered; the longest untouched one is forgotten first.
MOST_NAMES = 10_000


class Throttle:
    """At most `limit` failures per name within `window`."""

    def __init__(
        self, limit: int, *, window: timedelta = timedelta(minutes=1), now: Now = utc_now
    ) -> None:
        self._limit, self._window, self._now = limit, window, now
        self._failures: OrderedDict[str, deque[datetime]] = OrderedDict()

    def attempt(self, name: str, message: str) -> None:
        """Counts a failure until `succeeded` says otherwise; Unavailable when there were too many.

        An attempt counts from its beginning, or many at the same time would all slip through.
        """
        self._check(name, message)
        self._failures.setdefault(name, deque(maxlen=self._limit)).append(self._now())
        self._failures.move_to_end(name)
        if len(self._failures) > MOST_NAMES:
            self._failures.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forgets the failures of a name."""
        self._failures.pop(name, None)

    def _check(self, name: str, message: str) -> None:
        failures = self._failures.get(name)
        if failures is None:
            return
        since = self._now() - self._window
        while failures and failures[0] <= since:
            failures.popleft()
        if not failures:
            del self._failures[name]
        elif len(failures) >= self._limit:
            raise Unavailable(message, hint="wait a minute and try again")
