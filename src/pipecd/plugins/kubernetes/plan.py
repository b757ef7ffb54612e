# SPDX-License-Identifier: Apache-2.0
"""Plans a deployment: its versions, and pipeline or quick sync by the changes of manifests."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pipecd.plugins.kubernetes.config import ResourceReference, WorkloadReference
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.workload import normalized_secret
from pipecd.sdk import ArtifactKind, Strategy, SyncStrategy, Version
from pipecd.sdk.diff import MISSING, Node, compare, find, scalar_text
from pipecd.sdk.images import Image
from pipecd.sdk.unstructured import Body


def find_workloads(
    manifests: Iterable[Manifest], references: Sequence[WorkloadReference]
) -> list[Manifest]:
    """Returns the workloads in `workloads` of the application, by default all Deployments."""
    requested = references or (WorkloadReference(),)
    manifests = list(manifests)
    return [m for ref in requested for m in find_by_kind(manifests, ref.kind, ref.name)]


def find_services(manifests: Iterable[Manifest], reference: ResourceReference) -> list[Manifest]:
    """Returns the Services at `service` of the application, by default all."""
    services = find_by_kind(manifests, "Service", reference.name)
    return [service for service in services if service.is_builtin("", "Service")]


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
    unique = dict.fromkeys(image for manifest in manifests for image in images(manifest))
    kind = ArtifactKind.CONTAINER_IMAGE
    return [Version(each.tag, each.name, each.reference, kind) for each in unique]


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
    # Workloads are matched whatever their API version.
    running_by_key = {(m.kind, *m.key.identity[2:]): m for m in old}
    changed_workloads = [
        (m, compare(running_by_key[key].body, m.body))
        for key, m in (((m.kind, *m.key.identity[2:]), m) for m in new)
        if key in running_by_key
    ]
    reason = _pod_template_change(changed_workloads) or _config_change(running, target)
    if reason:
        return Strategy(SyncStrategy.PIPELINE, f"Sync progressively because {reason}")
    scaled = sorted(
        f"{new.kind}/{new.name} from {_count(node.old)} to {_count(node.new)}"
        for new, nodes in changed_workloads
        for node in find(nodes, r"^spec\.replicas$")
    )
    if scaled:
        return _quick_sync(f"Quick sync to scale {', '.join(scaled)}")
    return _quick_sync("Quick sync by applying all manifests")


def _quick_sync(summary: str) -> Strategy:
    return Strategy(SyncStrategy.QUICK_SYNC, summary)


def _pod_template_change(changed_workloads: Sequence[ChangedWorkload]) -> str:
    for new, differences in changed_workloads:
        nodes = find(differences, r"^spec\.template(\.|$)")
        images: list[str] = []
        for node in find(nodes, _IMAGE):
            sides = ("" if side is MISSING else str(side) for side in (node.old, node.new))
            before, after = map(Image.of, sides)
            images.append(
                f"image {before.name} from {before.tag} to {after.tag}"
                if before.name == after.name
                else f"image {before.name}:{before.tag} to {after.name}:{after.tag}"
            )
        if images:
            return f"of updating {', '.join(images)}"
        if nodes:
            return f"pod template of workload {new.name} was changed"
    return ""


def _config_change(running: Sequence[Manifest], target: Sequence[Manifest]) -> str:
    old, new = find_config(running), find_config(target)
    if len(old) > len(new):
        return f"{len(old) - len(new)} configmap/secret deleted"
    if len(new) > len(old):
        return f"{len(new) - len(old)} new configmap/secret added"
    new_by_key = {m.key.identity: m for m in new}
    for manifest in old:
        if manifest.key.identity not in new_by_key:
            return f"{manifest.kind} {manifest.name} was deleted"
    for manifest in old:
        if compare(_comparable(manifest), _comparable(new_by_key[manifest.key.identity])):
            return f"{manifest.kind} {manifest.name} was updated"
    return ""


def _comparable(manifest: Manifest) -> Body:
    return normalized_secret(manifest.body) if manifest.kind == "Secret" else manifest.body


def _count(value: Any) -> str:
    return "<nil>" if value is MISSING else scalar_text(value)
