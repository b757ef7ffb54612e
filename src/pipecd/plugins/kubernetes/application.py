# SPDX-License-Identifier: Apache-2.0
"""What an application on Kubernetes declares."""

from collections.abc import Mapping
from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from pipecd.plugins.kubernetes.options import MultiSyncOptions, SyncOptions
from pipecd.sdk.config import Spec, refuse

Variant: TypeAlias = Literal["primary", "canary", "baseline"]


class HelmChart(Spec):
    """Where a chart comes from: another Git repository, a chart repository or a directory."""

    git_remote: str = ""
    ref: str = ""
    path: str = ""
    repository: str = ""
    name: str = ""
    version: str = ""


class HelmOptions(Spec):
    """How a chart is rendered; the release is named after the application when not told."""

    release_name: str = ""
    set_values: Mapping[str, str] = Field(default_factory=dict[str, str])
    value_files: tuple[str, ...] = ()
    set_files: Mapping[str, str] = Field(default_factory=dict[str, str])
    api_versions: tuple[str, ...] = ()
    kube_version: str = ""


class ManifestInput(Spec):
    """Which manifests make up the application and which tools render them."""

    manifests: tuple[str, ...] = ()
    kubectl_version: str = ""
    kustomize_version: str = ""
    kustomize_options: Mapping[str, str] = Field(default_factory=dict[str, str])
    helm_version: str = ""
    helm_chart: HelmChart | None = None
    helm_options: HelmOptions | None = None
    namespace: str = ""
    auto_create_namespace: bool = False


class ResourceReference(Spec):
    """One resource by kind and name; an empty name means the first one found."""

    kind: str = ""
    name: str = ""


class WorkloadReference(Spec):
    """The workloads of a kind, or one of them by name."""

    kind: str = "Deployment"
    name: str = ""


class IstioRouting(Spec):
    """Which VirtualService carries the traffic and which of its routes may change."""

    editable_routes: tuple[str, ...] = ()
    host: str = ""
    virtual_service: ResourceReference = ResourceReference()


class TrafficRouting(Spec):
    """How traffic is divided: by `podselector`, `istio` or `gateway`."""

    method: str = "podselector"
    istio: IstioRouting | None = None


class VariantLabel(Spec):
    """The label that tells primary, canary and baseline apart."""

    key: str = "pipecd.dev/variant"
    primary_value: str = "primary"
    canary_value: str = "canary"
    baseline_value: str = "baseline"

    def value(self, variant: Variant) -> str:
        """Return the label value of a variant."""
        match variant:
            case "primary":
                return self.primary_value
            case "canary":
                return self.canary_value
            case "baseline":
                return self.baseline_value


class RouteProvider(Spec):
    """Deploy targets by name, or by labels when there is no name."""

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])


class RouteMatch(Spec):
    """The resources of a route; an empty value matches all."""

    kind: str = ""
    name: str = ""


class ResourceRoute(Spec):
    """Sends the matching resources to other deploy targets than the rest."""

    provider: RouteProvider = RouteProvider()
    match: RouteMatch | None = None


class WorkloadSection(Spec):
    """What single and multi-cluster applications declare alike."""

    service: ResourceReference = ResourceReference()
    workloads: tuple[WorkloadReference, ...] = ()
    traffic_routing: TrafficRouting = TrafficRouting()
    variant_label: VariantLabel = VariantLabel()
    resource_routes: tuple[ResourceRoute, ...] = ()


class KubernetesApplication(WorkloadSection):
    """The section `plugins.kubernetes` of an application."""

    input: ManifestInput = ManifestInput()
    quick_sync: SyncOptions = SyncOptions()
    suffix_from_variant_label: bool = False

    @property
    def is_first_generation(self) -> bool:
        """Whether the objects carry the marks of the first generation."""
        return self.suffix_from_variant_label

    def suffix(self, variant: Variant, given: str) -> str:
        """Return what is appended to the names of a variant whose stage gives `given`.

        The first generation falls back to the label value, the second to the plain word.
        """
        if given:
            return given
        return self.variant_label.value(variant) if self.suffix_from_variant_label else variant


class MultiTargetReference(Spec):
    """A deploy target by name; labels are read and not used."""

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])


class MultiTarget(Spec):
    """How one deploy target differs from the rest; an empty value means no difference."""

    target: MultiTargetReference = MultiTargetReference()
    manifests: tuple[str, ...] = ()
    kubectl_version: str = ""
    kustomize_dir: str = ""
    kustomize_version: str = ""
    kustomize_options: Mapping[str, str] = Field(default_factory=dict[str, str])


class MulticlusterInput(ManifestInput):
    """Manifests for several clusters; without `multiTargets` every deploy target gets them."""

    multi_targets: tuple[MultiTarget, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse(
            self,
            (
                self.helm_chart is not None and self.kustomize_options,
                "kustomizeOptions",
                "helmChart and kustomizeOptions are mutually exclusive",
            ),
            *(
                (
                    not entry.target.name,
                    ("multiTargets", i, "target", "name"),
                    f"multiTargets[{i}].target.name must not be empty",
                )
                for i, entry in enumerate(self.multi_targets)
            ),
        )
        return self


class MulticlusterApplication(WorkloadSection):
    """The section `plugins.kubernetes_multicluster` of an application."""

    input: MulticlusterInput = MulticlusterInput()
    quick_sync: MultiSyncOptions = MultiSyncOptions()

    @property
    def is_first_generation(self) -> bool:
        """Whether the objects carry the marks of the first generation, which had no such plugin."""
        return False

    def suffix(self, variant: Variant, given: str) -> str:
        """Return what is appended to the names of a variant whose stage gives `given`."""
        if given:
            return given
        return self.variant_label.canary_value if variant == "canary" else variant


Application: TypeAlias = KubernetesApplication | MulticlusterApplication


class V0ManifestInput(ManifestInput):
    """The `input` of a first-generation KubernetesApp."""

    auto_rollback: bool = True


class V0KubernetesApp(WorkloadSection):
    """The fields of a first-generation KubernetesApp beyond the generic ones."""

    input: V0ManifestInput = V0ManifestInput()
    quick_sync: SyncOptions = SyncOptions()
