# SPDX-License-Identifier: Apache-2.0
"""Points in time: aware datetimes inside, unix seconds on the wire."""

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def to_unix(moment: datetime) -> int:
    return int(moment.timestamp())


def from_unix(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
