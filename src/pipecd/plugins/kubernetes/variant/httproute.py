# SPDX-License-Identifier: Apache-2.0
"""Divides the traffic in an HTTPRoute of the Gateway API, among the Services of the variants."""

from collections.abc import Sequence
from fractions import Fraction
from math import gcd
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import list_at, with_value
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.variant.traffic import ALL, Shares
from pipecd.plugins.kubernetes.variant.weights import Destination, weighted
from pipecd.sdk import UserMistake


def leads_to(route: Manifest, service: str) -> bool:
    """Reports whether a rule of an HTTPRoute sends traffic to a Service."""
    rules = list_at(route.body, "spec", "rules")
    return any(
        _variant(backend, [service]) is not None
        for rule in rules
        for backend in list_at(rule, "backendRefs")
    )


def by_http_route(route: Manifest, shares: Shares, services: Sequence[str]) -> Manifest:
    """Returns the HTTPRoute with weights for the Services of primary, canary and baseline."""
    if not leads_to(route, services[0]):
        raise UserMistake(
            f"{route.key} has no rule that leads to the Service {services[0]}",
            hint="name it in a backendRefs of a rule",
        )
    rules = [_rule(rule, shares, services) for rule in list_at(route.body, "spec", "rules")]
    return route.with_body(with_value(route.body, ("spec", "rules"), rules))


def _rule(rule: Any, shares: Shares, services: Sequence[str]) -> Any:
    """Divides what the variants get together; weights of this API are parts of their sum."""
    backends = list_at(rule, "backendRefs")
    others = [each for each in backends if _variant(each, services) is None]
    mine = sum(map(_weight, backends)) - sum(map(_weight, others))
    if not mine:
        return rule
    parts = [share * mine for share in (shares.primary, shares.canary, shares.baseline)]
    common = gcd(*parts, *(_weight(each) * ALL for each in others)) if others else mine
    divided = weighted(
        [
            {**each, "weight": _weight(each) * ALL // common} if each in others else each
            for each in backends
        ],
        [part // common for part in parts],
        variant_of=lambda backend: _variant(backend, services),
        written=lambda like, variant, weight: {**like, "name": services[variant], "weight": weight},
    )
    return rule if _portions(divided) == _portions(backends) else {**rule, "backendRefs": divided}


def _variant(backend: Destination, services: Sequence[str]) -> int | None:
    if backend.get("kind", "Service") != "Service" or backend.get("name") not in services:
        return None
    return services.index(backend["name"])


def _weight(backend: Destination) -> int:
    return int(backend.get("weight", 1))


def _portions(backends: Sequence[Destination]) -> dict[str, Fraction]:
    total = sum(map(_weight, backends))
    return {each["name"]: Fraction(_weight(each), total) for each in backends if _weight(each)}
