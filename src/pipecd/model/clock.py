# SPDX-License-Identifier: Apache-2.0
"""Times: aware datetimes in the program, Unix seconds on the wire."""

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def to_unix(time: datetime) -> int:
    return int(time.timestamp())


def from_unix(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
