# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Kubernetes plugins: stages, deploy targets and applications.

Without a `suffix` in the stage, `suffix` of the application decides the names of a variant.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from pipecd.sdk.config import (
    ApplicationKind,
    Duration,
    NoOptions,
    Percentage,
    PluginConfig,
    Replicas,
    Section,
    Spec,
    V0Kind,
    V0Stage,
    plain,
    refuse,
)


class ReadyOptions(Spec):
    """A stage that applies objects; with `ready_within` it also waits until they are ready."""

    ready_within: Duration = Duration(0)


class SyncOptions(ReadyOptions):
    """K8S_SYNC and quick sync."""

    add_variant_label_to_selector: bool = False
    prune: bool = False


class PatchTarget(Spec):
    """The manifest a patch changes, or a document in one of its text fields."""

    kind: str = ""
    name: str = ""
    document_root: str = ""


class PatchOp(Spec):
    """One replacement; only `yaml-replace` exists."""

    op: str = "yaml-replace"
    path: str = ""
    value: str = ""


class Patch(Spec):
    """Changes to one manifest of the canary."""

    target: PatchTarget = PatchTarget()
    ops: tuple[PatchOp, ...] = ()


class PrimaryRolloutOptions(ReadyOptions):
    """K8S_PRIMARY_ROLLOUT."""

    suffix: str = ""
    create_service: bool = False
    add_variant_label_to_selector: bool = False
    prune: bool = False


class CanaryRolloutOptions(ReadyOptions):
    """K8S_CANARY_ROLLOUT."""

    replicas: Replicas = Replicas(0)
    suffix: str = ""
    create_service: bool = False
    patches: tuple[Patch, ...] = ()


class BaselineRolloutOptions(ReadyOptions):
    """K8S_BASELINE_ROLLOUT."""

    replicas: Replicas = Replicas(0)
    suffix: str = ""
    create_service: bool = False


class TrafficRoutingOptions(Spec):
    """K8S_TRAFFIC_ROUTING: all traffic to one variant, or a percentage for each."""

    all: str = ""
    primary: Percentage = Percentage(0)
    canary: Percentage = Percentage(0)
    baseline: Percentage = Percentage(0)

    def shares(self) -> tuple[int, int, int]:
        """Returns the percentages of the variants; primary gets the rest unless it has its own."""
        match self.all:
            case "primary":
                return 100, 0, 0
            case "canary":
                return 0, 100, 0
            case "baseline":
                return 0, 0, 100
            case _:
                others = int(self.canary) + int(self.baseline)
                rest = max(0, 100 - others) if others else 0
                return int(self.primary) or rest, int(self.canary), int(self.baseline)


class MultiOptions(Spec):
    """A multi-cluster stage; without `multiTargets` it runs on all deploy targets."""

    multi_targets: tuple[str, ...] = ()


class MultiSyncOptions(MultiOptions, SyncOptions):
    """K8S_MULTI_SYNC."""


class MultiPrimaryRolloutOptions(MultiOptions, PrimaryRolloutOptions):
    """K8S_MULTI_PRIMARY_ROLLOUT."""


class MultiCanaryRolloutOptions(MultiOptions, CanaryRolloutOptions):
    """K8S_MULTI_CANARY_ROLLOUT."""


class MultiBaselineRolloutOptions(MultiOptions, BaselineRolloutOptions):
    """K8S_MULTI_BASELINE_ROLLOUT."""


class MultiTrafficRoutingOptions(MultiOptions, TrafficRoutingOptions):
    """K8S_MULTI_TRAFFIC_ROUTING."""


class ResourceMatcher(Spec):
    """A kind of an API version; an empty kind means the whole API version."""

    api_version: str = ""
    kind: str = ""


class AppStateInformer(Spec):
    """The kinds of the live state; `excludeResources` takes precedence."""

    namespace: str = ""
    include_resources: tuple[ResourceMatcher, ...] = ()
    exclude_resources: tuple[ResourceMatcher, ...] = ()


