# SPDX-License-Identifier: Apache-2.0
"""The stages K8S_SYNC and ROLLBACK: apply all manifests of the target or the running commit."""

from pipecd.plugins.kubernetes.config import SyncOptions
from pipecd.plugins.kubernetes.managed_objects import surplus_objects
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plan import find_workloads
from pipecd.plugins.kubernetes.stage_session import StageSession
from pipecd.plugins.kubernetes.variant import with_selector_label
from pipecd.plugins.kubernetes.workload import with_config_hash
from pipecd.sdk import PipecdError, StageResult


async def sync(session: StageSession, options: SyncOptions) -> StageResult:
    """Applies the target commit and, with `prune`, deletes what it no longer declares."""
    target = session.stage.target
    manifests = primary_manifests(
        session,
        await session.manifests(target),
        add_variant_label=options.add_variant_label_to_selector,
    )
    applied = await session.apply(manifests, target, "primary", ready_within=options.ready_within)
    if options.prune:
        await prune(session, await session.live(), applied)
    return StageResult.succeeded(f"{len(applied)} objects are as in commit {target.commit[:7]}")


async def rollback(session: StageSession) -> StageResult:
    """Applies the running commit and deletes everything that this deployment added."""
    source = session.running()
    applied: list[Manifest] = []
    if not session.target.is_new:
        manifests = primary_manifests(
            session,
            await session.manifests(source),
            add_variant_label=session.application.quick_sync.add_variant_label_to_selector,
        )
        applied = await session.apply(manifests, source, "primary")
    added = [
        *await session.live("canary"),
        *await session.live("baseline"),
        *await _added_by_target(session, applied),
    ]
    await session.delete(added)
    return StageResult.succeeded(f"Rolled back to commit {source.commit[:7]}")


async def _added_by_target(session: StageSession, applied: list[Manifest]) -> list[Manifest]:
    """Returns the objects that only the failed commit declares.

    A commit whose manifests cannot be rendered has added none.
    """
    try:
        declared = await session.manifests(session.stage.target)
    except PipecdError as e:
        session.log(f"The manifests of the failed commit cannot be loaded: {e}")
        return []
    return surplus_objects(declared, applied, session.cluster.namespace)


def primary_manifests(
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


async def prune(session: StageSession, live: list[Manifest], applied: list[Manifest]) -> None:
    """Deletes the live objects of this application that were not just applied."""
    surplus = surplus_objects(live, applied, session.cluster.namespace)
    session.log(f"{len(surplus)} objects are no longer in Git")
    await session.delete(surplus)
