# SPDX-License-Identifier: Apache-2.0
"""The p-values equal those of a statistics library and, with ties, of a count of all draws."""

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.plugins.analysis.mann_whitney import Alternative, p_value

DIFFERS, LESS, GREATER = Alternative.DIFFERS, Alternative.LESS, Alternative.GREATER


def smooth(n: int, at: int, shift: float = 0.0) -> list[float]:
    return [math.sin(1.7 * i + at) + shift for i in range(n)]


def coarse(n: int, at: int, shift: int = 0) -> list[float]:
    return [round(3 * math.sin(1.7 * i + at)) + shift for i in range(n)]


# Two-sided, less and greater, as `scipy.stats.mannwhitneyu` of SciPy 1.17.1 gives them, with
# `method="exact"` up to 50 values without ties and `method="asymptotic"` beyond.
LIBRARY = [
    pytest.param(smooth(1, 0), smooth(7, 1000), (1.0, 0.625, 0.5), id="one value"),
    pytest.param(smooth(3, 0), smooth(3, 1000, 3.0), (0.1, 0.05, 1.0), id="nothing in common"),
    pytest.param(smooth(9, 0), smooth(14, 1000, 0.8), (0.03274636253502857, 0.016373181267514286, 0.9862320880089086), id="the second is greater"),
    pytest.param(smooth(20, 0), smooth(12, 1000, -0.5), (0.10696822804478652, 0.9507283446188993, 0.05348411402239326), id="the second is less"),
    pytest.param(smooth(50, 0), smooth(50, 1000, 0.4), (0.004340577915943984, 0.002170288957971992, 0.9978778939445235), id="the largest samples that are counted out"),
    pytest.param(smooth(50, 0), smooth(3, 1000, -1.0), (0.15717578758644243, 0.9270895586100913, 0.07858789379322122), id="many against few"),
    pytest.param(smooth(51, 0), smooth(8, 1000, 0.5), (0.07470032969867522, 0.03735016484933761, 0.9644188472067204), id="one sample too large to count out"),
    pytest.param(smooth(60, 0), smooth(60, 1000, 0.3), (0.010665767697268456, 0.005332883848634228, 0.9947469542831859), id="large samples"),
    pytest.param(coarse(26, 0), coarse(26, 1000, 1), (0.10177801220403734, 0.05088900610201867, 0.9510157872242121), id="ties, which are counted out up to 25 values only"),
    pytest.param(coarse(30, 0), coarse(10, 1000, -2), (0.04540912961128534, 0.9789410871207815, 0.02270456480564267), id="ties, many against few"),
    pytest.param(coarse(40, 0), coarse(45, 1000), (0.9007530918573458, 0.553147644523111, 0.4503765459286729), id="ties between alike samples"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "expected"), LIBRARY)
def test_p_values_equal_those_of_the_library(
    first: list[float], second: list[float], expected: tuple[float, float, float]
) -> None:
    p_values = [p_value(first, second, alternative) for alternative in (DIFFERS, LESS, GREATER)]
    assert p_values == pytest.approx(expected, abs=1e-12)


def p_value_by_counting(
    first: Sequence[float], second: Sequence[float], alternative: Alternative
) -> float:
    """The same p, by comparing all pairs of values in all arrangements."""
    values, n1, n2 = [*first, *second], len(first), len(second)

    def u_of(chosen: tuple[int, ...]) -> float:
        rest = [values[i] for i in range(len(values)) if i not in chosen]
        return sum((values[i] > b) + (values[i] == b) / 2 for i in chosen for b in rest)

    every = [u_of(chosen) for chosen in combinations(range(n1 + n2), n1)]
    u1 = u_of(tuple(range(n1)))

    def share_up_to(u: float) -> float:
        return sum(other <= u for other in every) / len(every)

    match alternative:
        case Alternative.DIFFERS:
            u2 = n1 * n2 - u1
            return 1.0 if u1 == u2 else min(1.0, 2 * share_up_to(min(u1, u2)))
        case Alternative.LESS:
            return share_up_to(u1)
        case Alternative.GREATER:
            return 1 - share_up_to(u1 - 1)


SAMPLE = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=5)


@given(SAMPLE, SAMPLE, st.sampled_from(Alternative))
def test_small_samples_with_ties_are_counted_out(
    first: list[float], second: list[float], alternative: Alternative
) -> None:
    if len({*first, *second}) > 1:
        expected = p_value_by_counting(first, second, alternative)
        assert p_value(first, second, alternative) == pytest.approx(expected, abs=1e-12)


@given(SAMPLE, SAMPLE, st.floats(0.001, 1000))
def test_only_the_order_of_values_counts(
    first: list[float], second: list[float], factor: float
) -> None:
    if len({*first, *second}) > 1:
        scaled = [v * factor for v in first], [v * factor for v in second]
        assert p_value(*scaled, DIFFERS) == p_value(first, second, DIFFERS)


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=12, unique=True), st.integers(1, 11))
def test_without_ties_the_samples_may_be_exchanged(values: list[float], cut: int) -> None:
    first, second = values[: min(cut, len(values) - 1)], values[min(cut, len(values) - 1) :]
    assert p_value(first, second, DIFFERS) == p_value(second, first, DIFFERS)
    assert p_value(first, second, LESS) == pytest.approx(p_value(second, first, GREATER))


def test_infinity_counts_as_the_largest_value() -> None:
    assert p_value([math.inf, 2], [1, 3], LESS) == p_value([9, 2], [1, 3], LESS)
