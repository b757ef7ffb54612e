# SPDX-License-Identifier: Apache-2.0
"""The stage K8S_TRAFFIC_ROUTING: splits traffic among the variants.

`trafficRouting.method` chooses the manifest that is changed: the selector of the Service, the
weights of an Istio VirtualService, or those of HTTPRoutes of the Gateway API.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any, TypeAlias

from pipecd.plugins.kubernetes.config import (
    Application,
    IstioRouting,
    TrafficRoutingOptions,
    Variant,
    VariantLabel,
)
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plan import find_by_kind, find_services
from pipecd.plugins.kubernetes.stage_session import StageSession
from pipecd.sdk import DISPLAY_KEY, StageResult, UserMistake
from pipecd.sdk.unstructured import (
    list_at,
    map_at,
    text_at,
    with_entries,
    with_value,
)

_STAGES = frozenset({"K8S_TRAFFIC_ROUTING", "K8S_MULTI_TRAFFIC_ROUTING"})
_ISTIO = "networking.istio.io"
_GATEWAY = "gateway.networking.k8s.io"
_PERCENT = 100

Destination: TypeAlias = Mapping[str, Any]
"""A destination of a VirtualService's route, or a backend of an HTTPRoute's rule."""


@dataclass(frozen=True)
class TrafficSplit:
    """The percentage of the traffic that each variant gets."""

    primary: int
    canary: int = 0
    baseline: int = 0

    @property
    def by_variant(self) -> tuple[tuple[Variant, int], ...]:
        """The percentage of each variant with its name."""
        return ("primary", self.primary), ("canary", self.canary), ("baseline", self.baseline)

    def __str__(self) -> str:
        """The split as the console shows it."""
        return ", ".join(f"{name.capitalize()}: {share}%" for name, share in self.by_variant)

    def scaled_to(self, total: int) -> "TrafficSplit":
        """Returns weights that add up to `total`; the remainder of a division goes to primary."""
        canary, baseline = (share * total // _PERCENT for share in (self.canary, self.baseline))
        return TrafficSplit(total - canary - baseline, canary, baseline)


def validate_split(split: TrafficSplit) -> None:
    """Refuses percentages that do not add up to 100."""
    shares = (split.primary, split.canary, split.baseline)
    if min(shares) < 0 or sum(shares) != _PERCENT:
        raise UserMistake(
            f"primary {split.primary}%, canary {split.canary}% and baseline {split.baseline}% "
            "do not add up to 100%",
            hint="the three must add up to 100",
        )


async def route_traffic(session: StageSession, options: TrafficRoutingOptions) -> StageResult:
    """Applies the routing manifests with the split of the stage."""
    split = TrafficSplit(*options.shares())
    validate_split(split)
    percentages = {f"{name}-percentage": str(share) for name, share in split.by_variant}
    await session.stage.metadata.put({**stage_metadata(options), **percentages})
    target = session.stage.target
    manifests = await session.manifests(target)
    routing = routing_manifests(session.application, manifests)
    changed = [
        await _with_split(session, manifest, manifests, split)
        for manifest in routing
        if session.target.includes(manifest)
    ]
    await session.apply(changed, target, "primary")
    return StageResult.succeeded(f"Traffic is routed: {split}")


def stage_metadata(options: TrafficRoutingOptions) -> Mapping[str, str]:
    """Returns the metadata that shows the split in the console, also before the stage runs."""
    return {DISPLAY_KEY: str(TrafficSplit(*options.shares()))}


def routes_traffic(session: StageSession, *, after: int = -1) -> bool:
    """Reports whether the pipeline has a traffic stage after the stage at index `after`."""
    return any(name in _STAGES for name in session.stage.target.stage_names()[after + 1 :])


def routing_manifests(application: Application, manifests: Sequence[Manifest]) -> list[Manifest]:
    """Returns the manifests that the traffic stage changes.

    As for upstream, the first of several Services or VirtualServices counts.
    """
    match application.traffic_routing.method:
        case "podselector":
            kind, routing = "Service", find_services(manifests, application.service)[:1]
        case "istio":
            kind, istio = "VirtualService", application.traffic_routing.istio or IstioRouting()
            reference = istio.virtual_service
            if reference.kind not in ("", kind):
                raise UserMistake(f"virtualService.kind must be {kind}, not {reference.kind}")
            services = find_by_kind(manifests, kind, reference.name)
            routing = sorted(
                (m for m in services if m.key.group == _ISTIO),
                # Upstream's second generation prefers the name of the Service.
                key=lambda manifest: manifest.name != application.service.name,
            )[:1]
        case "gateway":
            kind, service = "HTTPRoute", _primary_service(application, manifests)
            routes = [m for m in find_by_kind(manifests, kind) if m.key.group == _GATEWAY]
            routing = [route for route in routes if routes_to(route, service)] or routes[:1]
        case other:
            raise UserMistake(
                f"traffic cannot be routed by {other!r}",
                hint="write podselector, istio or gateway at trafficRouting.method",
            )
    if not routing:
        raise UserMistake(
            f"there is no {kind} to route the traffic with",
            hint="it must be among the manifests of the application",
        )
    return routing


async def _with_split(
    session: StageSession, routing: Manifest, manifests: Sequence[Manifest], split: TrafficSplit
) -> Manifest:
    application = session.application
    match application.traffic_routing.method:
        case "istio":
            istio = application.traffic_routing.istio or IstioRouting()
            host = istio.host or application.service.name
            if not host:
                raise UserMistake(
                    "no host is named", hint="set trafficRouting.istio.host to that of the service"
                )
            subsets = Subsets(host, application.variant_label)
            return split_virtual_service(routing, split, subsets, istio.editable_routes)
        case "gateway":
            primary = _primary_service(application, manifests)
            services = [
                await _variant_service(session, primary, variant, share)
                for variant, share in split.by_variant
            ]
            return split_http_route(routing, split, services)
        case _:
            return split_by_selector(routing, split, application.variant_label)


def _primary_service(application: Application, manifests: Sequence[Manifest]) -> str:
    services = find_services(manifests, application.service)
    if not services:
        raise UserMistake(
            "there is no Service to route the traffic to", hint="correct spec.service"
        )
    return services[0].name


async def _variant_service(
    session: StageSession, primary: str, variant: Variant, share: int
) -> str:
    """Returns the name of a variant's Service, which must exist if the variant gets traffic."""
    if variant == "primary":
        return primary
    if not share:
        return session.variant_builder(variant, "").name(primary)
    for service in await session.live(variant, kind="Service"):
        if service.name.startswith(f"{primary}-"):
            return service.name
    raise UserMistake(
        f"{variant} has no Service that could get traffic",
        hint=f"set createService: true in the rollout of {variant}",
    )


