# SPDX-License-Identifier: Apache-2.0
"""Evaluates measurements: whether they are as expected, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pipecd.plugins.analysis.config import ExpectedRange
from pipecd.plugins.analysis.mann_whitney import Alternative, p_value
from pipecd.plugins.analysis.provider_client import Point

SIGNIFICANCE = 0.05

_ALTERNATIVES = {
    "EITHER": Alternative.DIFFERS,
    "HIGH": Alternative.GREATER,
    "LOW": Alternative.LESS,
}
_PHRASES = {
    Alternative.DIFFERS: "different from",
    Alternative.GREATER: "higher than",
    Alternative.LESS: "lower than",
}


@dataclass(frozen=True)
class CheckResult:
    """The result of one run of a check; a terminal one ends the check."""

    is_expected: bool
    reason: str
    is_terminal: bool = False


@dataclass(frozen=True)
class MetricSample:
    """The measured points of one side of a comparison, such as a variant."""

    name: str
    points: Sequence[Point]

    @property
    def values(self) -> list[float]:
        """The values without their times."""
        return [point.value for point in self.points]

    def __str__(self) -> str:
        return f"{self.name} (median {median(self.values):g} of {_point_count(len(self.points))})"


def evaluate_threshold(points: Sequence[Point], expected: ExpectedRange) -> CheckResult:
    """Expects every point to be in the range; no points are as expected."""
    if not points:
        return CheckResult(True, f"nothing was measured, expected is {_range_text(expected)}")
    for point in points:
        if expected.min is not None and point.value < expected.min:
            return CheckResult(False, f"{point} is below {expected.min:g}")
        if expected.max is not None and point.value > expected.max:
            return CheckResult(False, f"{point} is above {expected.max:g}")
    lowest, highest = min(p.value for p in points), max(p.value for p in points)
    between = f"{lowest:g}" if lowest == highest else f"{lowest:g} to {highest:g}"
    return CheckResult(True, f"{_point_count(len(points))}, {between}, is {_range_text(expected)}")


def evaluate_deviation(
    experiment: MetricSample, control: MetricSample, deviation: str
) -> CheckResult:
    """Expects that the experiment does not deviate from the control in a direction."""
    if not experiment.points and not control.points:
        return CheckResult(True, f"nothing was measured of {experiment.name} and {control.name}")
    for empty, other in ((experiment, control), (control, experiment)):
        if not empty.points:
            return CheckResult(
                False, f"nothing was measured of {empty.name} to compare with {other}"
            )
    if len({*experiment.values, *control.values}) == 1:
        return CheckResult(True, f"{experiment} is the same as {control}")
    alternative = _ALTERNATIVES[deviation]
    p = p_value(experiment.values, control.values, alternative)
    is_expected = p > SIGNIFICANCE
    verb = "is not" if is_expected else "is"
    return CheckResult(
        is_expected, f"{experiment} {verb} {_PHRASES[alternative]} {control}: p = {p:.3g}"
    )


def evaluate_status_code(code: int, expected: int) -> CheckResult:
    """Expects a status code."""
    if code == expected:
        return CheckResult(True, f"answered with {code}")
    return CheckResult(False, f"answered with {code} instead of {expected}")


def evaluate_log_entries(entries: Sequence[str]) -> CheckResult:
    """Expects that no log entry matches."""
    if not entries:
        return CheckResult(True, "no log entry matches")
    return CheckResult(False, f"log entry: {entries[0]}")


def _range_text(expected: ExpectedRange) -> str:
    if expected.min is None:
        return f"at most {expected.max:g}"
    if expected.max is None:
        return f"at least {expected.min:g}"
    return f"between {expected.min:g} and {expected.max:g}"


def _point_count(points: int) -> str:
    return "1 point" if points == 1 else f"{points} points"
