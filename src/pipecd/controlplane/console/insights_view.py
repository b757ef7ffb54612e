# SPDX-License-Identifier: Apache-2.0
"""View models of insights: the four DORA metrics as charts, and the deployments behind a point.

All days and months are those of UTC, as the insight files count them.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.application_summary import ApplicationSummary
from pipecd.controlplane.console.deployments_view import DeploymentRow, deployment_row
from pipecd.controlplane.console.formatting import DAY, HOUR, MINUTE, duration, plural
from pipecd.controlplane.console.list_filters import (
    ActiveFilter,
    PageUrl,
    label_filters,
    parse_labels,
)
from pipecd.controlplane.console.status_badge import Tone
from pipecd.controlplane.insight.dora import outcome_of
from pipecd.controlplane.insight.series import Metric, Ratio, Resolution, TimeRange
from pipecd.model.clock import from_unix, to_unix
from pipecd.model.count import parse_count
from pipecd.proto.model.deployment_pb2 import Deployment

# The values of `range` in words, and how many months they go back; a week is no month.
RANGES: Mapping[str, tuple[str, int]] = {
    "1w": ("Last week", 0),
    "1m": ("Last month", 1),
    "3m": ("Last 3 months", 3),
    "6m": ("Last 6 months", 6),
    "1y": ("Last year", 12),
    "2y": ("Last 2 years", 24),
}
DEFAULT_RANGE = "1m"
RESOLUTIONS: Mapping[str, tuple[str, Resolution]] = {
    "daily": ("By day", Resolution.DAILY),
    "monthly": ("By month", Resolution.MONTHLY),
}
# One bar per day is readable for so many months, and one per month from so many on.
_MAX_DAILY_MONTHS = 3
_MIN_MONTHLY_MONTHS = 3
MAX_DEPLOYMENTS = 50
_MAX_SUGGESTIONS = 300

# As many dates fit below a chart on a phone.
_MAX_MARKS = 5
NO_RATIOS: Mapping[int, Ratio] = {}

# The unit of the drawing: bars are stretched to the width of the page.
SLOT, HEIGHT = 10, 100
_GAP = 2
# A smaller change is no news: totals vary by as much by chance.
_SMALLEST_CHANGE = 0.05
# The smallest bar that can be seen.
_MIN_BAR = 1.5

_STEPS_OF_TIME = (
    *(MINUTE * n for n in (1, 2, 4, 6, 10, 15, 20, 30, 40)),
    *(HOUR * n for n in (1, 1.5, 2, 3, 4, 6, 8, 12)),
    *(DAY * n for n in (1, 2, 3, 4, 6, 8, 10, 14, 20, 30, 60, 120, 365)),
)
_STEPS_OF_RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class InsightsQuery:
    """The filters of the page; `at` is the first second of the selected day or month, or 0."""

    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    range: str = DEFAULT_RANGE
    resolution: str = "daily"
    at: int = 0

    def active_filters(self, name: str = "") -> tuple[ActiveFilter, ...]:
        """What limits the numbers; `name` is that of the application."""
        application = ActiveFilter("app", self.application, f"application: {name}")
        return (*((application,) if self.application else ()), *label_filters(self.labels))

    def url(self, path: str) -> PageUrl:
        """The address of a page with these filters and nothing else."""
        params = [(each.param, each.value) for each in self.active_filters()]
        params += [("range", self.range), ("res", self.resolution), ("at", str(self.at or ""))]
        return PageUrl(path, QueryParams(params), reset=("at",))


@dataclass(frozen=True)
class ChartBar:
    """One day or month; `href` shows the deployments behind it and is empty if there are none."""

    x: float
    y: float
    width: float
    height: float
    label: str
    href: str
    is_zero: bool
    is_selected: bool


@dataclass(frozen=True)
class AxisMark:
    """A date below a chart; `percent` is the centre of its bar."""

    text: str
    percent: float


@dataclass(frozen=True)
class Trend:
    """How a metric compares with the time before; coloured only where a direction is better."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Chart:
    """One metric over the whole range; `value` is the total, `note` explains it."""

    key: str
    title: str
    value: str
    note: str
    top: str
    middle: str
    bars: tuple[ChartBar, ...]
    axis: tuple[AxisMark, ...]
    trend: Trend | None

    @property
    def width(self) -> int:
        return len(self.bars) * SLOT

    @property
    def is_empty(self) -> bool:
        return not any(bar.href for bar in self.bars)


@dataclass(frozen=True)
class MetricText:
    """How the values of a metric are written; `what` is counted by a ratio.

    `less` and `more` say how a smaller and a larger value compare.
    """

    key: str
    title: str
    what: str
    explanation: str
    less: tuple[str, Tone]
    more: tuple[str, Tone]
    value: Callable[[Ratio], float]
    text: Callable[[float], str]
    mark: Callable[[float], str]
    top: Callable[[float], float]