class KubernetesTarget(Spec):
    """A cluster; without an address or a kubeconfig it is the one piped runs in."""

    master_url: Annotated[str, Field(alias="masterURL")] = ""
    kube_config_path: str = ""
    kubectl_version: str = ""
    app_state_informer: AppStateInformer = AppStateInformer()


class ChartRepository(Spec):
    """A Helm chart repository, served over HTTP or Git."""

    type: str = "HTTP"
    name: str = ""
    address: str = ""
    username: str = ""
    password: Annotated[str, Field(repr=False)] = ""
    insecure: bool = False
    git_remote: str = ""
    ssh_key_file: str = ""

    @model_validator(mode="after")
    def _has_required_fields(self) -> Self:
        http = self.type == "HTTP"
        refuse(
            self,
            (
                self.type not in ("HTTP", "GIT"),
                "type",
                "either HTTP repository or GIT repository must be configured",
            ),
            (http and not self.name, "name", "name must be set"),
            (http and not self.address, "address", "address must be set"),
            (self.type == "GIT" and not self.git_remote, "gitRemote", "gitRemote must be set"),
        )
        return self


class ChartRegistry(Spec):
    """An OCI registry that holds Helm charts."""

    type: str = "OCI"
    address: str = ""
    username: str = ""
    password: Annotated[str, Field(repr=False)] = ""

    @model_validator(mode="after")
    def _has_required_fields(self) -> Self:
        refuse(
            self,
            (self.type != "OCI", "type", "OCI registry must be configured"),
            (self.type == "OCI" and not self.address, "address", "address must be set"),
        )
        return self


class ChartSources(Spec):
    """The chart repositories and registries of the piped."""

    chart_repositories: tuple[ChartRepository, ...] = ()
    chart_registries: tuple[ChartRegistry, ...] = ()


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
    """How a chart is rendered; the default release name is that of the application."""

    release_name: str = ""
    set_values: Mapping[str, str] = Field(default_factory=dict[str, str])
    value_files: tuple[str, ...] = ()
    set_files: Mapping[str, str] = Field(default_factory=dict[str, str])
    api_versions: tuple[str, ...] = ()
    kube_version: str = ""


class ManifestInput(Spec):
    """The manifests of the application, and the tools that render them."""

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
    """One resource by kind and name; an empty name means the first one."""

    kind: str = ""
    name: str = ""


class WorkloadReference(Spec):
    """The workloads of a kind, or one of them by name."""

    kind: str = "Deployment"
    name: str = ""


class IstioRouting(Spec):
    """The VirtualService that routes the traffic, and its routes that may change."""

    editable_routes: tuple[str, ...] = ()
    host: str = ""
    virtual_service: ResourceReference = ResourceReference()


class TrafficRouting(Spec):
    """How traffic is split: by `podselector`, `istio` or `gateway`."""

    method: str = "podselector"
    istio: IstioRouting | None = None


class VariantLabel(Spec):
    """The label that distinguishes primary, canary and baseline."""

    key: str = "pipecd.dev/variant"
    primary_value: str = "primary"
    canary_value: str = "canary"
    baseline_value: str = "baseline"

    def value(self, variant: Variant) -> str:
        """Returns the label value of a variant."""
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
    """The fields that single and multi-cluster applications share."""

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
        """Whether the objects have the annotations of the first generation."""
        return self.suffix_from_variant_label

    def suffix(self, variant: Variant, configured: str) -> str:
        """Returns the name suffix of a variant; `configured` is that of the stage.

        The default is the label value in the first generation, the variant in the second one.
        """
        if configured:
            return configured
        return self.variant_label.value(variant) if self.suffix_from_variant_label else variant


class MultiTargetReference(Spec):
    """A deploy target by name; as for upstream, labels are ignored."""

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])


class MultiTarget(Spec):
    """The overrides for one deploy target; an empty value overrides nothing."""

    target: MultiTargetReference = MultiTargetReference()
    manifests: tuple[str, ...] = ()
    kubectl_version: str = ""
    kustomize_dir: str = ""
    kustomize_version: str = ""
    kustomize_options: Mapping[str, str] = Field(default_factory=dict[str, str])


