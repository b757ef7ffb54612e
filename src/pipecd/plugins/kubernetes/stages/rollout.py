# SPDX-License-Identifier: Apache-2.0
"""Rolling out primary, canary and baseline, and cleaning the latter two."""

from pipecd.plugins.kubernetes.application import Application, Variant
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.options import (
    BaselineRolloutOptions,
    CanaryRolloutOptions,
    PrimaryRolloutOptions,
)
from pipecd.plugins.kubernetes.plan.workload import configuration, services, workloads
from pipecd.plugins.kubernetes.stages.sync import primary_of, prune
from pipecd.plugins.kubernetes.stages.traffic import is_routed, routing_manifests
from pipecd.plugins.kubernetes.stages.workbench import Workbench
from pipecd.plugins.kubernetes.variant.label import require_label
from pipecd.plugins.kubernetes.variant.patch import patched
from pipecd.plugins.kubernetes.variant.workload import Variant as Naming
from pipecd.sdk import StageResult, UserMistake
from pipecd.sdk.config import Replicas


async def primary(bench: Workbench, options: PrimaryRolloutOptions) -> StageResult:
    """Brings primary to the target commit; traffic that a later stage moves stays where it is."""
    target = bench.stage.target
    manifests = await bench.manifests(target)
    labelled = options.add_variant_label_to_selector
    if not labelled and is_routed(bench):
        _require_labels(bench.application, manifests)
    routing: list[Manifest] = []
    if is_routed(bench, after=bench.stage.index):
        routing = routing_manifests(bench.application, manifests)
    made = primary_of(bench, [m for m in manifests if m not in routing], labelled=labelled)
    if options.create_service:
        made += _services(bench, manifests, bench.naming("primary", options.suffix))
    applied = await bench.apply(made, target, "primary", ready_within=options.ready_within)
    if options.prune:
        await prune(bench, await bench.live("primary"), [*applied, *routing])
    return StageResult.succeeded(f"Primary is at commit {target.commit[:7]}")


async def canary(bench: Workbench, options: CanaryRolloutOptions) -> StageResult:
    """Brings the target commit beside what runs, with its own configuration."""
    target = bench.stage.target
    manifests = patched(await bench.manifests(target), options.patches)
    naming = bench.naming("canary", options.suffix)
    copied = configuration(manifests)
    made = [
        *(_services(bench, manifests, naming) if options.create_service else ()),
        *map(naming.configuration, copied),
        *_workloads(bench, manifests, naming, options.replicas, copied),
    ]
    await bench.apply(made, target, "canary", ready_within=options.ready_within)
    return StageResult.succeeded(f"Canary is at commit {target.commit[:7]}")


async def baseline(bench: Workbench, options: BaselineRolloutOptions) -> StageResult:
    """Brings a second set of what runs, to compare the canary with."""
    source = bench.running()
    manifests = await bench.manifests(source)
    naming = bench.naming("baseline", options.suffix)
    made = [
        *(_services(bench, manifests, naming) if options.create_service else ()),
        *_workloads(bench, manifests, naming, options.replicas, []),
    ]
    await bench.apply(made, source, "baseline", ready_within=options.ready_within)
    return StageResult.succeeded(f"Baseline is at commit {source.commit[:7]}")


async def clean(bench: Workbench, variant: Variant) -> StageResult:
    """Takes a variant away."""
    await bench.delete(await bench.live(variant))
    return StageResult.succeeded(f"Nothing of {variant} is left")


def _require_labels(application: Application, manifests: list[Manifest]) -> None:
    """Refuses workloads that the Service would lose when it leads to one variant only."""
    if application.traffic_routing.method == "podselector":
        label, found = application.variant_label, workloads(manifests, application.workloads)
        require_label(found, label.key, label.primary_value)


def _services(bench: Workbench, manifests: list[Manifest], naming: Naming) -> list[Manifest]:
    found = services(manifests, bench.application.service)
    if not found:
        name = bench.application.service.name
        raise UserMistake(
            f"there is no Service {name}".rstrip() + " to make one of",
            hint="correct spec.service, or leave createService out",
        )
    return [naming.service(service) for service in found]


def _workloads(
    bench: Workbench,
    manifests: list[Manifest],
    naming: Naming,
    replicas: Replicas,
    copied: list[Manifest],
) -> list[Manifest]:
    found = workloads(manifests, bench.application.workloads)
    if not found:
        raise UserMistake("there is no workload", hint="correct spec.workloads")
    return [naming.workload(workload, replicas, copied) for workload in found]
