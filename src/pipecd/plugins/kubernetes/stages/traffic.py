# SPDX-License-Identifier: Apache-2.0
"""K8S_TRAFFIC_ROUTING divides the traffic among the variants."""

from collections.abc import Sequence

from pipecd.plugins.kubernetes.application import Application, IstioRouting
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.options import TrafficRoutingOptions
from pipecd.plugins.kubernetes.plan.workload import named, services
from pipecd.plugins.kubernetes.stages.workbench import Workbench
from pipecd.plugins.kubernetes.variant.traffic import (
    Shares,
    by_http_route,
    by_selector,
    by_virtual_service,
    check,
)
from pipecd.sdk import DISPLAY_KEY, StageResult, UserMistake

_ISTIO = "networking.istio.io"
_GATEWAY = "gateway.networking.k8s.io"


async def route(bench: Workbench, options: TrafficRoutingOptions) -> StageResult:
    """Applies the one manifest that decides where the traffic goes."""
    shares = Shares(*options.shares())
    check(shares)
    told = ", ".join(
        f"{name.capitalize()}: {share}%"
        for name, share in (
            ("primary", shares.primary),
            ("canary", shares.canary),
            ("baseline", shares.baseline),
        )
    )
    await bench.stage.metadata.put(
        {
            DISPLAY_KEY: told,
            "primary-percentage": str(shares.primary),
            "canary-percentage": str(shares.canary),
            "baseline-percentage": str(shares.baseline),
        }
    )
    target = bench.stage.target
    manifest = routing_manifest(bench.application, await bench.manifests(target))
    await bench.apply([routed(bench.application, manifest, shares)], target, "primary")
    return StageResult.succeeded(f"Traffic is routed: {told}")


def routed(application: Application, manifest: Manifest, shares: Shares) -> Manifest:
    """Returns the routing manifest with the shares of the traffic in it."""
    label = application.variant_label
    match application.traffic_routing.method:
        case "istio":
            istio = application.traffic_routing.istio or IstioRouting()
            host = istio.host or application.service.name
            if not host:
                raise UserMistake(
                    "no host is named", hint="set trafficRouting.istio.host to that of the service"
                )
            return by_virtual_service(
                manifest, shares, host=host, label=label, editable=istio.editable_routes
            )
        case "gateway":
            name = application.service.name
            if not name:
                raise UserMistake("no service is named", hint="set spec.service.name")
            variants = (
                name,
                *(f"{name}-{application.suffix(v, '')}" for v in ("canary", "baseline")),
            )
            return by_http_route(manifest, shares, variants)
        case _:
            return by_selector(manifest, shares, label)


def routing_manifest(application: Application, manifests: Sequence[Manifest]) -> Manifest:
    """Returns the manifest that decides where the traffic goes."""
    routing = application.traffic_routing
    match routing.method:
        case "podselector":
            kind, found = "Service", services(manifests, application.service)
        case "istio":
            kind, reference = "VirtualService", (routing.istio or IstioRouting()).virtual_service
            if reference.kind not in ("", kind):
                raise UserMistake(f"virtualService.kind must be {kind}, not {reference.kind}")
            found = _of_group(named(manifests, kind, reference.name), _ISTIO)
        case "gateway":
            kind, found = "HTTPRoute", _of_group(named(manifests, "HTTPRoute", ""), _GATEWAY)
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


def _of_group(manifests: Sequence[Manifest], group: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest.key.group == group]
