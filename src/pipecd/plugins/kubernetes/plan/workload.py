# SPDX-License-Identifier: Apache-2.0
"""Which manifests are the workloads, the service and the configuration of an application."""

from collections.abc import Iterable, Sequence

from pipecd.plugins.kubernetes.application import ResourceReference, WorkloadReference
from pipecd.plugins.kubernetes.manifest.manifest import Manifest


def workloads(
    manifests: Iterable[Manifest], references: Sequence[WorkloadReference]
) -> list[Manifest]:
    """Returns the workloads that the application names, all Deployments when it names none."""
    wanted = references or (WorkloadReference(),)
    manifests = list(manifests)
    return [found for ref in wanted for found in named(manifests, ref.kind, ref.name)]


def services(manifests: Iterable[Manifest], reference: ResourceReference) -> list[Manifest]:
    """Returns the Services that the application names, all when it names none."""
    return [
        found
        for found in named(manifests, "Service", reference.name)
        if found.is_builtin("", "Service")
    ]


def configuration(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Returns the ConfigMaps and Secrets."""
    return [manifest for manifest in manifests if manifest.is_builtin("", "ConfigMap", "Secret")]


def named(manifests: Iterable[Manifest], kind: str, name: str) -> list[Manifest]:
    """Returns the objects of a kind, or the one of a name."""
    return [m for m in manifests if m.kind == kind and (not name or m.name == name)]