def split_by_selector(service: Manifest, split: TrafficSplit, label: VariantLabel) -> Manifest:
    """Returns the Service with a selector that sends all traffic to primary or to canary."""
    selected = text_at(service.body, "spec", "selector", label.key)
    if selected != label.primary_value:
        raise UserMistake(
            f"{service.key} must select {label.key}: {label.primary_value} in Git",
            hint="add it to spec.selector, so that the traffic can be moved and moved back",
        )
    if split == TrafficSplit(_PERCENT):
        return service
    if split != TrafficSplit(0, _PERCENT):
        raise UserMistake(
            "a Service routes all of its traffic to primary or all of it to canary",
            hint="write primary: 100 or canary: 100, or split the traffic by istio or gateway",
        )
    return service.with_body(
        with_entries(service.body, ("spec", "selector"), {label.key: label.canary_value})
    )


@dataclass(frozen=True)
class Subsets:
    """The host of an Istio DestinationRule and its subset for each variant."""

    host: str
    label: VariantLabel

    @property
    def names(self) -> tuple[str, str, str]:
        """The subsets of primary, canary and baseline."""
        return self.label.primary_value, self.label.canary_value, self.label.baseline_value

    def variant_of(self, destination: Destination) -> int | None:
        """Returns the index of a destination's variant; a host without a subset is primary."""
        if text_at(destination, "destination", "host") != self.host:
            return None
        subset = text_at(destination, "destination", "subset")
        return self.names.index(subset) if subset in self.names else 0

    def destination(self, template: Destination, variant: int, weight: int) -> Destination:
        """Returns the destination of a variant with the other fields of `template`."""
        subset = {**map_at(template, "destination"), "subset": self.names[variant]}
        return {**template, "destination": subset, "weight": weight}


