# SPDX-License-Identifier: Apache-2.0
"""Times: aware datetimes in the program, Unix seconds on the wire."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def seconds_clock(now: Now) -> Callable[[], float]:
    """Returns the clock for TTLs in seconds: monotonic, unless tests inject another clock."""
    return time.monotonic if now is utc_now else lambda: now().timestamp()


def to_unix(at: datetime) -> int:
    return int(at.timestamp())


def from_unix(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
