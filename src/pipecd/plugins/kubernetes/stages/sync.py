# SPDX-License-Identifier: Apache-2.0
"""K8S_SYNC puts everything on the cluster at once; ROLLBACK does the same with what ran before."""

from pipecd.plugins.kubernetes.cluster.owned import missing_from
from pipecd.plugins.kubernetes.manifest.confighash import with_config_hash
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.options import SyncOptions
from pipecd.plugins.kubernetes.plan.workload import workloads
from pipecd.plugins.kubernetes.stages.workbench import Workbench
from pipecd.plugins.kubernetes.variant.label import with_label
from pipecd.sdk import PipecdError, Source, StageResult


async def sync(bench: Workbench, options: SyncOptions) -> StageResult:
    """Applies the target commit, and takes away what it no longer has when asked to."""
    target = bench.stage.target
    manifests = primary_of(
        bench, await bench.manifests(target), labelled=options.add_variant_label_to_selector
    )
    applied = await bench.apply(manifests, target, "primary", ready_within=options.ready_within)
    if options.prune:
        await prune(bench, await bench.live(), applied)
    return StageResult.succeeded(f"{len(applied)} objects are as in commit {target.commit[:7]}")


async def rollback(bench: Workbench) -> StageResult:
    """Applies the running commit, and takes away whatever this deployment brought."""
    source = bench.running()
    applied = [] if bench.aim.is_new else await _restored(bench, source)
    brought = [
        *await bench.live("canary"),
        *await bench.live("baseline"),
        *await _new(bench, applied),
    ]
    await bench.delete(brought)
    return StageResult.succeeded(f"Rolled back to commit {source.commit[:7]}")


async def _restored(bench: Workbench, source: Source) -> list[Manifest]:
    labelled = bench.application.quick_sync.add_variant_label_to_selector
    manifests = primary_of(bench, await bench.manifests(source), labelled=labelled)
    return await bench.apply(manifests, source, "primary")


async def _new(bench: Workbench, applied: list[Manifest]) -> list[Manifest]:
    """Returns what only the failed commit declares; one that cannot be read brought nothing."""
    try:
        declared = await bench.manifests(bench.stage.target)
    except PipecdError as e:
        bench.say(f"The manifests of the failed commit cannot be read: {e}")
        return []
    return missing_from(declared, applied, bench.cluster.namespace)


def primary_of(bench: Workbench, manifests: list[Manifest], *, labelled: bool) -> list[Manifest]:
    """Returns manifests for the primary variant, with the hash of their configuration."""
    if labelled:
        label = bench.application.variant_label
        chosen = {id(m) for m in workloads(manifests, bench.application.workloads)}
        manifests = [
            with_label(m, label.key, label.primary_value) if id(m) in chosen else m
            for m in manifests
        ]
    return with_config_hash(manifests)


async def prune(bench: Workbench, live: list[Manifest], applied: list[Manifest]) -> None:
    """Takes away the objects of this application that are not among those just applied."""
    surplus = missing_from(live, applied, bench.cluster.namespace)
    bench.say(f"{len(surplus)} objects are no longer in Git")
    await bench.delete(surplus)
