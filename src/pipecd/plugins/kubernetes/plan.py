# SPDX-License-Identifier: Apache-2.0
"""Plans a deployment: its versions, and pipeline or quick sync by the changes of manifests."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pipecd.plugins.kubernetes.config import ResourceReference, WorkloadReference
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.unstructured import Body
from pipecd.plugins.kubernetes.workload import Image, normalized_secret
from pipecd.sdk import Strategy, SyncStrategy, Version
from pipecd.sdk.diff import MISSING, Node, compare, find, scalar_text


def find_workloads(
    manifests: Iterable[Manifest], references: Sequence[WorkloadReference]
) -> list[Manifest]:
    """Returns the workloads in `find_workloads` of the application, by default all Deployments."""
    requested = references or (WorkloadReference(),)
    manifests = list(manifests)
    return [
        matching for ref in requested for matching in find_by_kind(manifests, ref.kind, ref.name)
    ]


def find_services(manifests: Iterable[Manifest], reference: ResourceReference) -> list[Manifest]:
    """Returns the Services at `service` of the application, by default all."""
    return [
        matching
        for matching in find_by_kind(manifests, "Service", reference.name)
        if matching.is_builtin("", "Service")
    ]


def find_config(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Returns the ConfigMaps and Secrets."""
    return [manifest for manifest in manifests if manifest.is_builtin("", "ConfigMap", "Secret")]


def find_by_kind(manifests: Iterable[Manifest], kind: str, name: str = "") -> list[Manifest]:
    """Returns the objects of a kind, or those with a name."""
    return [m for m in manifests if m.kind == kind and (not name or m.name == name)]


Images: TypeAlias = Callable[[Manifest], Iterable[Image]]
"""Returns the images of an object that count as versions."""


def image_versions(manifests: Iterable[Manifest], images: Images) -> list[Version]:
    """Returns every image once as a version, in the order of the manifests."""
    matching = dict.fromkeys(image for manifest in manifests for image in images(manifest))
    return [Version(image.tag, name=image.name, url=image.reference) for image in matching]


_IMAGE = r"containers\.\d+\.image$"
ChangedWorkload: TypeAlias = tuple[Manifest, Sequence[Node]]
"""A workload of the target commit and its differences from the running one."""


def decide_strategy(
    running: Sequence[Manifest], target: Sequence[Manifest], references: Sequence[WorkloadReference]
) -> Strategy:
    """Returns the pipeline if pod templates, ConfigMaps or Secrets change, else quick sync."""
    old, new = find_workloads(running, references), find_workloads(target, references)
    if not old:
        return _quick_sync(
            "Quick sync by applying all manifests because it was unable to find "
            "the currently running workloads"
        )
    if not new:
        return _quick_sync(
            "Quick sync by applying all manifests because it was unable to find "
            "workloads in the new manifests"
        )
    changed_workloads = [
        (m, compare(before.body, m.body)) for before, m in _common_workloads(old, new)
    ]
    reason = _pod_template_change(changed_workloads) or _config_change(running, target)
    if reason:
        return Strategy(SyncStrategy.PIPELINE, f"Sync progressively because {reason}")
    scaled = _replicas_change(changed_workloads)
    if scaled:
        return _quick_sync(f"Quick sync to scale {scaled}")
    return _quick_sync("Quick sync by applying all manifests")


def _quick_sync(summary: str) -> Strategy:
    return Strategy(SyncStrategy.QUICK_SYNC, summary)


def _common_workloads(
    old: Sequence[Manifest], new: Sequence[Manifest]
) -> list[tuple[Manifest, Manifest]]:
    """Returns the workloads of both sides in pairs, whatever their API version."""
    running_by_key = {(m.kind, *m.key.identity[2:]): m for m in old}
    keyed = (((m.kind, *m.key.identity[2:]), m) for m in new)
    return [(running_by_key[key], m) for key, m in keyed if key in running_by_key]


def _pod_template_change(changed_workloads: Sequence[ChangedWorkload]) -> str:
    for new, matching in changed_workloads:
        nodes = find(matching, r"^spec\.template(\.|$)")
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


def _config_change(running: Sequence[Manifest], target: Sequence[Manifest]) -> str:
    old, new = find_config(running), find_config(target)
    if len(old) > len(new):
        return f"{len(old) - len(new)} configmap/secret deleted"
    if len(new) > len(old):
        return f"{len(new) - len(old)} new configmap/secret added"
    running_by_key = {m.key.identity: m for m in new}
    for manifest in old:
        if manifest.key.identity not in running_by_key:
            return f"{manifest.kind} {manifest.name} was deleted"
    for manifest in old:
        if compare(_comparable(manifest), _comparable(running_by_key[manifest.key.identity])):
            return f"{manifest.kind} {manifest.name} was updated"
    return ""


def _comparable(manifest: Manifest) -> Body:
    return normalized_secret(manifest.body) if manifest.kind == "Secret" else manifest.body


def _replicas_change(changed_workloads: Sequence[ChangedWorkload]) -> str:
    changes = (
        f"{new.kind}/{new.name} from {_count(node.old)} to {_count(node.new)}"
        for new, matching in changed_workloads
        for node in find(matching, r"^spec\.replicas$")
    )
    return ", ".join(sorted(changes))


def _count(value: Any) -> str:
    return "<nil>" if value is MISSING else scalar_text(value)
