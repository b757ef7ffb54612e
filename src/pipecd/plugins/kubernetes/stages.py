# SPDX-License-Identifier: Apache-2.0
"""The stages that apply and delete objects: sync, rollback, and the rollout of variants.

The stage K8S_TRAFFIC_ROUTING is in `traffic`.
"""

from pipecd.plugins.kubernetes.config import (
    BaselineRolloutOptions,
    CanaryRolloutOptions,
    PrimaryRolloutOptions,
    SyncOptions,
    Variant,
)
from pipecd.plugins.kubernetes.managed_objects import surplus_objects
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plan import find_config, find_services, find_workloads
from pipecd.plugins.kubernetes.stage_session import StageSession
from pipecd.plugins.kubernetes.traffic import routes_traffic, routing_manifests
from pipecd.plugins.kubernetes.variant import (
    VariantBuilder,
    apply_patches,
    require_selector_label,
    with_selector_label,
)
from pipecd.plugins.kubernetes.workload import with_config_hash
from pipecd.sdk import PipecdError, StageResult, UserMistake
from pipecd.sdk.config import Replicas
from pipecd.sdk.counts import counted


async def sync(session: StageSession, options: SyncOptions) -> StageResult:
    """Applies the target commit and, with `prune`, deletes what it no longer declares."""
    target = session.stage.target
    manifests = _primary_manifests(
        session,
        await session.manifests(target),
        add_variant_label=options.add_variant_label_to_selector,
    )
    applied = await session.apply(manifests, target, "primary", ready_within=options.ready_within)
    if options.prune:
        await _prune(session, await session.live(), applied)
    objects = counted(len(applied), "object is", "objects are")
    return StageResult.succeeded(f"{objects} as in commit {target.commit[:7]}")


async def rollback(session: StageSession) -> StageResult:
    """Applies the running commit and deletes everything that this deployment added."""
    source = session.running()
    applied: list[Manifest] = []
    if not session.target.is_new:
        manifests = _primary_manifests(
            session,
            await session.manifests(source),
            add_variant_label=session.application.quick_sync.add_variant_label_to_selector,
        )
        applied = await session.apply(manifests, source, "primary")
    variants = [*await session.live("canary"), *await session.live("baseline")]
    try:
        declared = await session.manifests(session.stage.target)
    except PipecdError as e:
        # A commit whose manifests cannot be rendered has added no objects.
        session.log(f"The manifests of the failed commit cannot be loaded: {e}")
        declared = []
    added = surplus_objects(declared, applied, session.cluster.namespace)
    await session.delete([*variants, *added])
    return StageResult.succeeded(f"Rolled back to commit {source.commit[:7]}")


async def rollout_primary(session: StageSession, options: PrimaryRolloutOptions) -> StageResult:
    """Applies the target commit as primary.

    The manifest that routes traffic is left to the traffic stage when one follows.
    """
    target = session.stage.target
    manifests = await session.manifests(target)
    add_variant_label = options.add_variant_label_to_selector
    application = session.application
    by_selector = application.traffic_routing.method == "podselector"
    if not add_variant_label and by_selector and routes_traffic(session):
        label = application.variant_label
        workloads = find_workloads(manifests, application.workloads)
        require_selector_label(workloads, label.key, label.primary_value)
    routing: list[Manifest] = []
    if routes_traffic(session, after=session.stage.index):
        routing = routing_manifests(application, manifests)
    primary = _primary_manifests(
        session, [m for m in manifests if m not in routing], add_variant_label=add_variant_label
    )
    if options.create_service:
        builder = session.variant_builder("primary", options.suffix)
        primary += _variant_services(session, manifests, builder)
    applied = await session.apply(primary, target, "primary", ready_within=options.ready_within)
    if options.prune:
        await _prune(session, await session.live("primary"), [*applied, *routing])
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
    return StageResult.succeeded(f"Deleted all objects of {variant}")


def _primary_manifests(
    session: StageSession, manifests: list[Manifest], *, add_variant_label: bool
) -> list[Manifest]:
    """Returns the manifests of the primary variant, with the hash of their configuration."""
    if add_variant_label:
        label = session.application.variant_label
        workloads = {id(m) for m in find_workloads(manifests, session.application.workloads)}
        manifests = [
            with_selector_label(m, label.key, label.primary_value) if id(m) in workloads else m
            for m in manifests
        ]
    return with_config_hash(manifests)


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


async def _prune(session: StageSession, live: list[Manifest], applied: list[Manifest]) -> None:
    """Deletes the live objects of this application that were not just applied."""
    surplus = surplus_objects(live, applied, session.cluster.namespace)
    session.log(f"{counted(len(surplus), 'object is', 'objects are')} no longer in Git")
    await session.delete(surplus)
