# SPDX-License-Identifier: Apache-2.0
"""When a job is due: at an interval, or by a line of cron in UTC."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from pipecd.config.controlplane import DAYS, MONTHS
from pipecd.config.units import Duration

_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
# Eight years lie between two leap days around a century; nothing is rarer.
_LONGEST_SEARCH = timedelta(days=9 * 366)
_NEVER = datetime.max.replace(tzinfo=UTC)


class Schedule(Protocol):
    """Says when something is due."""

    def after(self, moment: datetime) -> datetime:
        """The next time, later than the given one."""
        ...


@dataclass(frozen=True)
class Every:
    """Again after so much time."""

    interval: timedelta

    def after(self, moment: datetime) -> datetime:
        return moment + self.interval


@dataclass(frozen=True)
class Field:
    """The numbers that one field of a line allows; `is_free` when it says nothing."""

    numbers: frozenset[int]
    is_free: bool

    def __contains__(self, number: int) -> bool:
        return number in self.numbers


@dataclass(frozen=True)
class Cron:
    """Minutes, hours, days, months and days of the week that are allowed."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    def after(self, moment: datetime) -> datetime:
        moment = moment.astimezone(UTC)
        start = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        for day in _days(start.date().toordinal()):
            if self._allows_day(day):
                for hour in sorted(self.hour.numbers):
                    for minute in sorted(self.minute.numbers):
                        due = day.replace(hour=hour, minute=minute)
                        if due >= start:
                            return due
        return _NEVER

    def _allows_day(self, day: datetime) -> bool:
        if day.month not in self.month:
            return False
        by_date = day.day in self.day
        by_week = day.isoweekday() % 7 in self.weekday
        # As in every cron: two restrictions are alternatives.
        if self.day.is_free or self.weekday.is_free:
            return by_date and by_week
        return by_date or by_week


def parse_schedule(text: str) -> Schedule:
    """The schedule of a line that the configuration has checked already."""
    if text.startswith(_EVERY):
        return Every(timedelta(seconds=float(Duration.parse(text.removeprefix(_EVERY).strip()))))
    minute, hour, day, month, weekday = _DESCRIPTORS.get(text, text).split()
    return Cron(
        _field(minute, 0, 59),
        _field(hour, 0, 23),
        _field(day, 1, 31),
        _field(month, 1, 12, MONTHS),
        _field(weekday, 0, 6, DAYS),
    )


def _field(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> Field:
    numbers: set[int] = set()
    is_free = False
    for part in text.split(","):
        ends, slash, step = part.partition("/")
        if ends in ("*", "?"):
            first, last = low, high
            is_free = is_free or int(step or 1) == 1
        else:
            first, last = _ends(ends, low, names)
            # A step from a single number goes on to the end.
            last = high if slash and "-" not in ends else last
        numbers.update(range(first, last + 1, int(step or 1)))
    return Field(frozenset(numbers), is_free)


def _ends(text: str, low: int, names: tuple[str, ...]) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    numbers = [
        names.index(word.lower()) + low if word.lower() in names else int(word)
        for word in (first, last if dash else first)
    ]
    return numbers[0], numbers[1]


def _days(first: int) -> Iterator[datetime]:
    for ordinal in range(first, first + _LONGEST_SEARCH.days):
        yield datetime.fromordinal(ordinal).replace(tzinfo=UTC)
