# SPDX-License-Identifier: Apache-2.0
"""What measurements mean: as expected or not, and why in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pipecd.plugins.analysis.check import ExpectedRange
from pipecd.plugins.analysis.mannwhitney import Alternative, p_value
from pipecd.plugins.analysis.point import Point

SIGNIFICANCE = 0.05

_ALTERNATIVES = {
    "EITHER": Alternative.DIFFERS,
    "HIGH": Alternative.GREATER,
    "LOW": Alternative.LESS,
}
_SAID = {
    Alternative.DIFFERS: "different from",
    Alternative.GREATER: "higher than",
    Alternative.LESS: "lower than",
}


@dataclass(frozen=True)
class Verdict:
    """What one look at a check says; after a final one there is nothing more to find out."""

    is_expected: bool
    reason: str
    is_final: bool = False


@dataclass(frozen=True)
class Sample:
    """What was measured of one of the things compared."""

    name: str
    points: Sequence[Point]

    @property
    def values(self) -> list[float]:
        """What was measured, whenever it was."""
        return [point.value for point in self.points]

    def __str__(self) -> str:
        return f"{self.name} (median {median(self.values):g} of {_count(len(self.points))})"


def within(points: Sequence[Point], expected: ExpectedRange) -> Verdict:
    """Every point must be in the range; no point is no reason to worry."""
    if not points:
        return Verdict(True, f"nothing was measured, expected is {_said(expected)}")
    for point in points:
        if expected.min is not None and point.value < expected.min:
            return Verdict(False, f"{point} is below {expected.min:g}")
        if expected.max is not None and point.value > expected.max:
            return Verdict(False, f"{point} is above {expected.max:g}")
    lowest, highest = min(p.value for p in points), max(p.value for p in points)
    between = f"{lowest:g}" if lowest == highest else f"{lowest:g} to {highest:g}"
    return Verdict(True, f"{_count(len(points))}, {between}, is {_said(expected)}")


def compare(experiment: Sample, control: Sample, deviation: str) -> Verdict:
    """The experiment must not deviate from the control in the given direction."""
    if not experiment.points and not control.points:
        return Verdict(True, f"nothing was measured of {experiment.name} and {control.name}")
    for empty, other in ((experiment, control), (control, experiment)):
        if not empty.points:
            return Verdict(False, f"nothing was measured of {empty.name} to compare with {other}")
    if len({*experiment.values, *control.values}) == 1:
        return Verdict(True, f"{experiment} is the same as {control}")
    alternative = _ALTERNATIVES[deviation]
    p = p_value(experiment.values, control.values, alternative)
    is_expected = p > SIGNIFICANCE
    verb = "is not" if is_expected else "is"
    return Verdict(is_expected, f"{experiment} {verb} {_SAID[alternative]} {control}: p = {p:.3g}")


def answered(code: int, expected: int) -> Verdict:
    """The answer must have the expected code."""
    if code == expected:
        return Verdict(True, f"answered with {code}")
    return Verdict(False, f"answered with {code} instead of {expected}")


def found(entries: Sequence[str]) -> Verdict:
    """No entry may have been found."""
    if not entries:
        return Verdict(True, "found nothing")
    return Verdict(False, f"found: {entries[0]}")


def _said(expected: ExpectedRange) -> str:
    if expected.min is None:
        return f"at most {expected.max:g}"
    if expected.max is None:
        return f"at least {expected.min:g}"
    return f"between {expected.min:g} and {expected.max:g}"


def _count(points: int) -> str:
    return "1 point" if points == 1 else f"{points} points"
