# SPDX-License-Identifier: Apache-2.0
"""K8S_TRAFFIC_ROUTING divides the traffic among the variants."""

from collections.abc import Sequence

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
    """Applies the one manifest that decides where the traffic goes."""
    shares = Shares(*options.shares())
    check(shares)
    told = ", ".join(f"{name.capitalize()}: {share}%" for name, share in shares.by_variant)
    percentages = {f"{name}-percentage": str(share) for name, share in shares.by_variant}
    await bench.stage.metadata.put({DISPLAY_KEY: told, **percentages})
    target = bench.stage.target
    manifests = await bench.manifests(target)
    routing = routing_manifest(bench.application, manifests)
    if not bench.aim.takes(routing):
        return StageResult.succeeded(f"{routing.key} is not on this cluster")
    await bench.apply([await _routed(bench, routing, manifests, shares)], target, "primary")
    return StageResult.succeeded(f"Traffic is routed: {told}")


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


def routing_manifest(application: Application, manifests: Sequence[Manifest]) -> Manifest:
    """Returns the manifest that decides where the traffic goes."""
    match application.traffic_routing.method:
        case "podselector":
            kind, found = "Service", services(manifests, application.service)
        case "istio":
            kind, found = "VirtualService", _virtual_services(application, manifests)
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
    return found[0]


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
    return sorted(found, key=lambda manifest: not leads_to(manifest, service))


def _of_group(manifests: Sequence[Manifest], group: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest.key.group == group]