def split_virtual_service(
    virtual_service: Manifest, split: TrafficSplit, subsets: Subsets, editable: Sequence[str] = ()
) -> Manifest:
    """Returns the VirtualService with weights in all http routes, or in the editable ones."""
    routes: list[Any] = []
    has_split = False
    for route in list_at(virtual_service.body, "spec", "http"):
        destinations = list_at(route, "route")
        others = [each for each in destinations if subsets.variant_of(each) is None]
        is_editable = not editable or text_at(route, "name") in editable
        if not is_editable or len(others) == len(destinations):
            routes.append(route)
            continue
        rest = _PERCENT - sum(int(each.get("weight") or 0) for each in others)
        split_destinations = weighted(
            destinations,
            [weight for _, weight in split.scaled_to(rest).by_variant],
            variant_of=subsets.variant_of,
            destination=subsets.destination,
        )
        routes.append({**route, "route": split_destinations})
        has_split = True
    if not has_split:
        named = f" of {', '.join(editable)}" if editable else ""
        raise UserMistake(
            f"{virtual_service.key} has no http route{named} to {subsets.host}",
            hint="correct host and editableRoutes of trafficRouting.istio to those in Git",
        )
    return virtual_service.with_body(with_value(virtual_service.body, ("spec", "http"), routes))


def routes_to(route: Manifest, service: str) -> bool:
    """Reports whether a rule of an HTTPRoute sends traffic to a Service."""
    return any(
        _backend_variant(backend, [service]) is not None
        for rule in list_at(route.body, "spec", "rules")
        for backend in list_at(rule, "backendRefs")
    )


def split_http_route(route: Manifest, split: TrafficSplit, services: Sequence[str]) -> Manifest:
    """Returns the HTTPRoute with weights for the Services of primary, canary and baseline."""
    if not routes_to(route, services[0]):
        raise UserMistake(
            f"{route.key} has no rule with the Service {services[0]}",
            hint="name it in a backendRefs of a rule",
        )
    rules = [_split_rule(rule, split, services) for rule in list_at(route.body, "spec", "rules")]
    return route.with_body(with_value(route.body, ("spec", "rules"), rules))


def _split_rule(rule: Any, split: TrafficSplit, services: Sequence[str]) -> Any:
    """Splits what the variants get together; weights of an HTTPRoute are parts of their sum."""
    backends = list_at(rule, "backendRefs")
    others = [each for each in backends if _backend_variant(each, services) is None]
    total = sum(map(_weight, backends)) - sum(map(_weight, others))
    if not total:
        return rule
    parts = [share * total for _, share in split.by_variant]
    divisor = gcd(*parts, *(_weight(each) * _PERCENT for each in others)) if others else total
    split_backends = weighted(
        [
            {**each, "weight": _weight(each) * _PERCENT // divisor} if each in others else each
            for each in backends
        ],
        [part // divisor for part in parts],
        variant_of=lambda backend: _backend_variant(backend, services),
        destination=lambda template, variant, weight: {
            **template,
            "name": services[variant],
            "weight": weight,
        },
    )
    if _fractions(split_backends) == _fractions(backends):
        return rule
    return {**rule, "backendRefs": split_backends}


def _backend_variant(backend: Destination, services: Sequence[str]) -> int | None:
    if backend.get("kind", "Service") != "Service" or backend.get("name") not in services:
        return None
    return services.index(backend["name"])


def _weight(backend: Destination) -> int:
    return int(backend.get("weight", 1))


def _fractions(backends: Sequence[Destination]) -> dict[str, Fraction]:
    total = sum(map(_weight, backends))
    return {each["name"]: Fraction(_weight(each), total) for each in backends if _weight(each)}


def weighted(
    destinations: Sequence[Destination],
    weights: Sequence[int],
    *,
    variant_of: Callable[[Destination], int | None],
    destination: Callable[[Destination, int, int], Destination],
) -> list[Destination]:
    """Returns destinations with the weights of the variants; other destinations stay unchanged.

    `variant_of` returns the index of a destination's variant, None for another service, and
    `destination` builds one from a template, a variant and a weight; at least one destination must
    belong to a variant. The order of Git is preserved, so that an unchanged split yields no diff. A
    variant without traffic appears only if Git lists it.
    """
    result: list[Destination] = []
    listed: dict[int, Destination] = {}
    end = 0
    for each in destinations:
        variant = variant_of(each)
        if variant is None:
            result.append(each)
        elif variant not in listed:
            listed[variant] = each
            result.append(destination(each, variant, weights[variant]))
            end = len(result)
    # Ports and headers of the first destination hold for every variant.
    template = next(iter(listed.values()))
    missing = [
        destination(template, variant, weight)
        for variant, weight in enumerate(weights)
        if weight > 0 and variant not in listed
    ]
    return [*result[:end], *missing, *result[end:]]
