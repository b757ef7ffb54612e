# SPDX-License-Identifier: Apache-2.0
"""What the router counts, for metrics and for the analysis of a canary."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

# Upper bounds of the latency histogram, in seconds.
LATENCY_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
# The longest time that a window can cover, in seconds.
LONGEST_WINDOW = 3600


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram: `counts[i]` requests took at most `bounds[i]` seconds, the last one longer."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Window:
    """The requests of the last seconds, and how many of them failed."""

    seconds: float
    requests: int
    errors: int

    @property
    def error_rate(self) -> float:
        """The share of failed requests, 0 when there were none."""
        return self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class VariantStats:
    """Counters of one variant since the router started.

    An error is a request that the variant answered with a status from 500, cut off, or did not
    answer; a failed connection counts as a request and an error of its variant, also when another
    backend then served the request. For TCP every connection is a request, and the latency is the
    time until the backend accepted it. `statuses` counts answers by class ("2xx").
    """

    weight: int
    version: str
    backends: int
    requests: int
    errors: int
    failed_connections: int
    in_flight: int
    statuses: Mapping[str, int]
    latency: Latency
    last_failure: str


@dataclass(frozen=True, slots=True)
class RouteStats:
    """Counters of one listener and its variants.

    `unserved` requests found no backend at all, `malformed` ones were refused by the router.
    """

    connections: int
    refused_connections: int
    malformed: int
    unserved: int
    retries: int
    variants: Mapping[str, VariantStats] = field(default_factory=dict[str, VariantStats])


class Meter:
    """Counts the requests of one variant."""

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.failed_connections = 0
        self.in_flight = 0
        self.last_failure = ""
        self._statuses = [0] * 10
        self._buckets = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0
        # Per second: its number, the requests, the errors. Seconds without requests are left out.
        self._recent: deque[list[int]] = deque(maxlen=LONGEST_WINDOW)

    def answered(self, now: float, seconds: float, status: int) -> None:
        """Counts a request with its answer."""
        self._statuses[status // 100] += 1
        self._count(now, status >= 500)
        self._buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def accepted(self, now: float, seconds: float) -> None:
        """Counts a TCP connection that a backend accepted."""
        self._count(now, False)
        self._buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def failed(self, now: float, failure: str) -> None:
        """Counts a request that got no answer or an incomplete one."""
        self.last_failure = failure
        self._count(now, True)

    def failed_to_connect(self, now: float, failure: str) -> None:
        """Counts a connection that could not be opened."""
        self.failed_connections += 1
        self.failed(now, failure)

    def _count(self, now: float, is_error: bool) -> None:
        self.requests += 1
        self.errors += is_error
        second = int(now)
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append([second, 0, 0])
        current = self._recent[-1]
        current[1] += 1
        current[2] += is_error

    def begin_window(self) -> None:
        """Leaves what was counted so far out of all windows."""
        self._recent.clear()

    def window(self, now: float, seconds: float) -> Window:
        """Returns the requests of the last seconds, the current one included."""
        requests = errors = 0
        for second, counted, failed in reversed(self._recent):
            if second <= now - seconds - 1:
                break
            requests += counted
            errors += failed
        return Window(seconds, requests, errors)

    def latency(self) -> Latency:
        """Returns the histogram."""
        return Latency(LATENCY_BOUNDS, tuple(self._buckets), self._seconds)

    def statuses(self) -> Mapping[str, int]:
        """Returns the answers by class of status."""
        return {f"{n}xx": count for n, count in enumerate(self._statuses) if count}
