# SPDX-License-Identifier: Apache-2.0
"""Divides the traffic in an Istio VirtualService, among the subsets of a host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.kubernetes.application import VariantLabel
from pipecd.plugins.kubernetes.manifest.body import list_at, map_at, text_at, with_value
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.variant.traffic import ALL, Shares
from pipecd.plugins.kubernetes.variant.weights import Destination, weighted
from pipecd.sdk import UserMistake


@dataclass(frozen=True)
class Subsets:
    """The host whose traffic is divided, and its subsets for primary, canary and baseline."""

    host: str
    label: VariantLabel

    @property
    def names(self) -> tuple[str, str, str]:
        """The subsets by variant."""
        return self.label.primary_value, self.label.canary_value, self.label.baseline_value

    def variant_of(self, destination: Destination) -> int | None:
        """Tells the variant of a destination; a host without a subset is primary."""
        if text_at(destination, "destination", "host") != self.host:
            return None
        subset = text_at(destination, "destination", "subset")
        return self.names.index(subset) if subset in self.names else 0

    def written(self, like: Destination, variant: int, weight: int) -> Destination:
        """Returns the destination of a variant."""
        place = {**map_at(like, "destination"), "subset": self.names[variant]}
        return {**like, "destination": place, "weight": weight}


def by_virtual_service(
    virtual_service: Manifest, shares: Shares, subsets: Subsets, editable: Sequence[str] = ()
) -> Manifest:
    """Returns the VirtualService with weights in its http routes, or in those that may change."""
    routes = list_at(virtual_service.body, "spec", "http")
    if not any(_leads(route, subsets, editable) for route in routes):
        named = f" of {', '.join(editable)}" if editable else ""
        raise UserMistake(
            f"{virtual_service.key} has no http route{named} that leads to {subsets.host}",
            hint="correct trafficRouting.istio: host and editableRoutes name what stands in Git",
        )
    divided = [
        _divided(route, shares, subsets) if _leads(route, subsets, editable) else route
        for route in routes
    ]
    return virtual_service.with_body(with_value(virtual_service.body, ("spec", "http"), divided))


def _leads(route: Any, subsets: Subsets, editable: Sequence[str]) -> bool:
    if editable and text_at(route, "name") not in editable:
        return False
    return any(subsets.variant_of(each) is not None for each in list_at(route, "route"))


def _divided(route: Any, shares: Shares, subsets: Subsets) -> Any:
    destinations = list_at(route, "route")
    others = [each for each in destinations if subsets.variant_of(each) is None]
    part = shares.within(ALL - sum(int(each.get("weight") or 0) for each in others))
    made = weighted(
        destinations,
        (part.primary, part.canary, part.baseline),
        variant_of=subsets.variant_of,
        written=subsets.written,
    )
    return {**route, "route": made}
