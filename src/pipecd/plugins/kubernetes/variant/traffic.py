# SPDX-License-Identifier: Apache-2.0
"""Divides the traffic among variants: by a Service, an Istio VirtualService or an HTTPRoute."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.kubernetes.application import VariantLabel
from pipecd.plugins.kubernetes.manifest.body import (
    list_at,
    map_at,
    text_at,
    with_entries,
    with_value,
)
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import UserMistake

ALL = 100


@dataclass(frozen=True)
class Shares:
    """How much of the traffic each variant gets, in percent."""

    primary: int
    canary: int = 0
    baseline: int = 0

    def within(self, total: int) -> "Shares":
        """Returns the shares of a part of the traffic; what is left over goes to primary."""
        canary, baseline = (share * total // ALL for share in (self.canary, self.baseline))
        return Shares(total - canary - baseline, canary, baseline)


def check(shares: Shares) -> None:
    """Refuses shares that are not the whole traffic."""
    if min(shares.primary, shares.canary, shares.baseline) < 0 or (
        shares.primary + shares.canary + shares.baseline != ALL
    ):
        raise UserMistake(
            f"primary {shares.primary}%, canary {shares.canary}% and baseline {shares.baseline}% "
            "are not the whole traffic",
            hint="the three must add up to 100",
        )


def by_selector(service: Manifest, shares: Shares, label: VariantLabel) -> Manifest:
    """Returns the Service with all of its traffic on one variant."""
    selected = text_at(service.body, "spec", "selector", label.key)
    if selected != label.primary_value:
        raise UserMistake(
            f"{service.key} must select {label.key}: {label.primary_value} in Git",
            hint="add it to spec.selector, so that the traffic can be moved and moved back",
        )
    if shares == Shares(ALL):
        return service
    if shares != Shares(0, ALL):
        raise UserMistake(
            "a Service can lead all of its traffic to primary or all of it to canary",
            hint="write primary: 100 or canary: 100, or divide the traffic by istio or gateway",
        )
    return service.with_body(
        with_entries(service.body, ("spec", "selector"), {label.key: label.canary_value})
    )


def by_virtual_service(
    virtual_service: Manifest,
    shares: Shares,
    *,
    host: str,
    label: VariantLabel,
    editable: Sequence[str] = (),
) -> Manifest:
    """Returns the VirtualService with weights for the subsets of a host in its http routes."""
    routes = [
        {**route, "route": _destinations(route, shares, host, label)}
        if not editable or route.get("name") in editable
        else route
        for route in list_at(virtual_service.body, "spec", "http")
    ]
    return virtual_service.with_body(with_value(virtual_service.body, ("spec", "http"), routes))


def _destinations(
    route: Any, shares: Shares, host: str, label: VariantLabel
) -> list[dict[str, Any]]:
    others = [each for each in list_at(route, "route") if _host(each) != host]
    mine = [each for each in list_at(route, "route") if _host(each) == host]
    part = shares.within(ALL - sum(int(each.get("weight") or 0) for each in others))
    # Headers and port of the destination that was there hold for every variant.
    like: dict[str, Any] = mine[0] if mine else {}
    wanted = (
        (label.primary_value, part.primary, True),
        (label.canary_value, part.canary, False),
        (label.baseline_value, part.baseline, False),
    )
    return [
        *(
            {
                **like,
                "destination": {**map_at(like, "destination"), "host": host, "subset": subset},
                "weight": weight,
            }
            for subset, weight, always in wanted
            if always or weight > 0
        ),
        *others,
    ]


def _host(destination: Any) -> str:
    return text_at(destination, "destination", "host")


def by_http_route(route: Manifest, shares: Shares, services: Sequence[str]) -> Manifest:
    """Returns the HTTPRoute with weights for the Services of primary, canary and baseline."""
    rules = [_rule(rule, shares, services) for rule in list_at(route.body, "spec", "rules")]
    if rules == list_at(route.body, "spec", "rules") and shares != Shares(ALL):
        raise UserMistake(
            f"{route.key} has no rule that leads to the Service {services[0]}",
            hint="name it in a backendRefs of a rule",
        )
    return route.with_body(with_value(route.body, ("spec", "rules"), rules))


def _rule(rule: Any, shares: Shares, services: Sequence[str]) -> Any:
    backends = list_at(rule, "backendRefs")
    mine = [each for each in backends if each.get("name") in services]
    if not mine:
        return rule
    others = [each for each in backends if each.get("name") not in services]
    part = shares.within(ALL - sum(int(each.get("weight", 1)) for each in others))
    weights = zip(services, (part.primary, part.canary, part.baseline), strict=True)
    return {
        **rule,
        "backendRefs": [
            *(
                {**mine[0], "name": name, "weight": weight}
                for name, weight in weights
                if weight > 0 or name == services[0]
            ),
            *others,
        ],
    }
