# SPDX-License-Identifier: Apache-2.0
"""K8S_TRAFFIC_ROUTING divides the traffic among the variants."""

from collections.abc import Mapping, Sequence

from pipecd.plugins.kubernetes.application import Application, IstioRouting, Variant
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.options import TrafficRoutingOptions
from pipecd.plugins.kubernetes.plan.workload import named, services
from pipecd.plugins.kubernetes.stages.workbench import Workbench
from pipecd.plugins.kubernetes.variant.httproute import by_http_route, leads_to
from pipecd.plugins.kubernetes.variant.traffic import Shares, by_selector, check
from pipecd.plugins.kubernetes.variant.virtualservice import Subsets, by_virtual_service
from pipecd.sdk import DISPLAY_KEY, StageResult, UserMistake

_STAGES = frozenset({"K8S_TRAFFIC_ROUTING", "K8S_MULTI_TRAFFIC_ROUTING"})
_ISTIO = "networking.istio.io"
_GATEWAY = "gateway.networking.k8s.io"


async def route(bench: Workbench, options: TrafficRoutingOptions) -> StageResult:
    """Applies the manifests that decide where the traffic goes."""
    shares = Shares(*options.shares())
    check(shares)
    percentages = {f"{name}-percentage": str(share) for name, share in shares.by_variant}
    await bench.stage.metadata.put({**shown(options), **percentages})
    target = bench.stage.target
    manifests = await bench.manifests(target)
    routing = [m for m in routing_manifests(bench.application, manifests) if bench.aim.takes(m)]
    made = [await _routed(bench, manifest, manifests, shares) for manifest in routing]
    await bench.apply(made, target, "primary")
    return StageResult.succeeded(f"Traffic is routed: {shares}")


def shown(options: TrafficRoutingOptions) -> Mapping[str, str]:
    """Returns what people see of a stage, also before it runs."""
    return {DISPLAY_KEY: str(Shares(*options.shares()))}


async def _routed(
    bench: Workbench, routing: Manifest, manifests: Sequence[Manifest], shares: Shares
) -> Manifest:
    """Returns the routing manifest with the shares of the traffic in it."""
    application = bench.application
    match application.traffic_routing.method:
        case "istio":
            istio = application.traffic_routing.istio or IstioRouting()
            host = istio.host or application.service.name
            if not host:
                raise UserMistake(
                    "no host is named", hint="set trafficRouting.istio.host to that of the service"
                )
            subsets = Subsets(host, application.variant_label)
            return by_virtual_service(routing, shares, subsets, istio.editable_routes)
        case "gateway":
            primary = _primary_service(application, manifests)
            names = [
                await _service_of(bench, primary, variant, share)
                for variant, share in shares.by_variant
            ]
            return by_http_route(routing, shares, names)
        case _:
            return by_selector(routing, shares, application.variant_label)


def _primary_service(application: Application, manifests: Sequence[Manifest]) -> str:
    found = services(manifests, application.service)
    if not found:
        raise UserMistake(
            "there is no Service to route the traffic to", hint="correct spec.service"
        )
    return found[0].name


async def _service_of(bench: Workbench, primary: str, variant: Variant, share: int) -> str:
    """Returns the name of a variant's Service, which must be there before it gets traffic."""
    if variant == "primary":
        return primary
    if not share:
        return bench.naming(variant, "").name(primary)
    for service in await bench.live(variant, kind="Service"):
        if service.name.startswith(f"{primary}-"):
            return service.name
    raise UserMistake(
        f"{variant} has no Service that could get traffic",
        hint=f"set createService: true in the rollout of {variant}",
    )


def is_routed(bench: Workbench, *, after: int = -1) -> bool:
    """Reports whether the pipeline divides the traffic, and that after a stage of this index."""
    return any(name in _STAGES for name in bench.stage.target.stage_names()[after + 1 :])


def routing_manifests(application: Application, manifests: Sequence[Manifest]) -> list[Manifest]:
    """Returns what decides where the traffic goes: one manifest, or each HTTPRoute that leads it.

    Of several Services or VirtualServices the first counts, as for upstream.
    """
    match application.traffic_routing.method:
        case "podselector":
            kind, found = "Service", services(manifests, application.service)[:1]
        case "istio":
            kind, found = "VirtualService", _virtual_services(application, manifests)[:1]
        case "gateway":
            kind, found = "HTTPRoute", _http_routes(application, manifests)
        case other:
            raise UserMistake(
                f"traffic cannot be routed by {other!r}",
                hint="write podselector, istio or gateway at trafficRouting.method",
            )
    if not found:
        raise UserMistake(
            f"there is no {kind} to route the traffic with",
            hint="it must be among the manifests of the application",
        )
    return found


def _virtual_services(application: Application, manifests: Sequence[Manifest]) -> list[Manifest]:
    kind, istio = "VirtualService", application.traffic_routing.istio or IstioRouting()
    reference = istio.virtual_service
    if reference.kind not in ("", kind):
        raise UserMistake(f"virtualService.kind must be {kind}, not {reference.kind}")
    found = _of_group(named(manifests, kind, reference.name), _ISTIO)
    # The second generation names it as the Service where it is not named itself.
    return sorted(found, key=lambda manifest: manifest.name != application.service.name)


def _http_routes(application: Application, manifests: Sequence[Manifest]) -> list[Manifest]:
    service = _primary_service(application, manifests)
    found = _of_group(named(manifests, "HTTPRoute", ""), _GATEWAY)
    return [manifest for manifest in found if leads_to(manifest, service)] or found[:1]


def _of_group(manifests: Sequence[Manifest], group: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest.key.group == group]
