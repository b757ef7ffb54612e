# SPDX-License-Identifier: Apache-2.0
"""What a provider is asked for and answers with."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pipecd.sdk import PipecdError


class NoData(PipecdError):
    """The provider answered, and had nothing to say about the time asked for."""


@dataclass(frozen=True)
class Window:
    """A stretch of time, in Unix seconds."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """How long it is, in seconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Point:
    """A value that was measured at a time."""

    at: float
    value: float

    def __str__(self) -> str:
        return f"{self.value:g} at {datetime.fromtimestamp(self.at, UTC):%H:%M:%S}"


class MetricProvider(Protocol):
    """Answers queries for metrics."""

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """What was measured in the window; `NoData` if it has nothing where there should be."""
        ...


class LogProvider(Protocol):
    """Finds entries in logs."""

    async def entries(self, query: str, window: Window) -> Sequence[str]:
        """The first of the entries in the window that match, as a person reads them."""
        ...