def _count_text(value: float) -> str:
    return f"{value:,.0f}"


def _rate_text(value: float) -> str:
    return f"{value * 100:.0f} %" if value >= 0.1 or value == 0 else f"{value * 100:.1f} %"


def _time_text(value: float) -> str:
    return duration(round(value))


def _time_mark(value: float) -> str:
    """A round length of time with one unit, beside the axis."""
    units = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"))
    length, unit = next((pair for pair in units if value >= pair[0]), (1, "s"))
    return f"{value / length:.3g} {unit}"


def _step_at_least(steps: Sequence[float]) -> Callable[[float], float]:
    return lambda value: next((step for step in steps if step >= value), value)


def _count_top(value: float) -> float:
    """A round number that the largest value nearly reaches, and whose half is whole."""
    digits = len(str(math.ceil(value)))
    steps = (2, 4, 6, 8, 10) if digits == 1 else (12, 14, 16, 20, 24, 30, 40, 50, 60, 80, 100)
    unit = 10 ** max(digits - 2, 0)
    return next(step * unit for step in steps if step * unit >= value)


METRICS: Mapping[Metric, MetricText] = {
    Metric.DEPLOYMENT_FREQUENCY: MetricText(
        "frequency",
        "Deployment frequency",
        "deployment",
        "Completed deployments: succeeded, failed and cancelled.",
        ("Fewer than", Tone.OFF),
        ("More than", Tone.OK),
        lambda ratio: float(ratio.whole),
        _count_text,
        _count_text,
        _count_top,
    ),
    Metric.LEAD_TIME: MetricText(
        "lead-time",
        "Lead time for changes",
        "change",
        "From the commit to the end of its deployment, on average.",
        ("Faster than", Tone.OK),
        ("Slower than", Tone.BAD),
        lambda ratio: ratio.value,
        _time_text,
        _time_mark,
        _step_at_least(_STEPS_OF_TIME),
    ),
    Metric.CHANGE_FAILURE_RATE: MetricText(
        "failure-rate",
        "Change failure rate",
        "deployment",
        "The part of the deployments that failed.",
        ("Lower than", Tone.OK),
        ("Higher than", Tone.BAD),
        lambda ratio: ratio.value,
        _rate_text,
        _rate_text,
        _step_at_least(_STEPS_OF_RATES),
    ),
    Metric.TIME_TO_RESTORE: MetricText(
        "restore",
        "Time to restore",
        "restoration",
        "From the first failure of an application to its next success, on average.",
        ("Faster than", Tone.OK),
        ("Slower than", Tone.BAD),
        lambda ratio: ratio.value,
        _time_text,
        _time_mark,
        _step_at_least(_STEPS_OF_TIME),
    ),
}


def parse_insights_query(params: QueryParams) -> InsightsQuery:
    chosen = params.get("range", "")
    chosen = chosen if chosen in RANGES else DEFAULT_RANGE
    offered = offered_resolutions(chosen)
    resolution = params.get("res", "")
    return InsightsQuery(
        application=params.get("app", "").strip(),
        labels=parse_labels(params),
        range=chosen,
        resolution=resolution if resolution in offered else offered[0],
        at=parse_count(params.get("at", "")) or 0,
    )


def chosen_application(
    applications: Sequence[ApplicationSummary], text: str
) -> tuple[ApplicationSummary | None, tuple[ApplicationSummary, ...]]:
    """The application that a text names, by its name, its id or an unambiguous part of its name.

    If several names contain the text, they are the second result.
    """
    if not text:
        return None, ()
    wanted = text.lower()
    for application in applications:
        if text in (application.name, application.id):
            return application, ()
    matches = [each for each in applications if wanted in each.name.lower()]
    if len(matches) == 1:
        return matches[0], ()
    matches.sort(key=lambda each: (not each.name.lower().startswith(wanted), each.name))
    return None, tuple(matches)


def offered_names(applications: Sequence[ApplicationSummary]) -> tuple[str, ...]:
    """The names that the field suggests; none if they would make the page large."""
    names = {application.name for application in applications}
    return tuple(sorted(names)) if len(names) <= _MAX_SUGGESTIONS else ()


def offered_labels(applications: Sequence[ApplicationSummary]) -> tuple[str, ...]:
    """The labels that the field suggests; those that only one application has suggest little."""
    counts = Counter(label for each in applications for label in each.labels.items())
    offered = counts.most_common(_MAX_SUGGESTIONS)
    return tuple(sorted(f"{key}:{value}" for (key, value), _ in offered))


