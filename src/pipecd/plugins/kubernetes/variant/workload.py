# SPDX-License-Identifier: Apache-2.0
"""The workloads, services and configuration of a variant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import map_at, with_entries, with_value, without
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.references import renamed
from pipecd.plugins.kubernetes.variant.label import with_label
from pipecd.sdk import UserMistake
from pipecd.sdk.config import Replicas

_OF_THE_CLUSTER = ("externalIPs", "loadBalancerIP", "loadBalancerSourceRanges")


@dataclass(frozen=True)
class Variant:
    """How the objects of a variant are named and marked."""

    label: str
    value: str
    suffix: str

    def name(self, name: str) -> str:
        """Returns the name of an object's copy."""
        return f"{name}-{self.suffix}"

    def service(self, manifest: Manifest) -> Manifest:
        """Returns a Service that leads to the pods of this variant only, inside the cluster."""
        body = with_entries(manifest.body, ("spec", "selector"), {self.label: self.value})
        body = with_value(body, ("spec", "type"), "ClusterIP")
        for field in _OF_THE_CLUSTER:
            body = without(body, "spec", field)
        # Two services cannot share an address or a port of the nodes.
        if map_at(body, "spec").get("clusterIP") != "None":
            body = without(without(body, "spec", "clusterIP"), "spec", "clusterIPs")
        ports = [
            {key: value for key, value in port.items() if key != "nodePort"}
            for port in map_at(body, "spec").get("ports") or ()
        ]
        if ports:
            body = with_value(body, ("spec", "ports"), ports)
        return manifest.with_body(body).named(self.name(manifest.name))

    def configuration(self, manifest: Manifest) -> Manifest:
        """Returns a copy of a ConfigMap or a Secret."""
        return manifest.named(self.name(manifest.name))

    def workload(
        self, manifest: Manifest, replicas: Replicas, copied: Sequence[Manifest] = ()
    ) -> Manifest:
        """Returns a Deployment of this variant that uses the copied configuration."""
        if not manifest.is_builtin("apps", "Deployment"):
            raise UserMistake(
                f"{manifest.key} cannot have a variant",
                hint="only a Deployment can; name the Deployments at spec.workloads",
            )
        body = renamed(manifest.body, self._rename(copied))
        count = replicas.of(_desired(manifest), default=1)
        body = with_value(body, ("spec", "replicas"), count)
        labelled = with_label(manifest.with_body(body), self.label, self.value)
        return labelled.named(self.name(manifest.name))

    def _rename(self, copied: Sequence[Manifest]) -> Callable[[str, str], str]:
        known = {(manifest.kind, manifest.name) for manifest in copied}
        return lambda kind, name: self.name(name) if (kind, name) in known else name


def _desired(manifest: Manifest) -> int:
    value: Any = map_at(manifest.body, "spec").get("replicas")
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserMistake(f"{manifest.key}: spec.replicas must be a whole number, not {value!r}")
    return value
