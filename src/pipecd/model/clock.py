# SPDX-License-Identifier: Apache-2.0
"""Times: aware datetimes in the program, Unix seconds on the wire."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]

_FIRST_SECOND = int(datetime(1, 1, 3, tzinfo=UTC).timestamp())
_LAST_SECOND = int(datetime(9999, 12, 29, tzinfo=UTC).timestamp())


def utc_now() -> datetime:
    return datetime.now(UTC)


def seconds_clock(now: Now) -> Callable[[], float]:
    """Returns the clock for TTLs in seconds: monotonic, unless tests inject another clock."""
    return time.monotonic if now is utc_now else lambda: now().timestamp()


def to_unix(at: datetime) -> int:
    return int(at.timestamp())


def from_unix(seconds: int) -> datetime:
    """Returns the time; one beyond the years of a datetime, in any zone, is the nearest of them.

    Reports of pipeds and plugins can have any number, and must not break who reads them later.
    """
    return datetime.fromtimestamp(min(max(seconds, _FIRST_SECOND), _LAST_SECOND), UTC)
