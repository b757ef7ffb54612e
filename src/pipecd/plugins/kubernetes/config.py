# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Kubernetes plugin, for one and for several clusters."""

from collections.abc import Mapping

from pipecd.plugins.kubernetes.application import (
    KubernetesApplication,
    MulticlusterApplication,
    V0KubernetesApp,
)
from pipecd.plugins.kubernetes.options import (
    BaselineRolloutOptions,
    CanaryRolloutOptions,
    MultiBaselineRolloutOptions,
    MultiCanaryRolloutOptions,
    MultiOptions,
    MultiPrimaryRolloutOptions,
    MultiSyncOptions,
    MultiTrafficRoutingOptions,
    PrimaryRolloutOptions,
    SyncOptions,
    TrafficRoutingOptions,
)
from pipecd.plugins.kubernetes.target import ChartSources, KubernetesTarget
from pipecd.sdk.config import (
    ApplicationKind,
    NoOptions,
    PluginConfig,
    Section,
    V0Kind,
    V0Stage,
    plain,
)


def _sections(fields: V0KubernetesApp, stages: frozenset[str]) -> Mapping[str, Section]:
    section = plain(fields)
    del section["input"]["autoRollback"]
    sections = {"kubernetes": {**section, "suffixFromVariantLabel": True}}
    if "ANALYSIS" not in stages:
        return sections
    namespace = fields.input.namespace or "default"
    return {**sections, "analysis": {"appCustomArgs": {"k8sNamespace": namespace}}}


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
