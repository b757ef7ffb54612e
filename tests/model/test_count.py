# SPDX-License-Identifier: Apache-2.0
"""Counts in texts that people read."""

import pytest

from pipecd.model.count import counted


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (0, ("task",), "0 tasks"),
        (1, ("task",), "1 task"),
        (2, ("task",), "2 tasks"),
        (1, ("change was", "changes were"), "1 change was"),
        (3, ("change was", "changes were"), "3 changes were"),
    ],
)
def test_a_count_of_one_is_in_the_singular(number: int, nouns: tuple[str, ...], text: str) -> None:
    assert counted(number, *nouns) == text