def offered_resolutions(range_name: str) -> tuple[str, ...]:
    """By day for short ranges, by month for long ones."""
    months = RANGES[range_name][1]
    offered = ("daily",) if months <= _MAX_DAILY_MONTHS else ()
    return (*offered, "monthly") if months >= _MIN_MONTHLY_MONTHS else offered


def time_range(query: InsightsQuery, now: datetime) -> TimeRange:
    """The range up to the end of today, as upstream's console computes it."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    end, months = today + timedelta(days=1, seconds=-1), RANGES[query.range][1]
    resolution = RESOLUTIONS[query.resolution][1]
    if resolution is Resolution.MONTHLY:
        start = _months_back(today.replace(day=1), months - 1)
    elif months:
        start = _months_back(today, months) + timedelta(days=1)
    else:
        start = today - timedelta(days=6)
    return TimeRange(to_unix(start), to_unix(end), resolution)


def selected_period(query: InsightsQuery, whole: TimeRange) -> TimeRange | None:
    """The selected day or month, if it is part of the range."""
    periods = list(whole.periods())
    if query.at not in periods:
        return None
    later = [period for period in periods if period > query.at]
    return TimeRange(query.at, (later[0] - 1) if later else whole.end, whole.resolution)


def range_before(whole: TimeRange) -> TimeRange:
    """As many days or months, directly before the range."""
    count = len(list(whole.periods()))
    start = from_unix(whole.start)
    if whole.resolution is Resolution.MONTHLY:
        earlier = _months_back(start, count)
    else:
        earlier = start - timedelta(days=count)
    return TimeRange(to_unix(earlier), whole.start - 1, whole.resolution)


def trend(
    metric: Metric, whole: TimeRange, total: Ratio, before: Mapping[int, Ratio]
) -> Trend | None:
    """How the total compares with that of as many days or months before; None without any."""
    earlier = sum(before.values(), Ratio())
    if not total.whole or not earlier.whole:
        return None
    words, count = METRICS[metric], len(list(whole.periods()))
    unit = "month" if whole.resolution is Resolution.MONTHLY else "day"
    period = f"the {plural(count, unit)} before"
    value, old = words.value(total), words.value(earlier)
    if words.text(value) == words.text(old):
        return Trend(f"The same as in {period}", Tone.OFF)
    if abs(value - old) < _SMALLEST_CHANGE * old:
        return Trend(f"About the same as in {period}: {words.text(old)}", Tone.OFF)
    comparison, tone = words.more if value > old else words.less
    return Trend(f"{comparison} in {period}: {words.text(old)}", tone)


def chart(
    metric: Metric,
    whole: TimeRange,
    ratios: Mapping[int, Ratio],
    url: PageUrl,
    selected: int = 0,
    before: Mapping[int, Ratio] = NO_RATIOS,
) -> Chart:
    """The chart of a metric; each bar links to the deployments behind it.

    `before` has the values of as many days or months before.
    """
    words = METRICS[metric]
    periods = list(whole.periods())
    values = {period: words.value(ratio) for period, ratio in ratios.items()}
    top = words.top(max(values.values(), default=0.0))
    bars: list[ChartBar] = []
    for number, period in enumerate(periods):
        ratio, value = ratios.get(period), values.get(period, 0.0)
        height = max(HEIGHT * value / top, _MIN_BAR) if ratio else 0.0
        what = f": {words.text(value)}{_of(words, ratio)}" if ratio else ": none"
        bars.append(
            ChartBar(
                x=number * SLOT + _GAP / 2,
                y=round(HEIGHT - height, 2),
                width=SLOT - _GAP,
                height=round(height, 2),
                label=period_text(period, whole.resolution) + what,
                href=url.with_params(at=period) + "#behind" if ratio else "",
                is_zero=not value,
                is_selected=period == selected,
            )
        )
    total = sum((ratios[period] for period in periods if period in ratios), Ratio())
    since = 0
    if whole.resolution is Resolution.MONTHLY and not before:
        # A project that is younger than the range has not deployed less often for that.
        since = next((n for n, each in enumerate(periods) if each in ratios), 0)
    return Chart(
        key=words.key,
        title=words.title,
        value=words.text(words.value(total)) if total.whole else "none",
        note=_note(metric, total, len(periods) - since, whole.resolution),
        top=words.mark(top),
        middle=words.mark(top / 2),
        bars=tuple(bars),
        axis=_axis(periods, whole.resolution),
        trend=trend(metric, whole, total, before),
    )


def period_text(period: int, resolution: Resolution) -> str:
    """A day or month in UTC."""
    at = from_unix(period)
    return f"{at:%B %Y}" if resolution is Resolution.MONTHLY else f"{at.day} {at:%b %Y}"


def _of(words: MetricText, ratio: Ratio) -> str:
    if words.key == "frequency":
        return f" {words.what}" + ("" if ratio.whole == 1 else "s")
    return f" of {plural(ratio.whole, words.what)}"


def _note(metric: Metric, total: Ratio, periods: int, resolution: Resolution) -> str:
    unit = "month" if resolution is Resolution.MONTHLY else "day"
    match metric:
        case _ if not total.whole:
            return "in this range"
        case Metric.DEPLOYMENT_FREQUENCY:
            return f"{total.whole / max(periods, 1):.1f} a {unit}"
        case Metric.CHANGE_FAILURE_RATE:
            return f"{total.part:.0f} of {plural(total.whole, 'deployment')} failed"
        case _:
            return f"average of {plural(total.whole, METRICS[metric].what)}"


def _axis(periods: Sequence[int], resolution: Resolution) -> tuple[AxisMark, ...]:
    """At most five dates at equal distances, the last period among them."""
    last = len(periods) - 1
    steps = range(math.ceil(last / (_MAX_MARKS - 1)), math.ceil(last / (_MAX_MARKS - 2)) + 1)
    # The first date is as close to the first bar as the others allow.
    step = min(steps, key=lambda each: last % each) if last else 1
    marks: list[AxisMark] = []
    for number in range(last % step, len(periods), step):
        at = from_unix(periods[number])
        text = f"{at:%b %Y}" if resolution is Resolution.MONTHLY else f"{at.day} {at:%b}"
        marks.append(AxisMark(text, round(100 * (number + 0.5) / len(periods), 2)))
    return tuple(marks)


def _months_back(at: datetime, months: int) -> datetime:
    """The same day so many months ago, or the last day of that month."""
    number = at.year * 12 + at.month - 1 - months
    year, month = divmod(number, 12)
    for day in range(at.day, 0, -1):
        try:
            return at.replace(year=year, month=month + 1, day=day)
        except ValueError:
            continue
    raise AssertionError("every month has a first day")


@dataclass(frozen=True)
class NumbersRow:
    """The four values of a day or month, for the table and for CSV."""

    period: str
    date: str
    deployments: int
    failed: int
    values: tuple[str, ...]
    at: int = 0
    """When it begins, in Unix seconds, if there are deployments behind it."""


def numbers(
    whole: TimeRange, by_metric: Mapping[Metric, Mapping[int, Ratio]]
) -> tuple[NumbersRow, ...]:
    """The latest period first; the same values that the bars show."""
    rows: list[NumbersRow] = []
    for period in reversed(list(whole.periods())):
        counted = by_metric[Metric.CHANGE_FAILURE_RATE].get(period, Ratio())
        values = tuple(
            METRICS[metric].text(METRICS[metric].value(of_metric[period]))
            if period in of_metric
            else ""
            for metric, of_metric in by_metric.items()
        )
        at = from_unix(period)
        date = f"{at:%Y-%m}" if whole.resolution is Resolution.MONTHLY else f"{at:%Y-%m-%d}"
        text = period_text(period, whole.resolution)
        start = period if any(values) else 0
        rows.append(NumbersRow(text, date, counted.whole, int(counted.part), values, start))
    return tuple(rows)


def csv_text(whole: TimeRange, by_metric: Mapping[Metric, Mapping[int, Ratio]]) -> str:
    """One line per day or month with plain numbers; empty where there is no value."""
    lines = ["date,deployments,failed,lead_time_seconds,time_to_restore_seconds"]
    for period in whole.periods():
        at = from_unix(period)
        counted = by_metric[Metric.CHANGE_FAILURE_RATE].get(period, Ratio())
        times = (
            f"{by_metric[metric][period].value:.0f}" if period in by_metric[metric] else ""
            for metric in (Metric.LEAD_TIME, Metric.TIME_TO_RESTORE)
        )
        lines.append(f"{at:%Y-%m-%d},{counted.whole},{counted.part:.0f},{','.join(times)}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class DeploymentBehind:
    """A deployment of the selected period, with what it contributed to the charts."""

    row: DeploymentRow
    lead_time: str
    restored_after: str


def deployment_behind(
    deployment: Deployment, restored: Mapping[tuple[str, int], int], now: datetime
) -> DeploymentBehind:
    outcome = outcome_of(deployment)
    lead = outcome.lead_seconds if outcome else None
    seconds = restored.get((deployment.application_id, deployment.completed_at))
    is_success = outcome is not None and outcome.succeeded
    return DeploymentBehind(
        row=deployment_row(deployment, now),
        lead_time="" if lead is None else duration(lead),
        restored_after="" if seconds is None or not is_success else duration(seconds),
    )
