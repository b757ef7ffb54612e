# SPDX-License-Identifier: Apache-2.0
"""Puts weights on the destinations of a route, one for each variant of an application."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Destination: TypeAlias = Mapping[str, Any]


def weighted(
    destinations: Sequence[Destination],
    weights: Sequence[int],
    *,
    variant_of: Callable[[Destination], int | None],
    written: Callable[[Destination, int, int], Destination],
) -> list[Destination]:
    """Returns destinations with the weights of the variants; those of others stay as they are.

    `variant_of` tells which variant a destination leads to, None for somebody else's, and `written`
    makes one of a variant and a weight; at least one leads to a variant. The order of Git is kept,
    so that the same shares look the same. A variant without traffic appears only if Git names it.
    """
    found: list[Destination] = []
    named: dict[int, Destination] = {}
    end = 0
    for destination in destinations:
        variant = variant_of(destination)
        if variant is None:
            found.append(destination)
        elif variant not in named:
            named[variant] = destination
            found.append(written(destination, variant, weights[variant]))
            end = len(found)
    # What the first destination says of ports and headers holds for every variant.
    like = next(iter(named.values()))
    missing = [
        written(like, variant, weight)
        for variant, weight in enumerate(weights)
        if weight > 0 and variant not in named
    ]
    return [*found[:end], *missing, *found[end:]]
