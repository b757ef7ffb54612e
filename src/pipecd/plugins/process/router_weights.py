# SPDX-License-Identifier: Apache-2.0
"""Distributes turns in exact proportion to weights, without bursts."""

from collections.abc import Sequence


class Turns:
    """Smooth weighted round-robin: who is owed most is next.

    After as many turns as the weights add up to, everyone has had exactly its weight, and the
    turns of a light one lie evenly between those of a heavy one.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        if not weights or min(weights) <= 0:
            raise ValueError("weights must be greater than 0")
        self.weights = list(weights)
        self._total = sum(weights)
        self._owed = [0] * len(weights)

    def next(self) -> int:
        """Returns the index of the weight whose turn it is."""
        owed, chosen = self._owed, 0
        for index, weight in enumerate(self.weights):
            owed[index] += weight
            if owed[index] > owed[chosen]:
                chosen = index
        owed[chosen] -= self._total
        return chosen
