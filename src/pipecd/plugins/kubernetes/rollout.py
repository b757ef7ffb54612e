# SPDX-License-Identifier: Apache-2.0
"""The stages K8S_PRIMARY_ROLLOUT, K8S_CANARY_* and K8S_BASELINE_*."""

from pipecd.plugins.kubernetes.config import (
    BaselineRolloutOptions,
    CanaryRolloutOptions,
    PrimaryRolloutOptions,
    Variant,
)
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plan import find_config, find_services, find_workloads
from pipecd.plugins.kubernetes.stage_session import StageSession
from pipecd.plugins.kubernetes.sync import primary_manifests, prune
from pipecd.plugins.kubernetes.traffic import routes_traffic, routing_manifests
from pipecd.plugins.kubernetes.variant import (
    VariantBuilder,
    apply_patches,
    require_selector_label,
)
from pipecd.sdk import StageResult, UserMistake
from pipecd.sdk.config import Replicas


async def rollout_primary(session: StageSession, options: PrimaryRolloutOptions) -> StageResult:
    """Applies the target commit as primary.

    The manifest that routes traffic is left to the traffic stage when one follows.
    """
    target = session.stage.target
    manifests = await session.manifests(target)
    add_variant_label = options.add_variant_label_to_selector
    if not add_variant_label and routes_traffic(session):
        _require_variant_label(session, manifests)
    routing: list[Manifest] = []
    if routes_traffic(session, after=session.stage.index):
        routing = routing_manifests(session.application, manifests)
    primary = primary_manifests(
        session, [m for m in manifests if m not in routing], add_variant_label=add_variant_label
    )
    if options.create_service:
        builder = session.variant_builder("primary", options.suffix)
        primary += _variant_services(session, manifests, builder)
    applied = await session.apply(primary, target, "primary", ready_within=options.ready_within)
    if options.prune:
        await prune(session, await session.live("primary"), [*applied, *routing])
    return StageResult.succeeded(f"Primary is at commit {target.commit[:7]}")


async def rollout_canary(session: StageSession, options: CanaryRolloutOptions) -> StageResult:
    """Applies the target commit beside primary, with ConfigMaps and Secrets of its own."""
    target = session.stage.target
    manifests = apply_patches(await session.manifests(target), options.patches)
    builder = session.variant_builder("canary", options.suffix)
    config = find_config(manifests)
    canary = [
        *(_variant_services(session, manifests, builder) if options.create_service else ()),
        *map(builder.config, config),
        *_variant_workloads(session, manifests, builder, options.replicas, config),
    ]
    await session.apply(canary, target, "canary", ready_within=options.ready_within)
    return StageResult.succeeded(f"Canary is at commit {target.commit[:7]}")


async def rollout_baseline(session: StageSession, options: BaselineRolloutOptions) -> StageResult:
    """Applies the running commit a second time, to compare the canary with."""
    source = session.running()
    manifests = await session.manifests(source)
    builder = session.variant_builder("baseline", options.suffix)
    baseline = [
        *(_variant_services(session, manifests, builder) if options.create_service else ()),
        *_variant_workloads(session, manifests, builder, options.replicas, []),
    ]
    await session.apply(baseline, source, "baseline", ready_within=options.ready_within)
    return StageResult.succeeded(f"Baseline is at commit {source.commit[:7]}")


async def clean_variant(session: StageSession, variant: Variant) -> StageResult:
    """Deletes all objects of a variant."""
    await session.delete(await session.live(variant))
    return StageResult.succeeded(f"Nothing of {variant} is left")


def _require_variant_label(session: StageSession, manifests: list[Manifest]) -> None:
    """Refuses workloads that the Service would not select once it selects one variant only."""
    application = session.application
    if application.traffic_routing.method == "podselector":
        label = application.variant_label
        workloads = find_workloads(manifests, application.workloads)
        require_selector_label(workloads, label.key, label.primary_value)


def _variant_services(
    session: StageSession, manifests: list[Manifest], builder: VariantBuilder
) -> list[Manifest]:
    services = find_services(manifests, session.application.service)
    if not services:
        name = session.application.service.name
        raise UserMistake(
            f"there is no Service {name}".rstrip() + " to create a variant of",
            hint="correct spec.service, or leave createService out",
        )
    return [builder.service(service) for service in services]


def _variant_workloads(
    session: StageSession,
    manifests: list[Manifest],
    builder: VariantBuilder,
    replicas: Replicas,
    copied_config: list[Manifest],
) -> list[Manifest]:
    workloads = find_workloads(manifests, session.application.workloads)
    if not workloads:
        raise UserMistake("there is no workload", hint="correct spec.workloads")
    return [builder.workload(workload, replicas, copied_config) for workload in workloads]
