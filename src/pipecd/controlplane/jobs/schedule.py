# SPDX-License-Identifier: Apache-2.0
"""When a periodic job is due: at an interval, or by a cron expression in UTC."""

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
# The rarest day is a leap day: around a turn of a century the next one is eight years later.
_SEARCH_DAYS = 9 * 366
_NEVER = datetime.max.replace(tzinfo=UTC)


class Schedule(Protocol):
    """The times at which a job is due."""

    def after(self, moment: datetime) -> datetime:
        """The next time after the given one."""
        ...


@dataclass(frozen=True)
class Every:
    """A fixed interval after the last run."""

    interval: timedelta

    def after(self, moment: datetime) -> datetime:
        return moment + self.interval


@dataclass(frozen=True)
class CronField:
    """The numbers that a field of a cron expression allows; `is_any` if it is `*` or `?`."""

    numbers: frozenset[int]
    is_any: bool

    def __contains__(self, number: int) -> bool:
        return number in self.numbers


@dataclass(frozen=True)
class Cron:
    """A cron expression: minutes, hours, days, months and days of the week."""

    minute: CronField
    hour: CronField
    day: CronField
    month: CronField
    weekday: CronField

    def after(self, moment: datetime) -> datetime:
        moment = moment.astimezone(UTC)
        start = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        first_day = start.date().toordinal()
        for ordinal in range(first_day, first_day + _SEARCH_DAYS):
            day = datetime.fromordinal(ordinal).replace(tzinfo=UTC)
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
        # As in every cron, a day matches if either of two restricted fields does.
        if self.day.is_any or self.weekday.is_any:
            return by_date and by_week
        return by_date or by_week


def parse_schedule(text: str) -> Schedule:
    """Parses a schedule that the configuration has validated."""
    if text.startswith(_EVERY):
        return Every(timedelta(seconds=float(Duration.parse(text.removeprefix(_EVERY).strip()))))
    minute, hour, day, month, weekday = _DESCRIPTORS.get(text, text).split()
    return Cron(
        _parse_field(minute, 0, 59),
        _parse_field(hour, 0, 23),
        _parse_field(day, 1, 31),
        _parse_field(month, 1, 12, MONTHS),
        _parse_field(weekday, 0, 6, DAYS),
    )


def _parse_field(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> CronField:
    numbers: set[int] = set()
    is_any = False
    for part in text.split(","):
        ends, slash, step = part.partition("/")
        if ends in ("*", "?"):
            first, last = low, high
            is_any = is_any or int(step or 1) == 1
        else:
            first, last = _parse_range(ends, low, names)
            # A step from a single number continues to the end.
            last = high if slash and "-" not in ends else last
        numbers.update(range(first, last + 1, int(step or 1)))
    return CronField(frozenset(numbers), is_any)


def _parse_range(text: str, low: int, names: tuple[str, ...]) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    numbers = [
        names.index(word.lower()) + low if word.lower() in names else int(word)
        for word in (first, last if dash else first)
    ]
    return numbers[0], numbers[1]