class MulticlusterInput(ManifestInput):
    """Manifests for several clusters, by default for all deploy targets."""

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
        """Whether the objects have the annotations of the first generation; they never do."""
        return False

    def suffix(self, variant: Variant, configured: str) -> str:
        """Returns the name suffix of a variant; `configured` is that of the stage."""
        if configured:
            return configured
        return self.variant_label.canary_value if variant == "canary" else variant


Application: TypeAlias = KubernetesApplication | MulticlusterApplication


class V0ManifestInput(ManifestInput):
    """The `input` of a first-generation KubernetesApp."""

    auto_rollback: Annotated[bool, Field(exclude=True)] = True


class V0KubernetesApp(WorkloadSection):
    """The fields of a first-generation KubernetesApp beyond the generic ones."""

    input: V0ManifestInput = V0ManifestInput()
    quick_sync: SyncOptions = SyncOptions()


def _sections(fields: V0KubernetesApp, stages: frozenset[str]) -> Mapping[str, Section]:
    sections = {"kubernetes": {**plain(fields), "suffixFromVariantLabel": True}}
    if "ANALYSIS" in stages:
        namespace = fields.input.namespace or "default"
        sections["analysis"] = {"appCustomArgs": {"k8sNamespace": namespace}}
    return sections


CONFIG = PluginConfig(
    name="kubernetes",
    application=KubernetesApplication,
    stages={
        "K8S_SYNC": SyncOptions,
        "K8S_PRIMARY_ROLLOUT": PrimaryRolloutOptions,
        "K8S_CANARY_ROLLOUT": CanaryRolloutOptions,
        "K8S_CANARY_CLEAN": NoOptions,
        "K8S_BASELINE_ROLLOUT": BaselineRolloutOptions,
        "K8S_BASELINE_CLEAN": NoOptions,
        "K8S_TRAFFIC_ROUTING": TrafficRoutingOptions,
    },
    deploy_target=KubernetesTarget,
    piped=ChartSources,
    v0=V0Kind(
        kind="KubernetesApp",
        application_kind=ApplicationKind.KUBERNETES,
        spec=V0KubernetesApp,
        translate=_sections,
        auto_rollback=lambda fields: fields.input.auto_rollback,
        provider_type="KUBERNETES",
        provider_config=KubernetesTarget,
        rollback_stage="K8S_ROLLBACK",
    ),
    v0_stages={
        "K8S_PRIMARY_ROLLOUT": V0Stage(PrimaryRolloutOptions),
        "K8S_CANARY_ROLLOUT": V0Stage(CanaryRolloutOptions),
        "K8S_CANARY_CLEAN": V0Stage(NoOptions),
        "K8S_BASELINE_ROLLOUT": V0Stage(BaselineRolloutOptions),
        "K8S_BASELINE_CLEAN": V0Stage(NoOptions),
        "K8S_TRAFFIC_ROUTING": V0Stage(TrafficRoutingOptions),
    },
)

MULTICLUSTER_CONFIG = PluginConfig(
    name="kubernetes_multicluster",
    application=MulticlusterApplication,
    stages={
        "K8S_MULTI_SYNC": MultiSyncOptions,
        "K8S_MULTI_PRIMARY_ROLLOUT": MultiPrimaryRolloutOptions,
        "K8S_MULTI_CANARY_ROLLOUT": MultiCanaryRolloutOptions,
        "K8S_MULTI_CANARY_CLEAN": MultiOptions,
        "K8S_MULTI_BASELINE_ROLLOUT": MultiBaselineRolloutOptions,
        "K8S_MULTI_BASELINE_CLEAN": MultiOptions,
        "K8S_MULTI_TRAFFIC_ROUTING": MultiTrafficRoutingOptions,
    },
    deploy_target=KubernetesTarget,
    piped=ChartSources,
)
