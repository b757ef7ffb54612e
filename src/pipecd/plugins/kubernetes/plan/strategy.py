# SPDX-License-Identifier: Apache-2.0
"""Whether a change of manifests takes the pipeline or a quick sync, and why."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from pipecd.plugins.kubernetes.application import WorkloadReference
from pipecd.plugins.kubernetes.manifest.body import Body
from pipecd.plugins.kubernetes.manifest.image import Image
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.secret import comparable
from pipecd.plugins.kubernetes.plan.workload import configuration, workloads
from pipecd.sdk import Strategy, SyncStrategy
from pipecd.sdk.diff import MISSING, Node, compare, find, scalar_text

_IMAGE = r"containers\.\d+\.image$"
Differing: TypeAlias = tuple[Manifest, Sequence[Node]]
"""A workload of the new commit and where it differs from the running one."""


def strategy(
    running: Sequence[Manifest], target: Sequence[Manifest], references: Sequence[WorkloadReference]
) -> Strategy:
    """Returns the pipeline when pods or their configuration change, a quick sync otherwise."""
    old, new = workloads(running, references), workloads(target, references)
    if not old:
        return _quick(
            "Quick sync by applying all manifests because it was unable to find "
            "the currently running workloads"
        )
    if not new:
        return _quick(
            "Quick sync by applying all manifests because it was unable to find "
            "workloads in the new manifests"
        )
    differing = [(m, compare(before.body, m.body)) for before, m in _pairs(old, new)]
    reason = _pods_change(differing) or _configuration_changes(running, target)
    if reason:
        return Strategy(SyncStrategy.PIPELINE, f"Sync progressively because {reason}")
    scaled = _replicas_change(differing)
    if scaled:
        return _quick(f"Quick sync to scale {scaled}")
    return _quick("Quick sync by applying all manifests")


def _quick(summary: str) -> Strategy:
    return Strategy(SyncStrategy.QUICK_SYNC, summary)


def _pairs(old: Sequence[Manifest], new: Sequence[Manifest]) -> list[tuple[Manifest, Manifest]]:
    """Returns the objects that are on both sides, whatever their API version."""
    known = {(m.kind, *m.key.identity[2:]): m for m in old}
    keyed = (((m.kind, *m.key.identity[2:]), m) for m in new)
    return [(known[key], m) for key, m in keyed if key in known]


def _pods_change(differing: Sequence[Differing]) -> str:
    for new, found in differing:
        nodes = find(found, r"^spec\.template(\.|$)")
        changed = [_image_change(node) for node in find(nodes, _IMAGE)]
        if changed:
            return f"of updating {', '.join(changed)}"
        if nodes:
            return f"pod template of workload {new.name} was changed"
    return ""


def _image_change(node: Node) -> str:
    old, new = (Image.of("" if side is MISSING else str(side)) for side in (node.old, node.new))
    if old.name == new.name:
        return f"image {old.name} from {old.tag} to {new.tag}"
    return f"image {old.name}:{old.tag} to {new.name}:{new.tag}"


def _configuration_changes(running: Sequence[Manifest], target: Sequence[Manifest]) -> str:
    old, new = configuration(running), configuration(target)
    if len(old) > len(new):
        return f"{len(old) - len(new)} configmap/secret deleted"
    if len(new) > len(old):
        return f"{len(new) - len(old)} new configmap/secret added"
    known = {m.key.identity: m for m in new}
    for manifest in old:
        if manifest.key.identity not in known:
            return f"{manifest.kind} {manifest.name} was deleted"
    for manifest in old:
        if compare(_plain(manifest), _plain(known[manifest.key.identity])):
            return f"{manifest.kind} {manifest.name} was updated"
    return ""


def _plain(manifest: Manifest) -> Body:
    return comparable(manifest.body) if manifest.kind == "Secret" else manifest.body


def _replicas_change(differing: Sequence[Differing]) -> str:
    changes = (
        f"{new.kind}/{new.name} from {_count(node.old)} to {_count(node.new)}"
        for new, found in differing
        for node in find(found, r"^spec\.replicas$")
    )
    return ", ".join(sorted(changes))


def _count(value: Any) -> str:
    return "<nil>" if value is MISSING else scalar_text(value)
