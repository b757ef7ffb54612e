# SPDX-License-Identifier: Apache-2.0
"""Whether measurements are as expected, and the reasons in the stage log."""

import pytest

from pipecd.plugins.analysis.config import ExpectedRange
from pipecd.plugins.analysis.evaluation import (
    MetricSample,
    evaluate_deviation,
    evaluate_log_entries,
    evaluate_status_code,
    evaluate_threshold,
)
from pipecd.plugins.analysis.provider_client import Point


def points(*values: float) -> list[Point]:
    return [Point(1_700_000_000 + 60 * i, value) for i, value in enumerate(values)]


RANGES = [
    pytest.param((0.0, 1.0), points(0, 0.5, 1), True, "3 points, 0 to 1, is between 0 and 1", id="the bounds belong to the range"),
    pytest.param((None, 1.0), points(-9), True, "1 point, -9, is at most 1", id="no lower bound"),
    pytest.param((1.0, None), points(1, 1e9), True, "2 points, 1 to 1e+09, is at least 1", id="no upper bound"),
    pytest.param((None, 0.0), points(0.1), False, "0.1 at 22:13:20 is above 0", id="a bound of zero is a bound"),
    pytest.param((0.5, 1.0), points(0.6, 0.4, 2), False, "0.4 at 22:14:20 is below 0.5", id="the first bad point is the reason"),
    pytest.param((None, 1.0), points(float("inf")), False, "inf at 22:13:20 is above 1", id="an infinite value"),
    pytest.param((0.0, 1.0), [], True, "nothing was measured, expected is between 0 and 1", id="no points"),
]  # fmt: skip


@pytest.mark.parametrize(("bounds", "measured", "expected", "reason"), RANGES)
def test_a_threshold_with(
    bounds: tuple[float | None, float | None], measured: list[Point], expected: bool, reason: str
) -> None:
    result = evaluate_threshold(measured, ExpectedRange(min=bounds[0], max=bounds[1]))
    assert (result.is_expected, result.reason) == (expected, reason)


LOW, MIDDLE, HIGH = (1, 2, 3, 4, 5), (5.5, 6, 6.5, 7, 7.5), (8, 9, 10, 11, 12)
COMPARED = [
    pytest.param(HIGH, LOW, "EITHER", False, id="higher is different"),
    pytest.param(LOW, HIGH, "EITHER", False, id="lower is different"),
    pytest.param(HIGH, LOW, "HIGH", False, id="higher is too high"),
    pytest.param(LOW, HIGH, "HIGH", True, id="lower is not too high"),
    pytest.param(HIGH, LOW, "LOW", True, id="higher is not too low"),
    pytest.param(LOW, HIGH, "LOW", False, id="lower is too low"),
    pytest.param((1, 6, 12), (2, 5, 11), "EITHER", True, id="about the same"),
    pytest.param((1, 2, 3), (4, 5, 6), "EITHER", True, id="three points each are too few to differ"),
    pytest.param((1, 2, 3), (4, 5, 6), "LOW", False, id="but not to be lower: p of 0.05 is no more than 0.05"),
    pytest.param((3, 3), (3, 3, 3), "EITHER", True, id="all the same"),
    pytest.param((), (), "EITHER", True, id="nothing on both sides"),
    pytest.param((), MIDDLE, "EITHER", False, id="nothing of the experiment"),
    pytest.param(MIDDLE, (), "LOW", False, id="nothing of the control"),
]  # fmt: skip


@pytest.mark.parametrize(("experiment", "control", "deviation", "expected"), COMPARED)
def test_a_comparison_with(
    experiment: tuple[float, ...], control: tuple[float, ...], deviation: str, expected: bool
) -> None:
    canary, baseline = (
        MetricSample("canary", points(*experiment)),
        MetricSample("baseline", points(*control)),
    )
    assert evaluate_deviation(canary, baseline, deviation).is_expected is expected


def test_the_reason_of_a_comparison() -> None:
    canary, baseline = MetricSample("canary", points(*HIGH)), MetricSample("baseline", points(*LOW))
    assert evaluate_deviation(canary, baseline, "EITHER").reason == (
        "canary (median 10 of 5 points) is different from baseline (median 3 of 5 points): "
        "p = 0.00794"
    )
    assert evaluate_deviation(canary, baseline, "LOW").reason == (
        "canary (median 10 of 5 points) is not lower than baseline (median 3 of 5 points): p = 1"
    )
    empty = MetricSample("baseline", [])
    assert evaluate_deviation(canary, empty, "LOW").reason == (
        "nothing was measured of baseline to compare with canary (median 10 of 5 points)"
    )


def test_status_codes_and_log_entries() -> None:
    assert evaluate_status_code(200, 200).is_expected
    assert evaluate_status_code(503, 200).reason == "answered with 503 instead of 200"
    assert evaluate_log_entries([]).is_expected
    assert evaluate_log_entries(["boom", "bang"]).reason == "log entry: boom"
