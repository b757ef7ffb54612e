# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Kubernetes plugins, in both generations."""

from operator import attrgetter
from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration, Replicas
from pipecd.plugins.kubernetes.config import (
    CONFIG,
    MULTICLUSTER_CONFIG,
    BaselineRolloutOptions,
    CanaryRolloutOptions,
    ChartSources,
    KubernetesApplication,
    KubernetesTarget,
    MulticlusterApplication,
    PrimaryRolloutOptions,
    TrafficRoutingOptions,
)
from plugins.conftest import ReadV0


def app(section: dict[str, Any]) -> KubernetesApplication:
    return decode_plain(section, KubernetesApplication, what="kubernetes")


DEFAULTS = [
    ("input.manifests", ()),
    ("input.kubectl_version", ""),
    ("input.kustomize_version", ""),
    ("input.kustomize_options", {}),
    ("input.helm_version", ""),
    ("input.helm_chart", None),
    ("input.helm_options", None),
    ("input.namespace", ""),
    ("input.auto_create_namespace", False),
    ("quick_sync.add_variant_label_to_selector", False),
    ("quick_sync.prune", False),
    ("service.kind", ""),
    ("service.name", ""),
    ("workloads", ()),
    ("traffic_routing.method", "podselector"),
    ("traffic_routing.istio", None),
    ("variant_label.key", "pipecd.dev/variant"),
    ("variant_label.primary_value", "primary"),
    ("variant_label.canary_value", "canary"),
    ("variant_label.baseline_value", "baseline"),
    ("resource_routes", ()),
    ("suffix_from_variant_label", False),
]


@pytest.mark.parametrize(("attribute", "expected"), DEFAULTS, ids=[name for name, _ in DEFAULTS])
def test_the_default_of(attribute: str, expected: object) -> None:
    assert attrgetter(attribute)(app({})) == expected


WHOLE: dict[str, Any] = {
    "input": {
        "manifests": ["a.yaml"],
        "kubectlVersion": "1.29.0",
        "kustomizeVersion": "5.4.0",
        "kustomizeOptions": {"load-restrictor": "none"},
        "helmVersion": "3.15.0",
        "helmChart": {
            "gitRemote": "git@x:y",
            "ref": "v1",
            "path": "chart",
            "repository": "stable",
            "name": "web",
            "version": "1.0.0",
        },
        "helmOptions": {
            "releaseName": "web",
            "setValues": {"a": "b"},
            "valueFiles": ["values.yaml"],
            "setFiles": {"c": "d"},
            "apiVersions": ["v1"],
            "kubeVersion": "1.29",
        },
        "namespace": "shop",
        "autoCreateNamespace": True,
    },
    "quickSync": {"addVariantLabelToSelector": True, "prune": True, "readyWithin": "5m0s"},
    "service": {"kind": "Service", "name": "web"},
    "workloads": [{"kind": "StatefulSet", "name": "db"}],
    "trafficRouting": {
        "method": "istio",
        "istio": {
            "editableRoutes": ["main"],
            "host": "web",
            "virtualService": {"kind": "VirtualService", "name": "web"},
        },
    },
    "variantLabel": {
        "key": "variant",
        "primaryValue": "p",
        "canaryValue": "c",
        "baselineValue": "b",
    },
    "resourceRoutes": [
        {"provider": {"name": "config", "labels": {}}, "match": {"kind": "Ingress", "name": "web"}},
        {"provider": {"name": "", "labels": {"group": "a"}}},
    ],
}


def test_every_key_of_a_section_is_read() -> None:
    read = app(WHOLE).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert read == {**WHOLE, "suffixFromVariantLabel": False}


def test_a_workload_without_a_kind_is_a_deployment() -> None:
    assert app({"workloads": [{"name": "web"}]}).workloads[0].kind == "Deployment"


def test_a_v0_application_becomes_a_section(read_v0: ReadV0) -> None:
    spec = {**WHOLE, "input": {**WHOLE["input"], "autoRollback": False}}
    read = read_v0("KubernetesApp", spec)
    assert read.plugins["kubernetes"] == {**WHOLE, "suffixFromVariantLabel": True}
    assert set(read.plugins) == {"kubernetes"}
    assert read.planner.auto_rollback is False


def test_a_v0_application_rolls_back_by_default(read_v0: ReadV0) -> None:
    assert read_v0("KubernetesApp", {}).planner.auto_rollback is True


@pytest.mark.parametrize(
    ("configured", "namespace"),
    [
        pytest.param({"namespace": "shop"}, "shop", id="the namespace of its input"),
        pytest.param({}, "default", id="the default namespace"),
    ],
)
def test_the_namespace_for_queries_of_a_v0_application(
    read_v0: ReadV0, configured: dict[str, Any], namespace: str
) -> None:
    stages = [{"name": "ANALYSIS", "with": {"duration": "5m"}}]
    sections = read_v0("KubernetesApp", {"input": configured}, stages).plugins
    assert sections["analysis"] == {"appCustomArgs": {"k8sNamespace": namespace}}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"foo": 1}, id="the application"),
        pytest.param({"input": {"foo": 1}}, id="its input"),
        pytest.param({"quickSync": {"foo": 1}}, id="quick sync"),
        pytest.param({"suffixFromVariantLabel": True}, id="a field of the second generation"),
    ],
)
def test_a_v0_file_is_refused_for_an_unknown_key_of(read_v0: ReadV0, spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigMistake, match="unknown field"):
        read_v0("KubernetesApp", spec)


STAGES: list[tuple[str, dict[str, Any]]] = [
    (
        "K8S_PRIMARY_ROLLOUT",
        {
            "suffix": "s",
            "createService": True,
            "addVariantLabelToSelector": True,
            "prune": True,
            "readyWithin": "5m0s",
        },
    ),
    (
        "K8S_CANARY_ROLLOUT",
        {
            "replicas": "50%",
            "readyWithin": "90ms",
            "suffix": "s",
            "createService": True,
            "patches": [
                {
                    "target": {"kind": "ConfigMap", "name": "c", "documentRoot": "$.data"},
                    "ops": [{"op": "yaml-replace", "path": "$.a", "value": "b"}],
                }
            ],
        },
    ),
    ("K8S_CANARY_CLEAN", {}),
    (
        "K8S_BASELINE_ROLLOUT",
        {"replicas": "2", "suffix": "s", "createService": True, "readyWithin": "1h0m0s"},
    ),
    ("K8S_BASELINE_CLEAN", {}),
    (
        "K8S_TRAFFIC_ROUTING",
        {"all": "", "primary": "50%", "canary": "30", "baseline": "20"},
    ),
]


@pytest.mark.parametrize(("name", "options"), STAGES, ids=[name for name, _ in STAGES])
def test_a_v0_stage_has_the_same_options(
    read_v0: ReadV0, name: str, options: dict[str, Any]
) -> None:
    [stage] = read_v0("KubernetesApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_) == (name, options)


def test_a_v0_pipeline_cannot_contain_quick_sync(read_v0: ReadV0) -> None:
    with pytest.raises(ConfigMistake, match="unsupported stage name: K8S_SYNC"):
        read_v0("KubernetesApp", {}, [{"name": "K8S_SYNC"}])


STAGE_DEFAULTS = [
    (PrimaryRolloutOptions, "suffix", ""),
    (PrimaryRolloutOptions, "create_service", False),
    (PrimaryRolloutOptions, "add_variant_label_to_selector", False),
    (PrimaryRolloutOptions, "prune", False),
    (PrimaryRolloutOptions, "ready_within", Duration(0)),
    (CanaryRolloutOptions, "replicas", Replicas(0)),
    (CanaryRolloutOptions, "suffix", ""),
    (CanaryRolloutOptions, "create_service", False),
    (CanaryRolloutOptions, "patches", ()),
    (BaselineRolloutOptions, "replicas", Replicas(0)),
    (BaselineRolloutOptions, "suffix", ""),
    (BaselineRolloutOptions, "create_service", False),
]


@pytest.mark.parametrize(
    ("options", "attribute", "expected"),
    STAGE_DEFAULTS,
    ids=[f"{options.__name__}.{name}" for options, name, _ in STAGE_DEFAULTS],
)
def test_the_default_option(options: Any, attribute: str, expected: object) -> None:
    assert getattr(decode_plain({}, options, what="stage"), attribute) == expected


def test_the_default_replicas_of_a_rollout() -> None:
    assert decode_plain({}, CanaryRolloutOptions, what="stage").replicas.of(10) == 1


@pytest.mark.parametrize("config", [CONFIG, MULTICLUSTER_CONFIG], ids=["one", "several"])
def test_the_default_operation_of_a_patch(config: Any) -> None:
    name = next(name for name in config.stages if name.endswith("CANARY_ROLLOUT"))
    options = decode_plain({"patches": [{"ops": [{}]}]}, config.stages[name], what=name)
    assert getattr(options, "patches")[0].ops[0].op == "yaml-replace"  # noqa: B009


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        pytest.param({"all": "primary"}, (100, 0, 0), id="all to primary"),
        pytest.param({"all": "canary", "primary": 50}, (0, 100, 0), id="all to canary"),
        pytest.param({"all": "baseline"}, (0, 0, 100), id="all to baseline"),
        pytest.param({"canary": "30%", "primary": 70}, (70, 30, 0), id="to each its share"),
        pytest.param({"all": "x", "canary": "10"}, (90, 10, 0), id="shares despite a wrong word"),
        pytest.param({"canary": 20, "baseline": 20}, (60, 20, 20), id="the rest to primary"),
        pytest.param({"canary": 60, "baseline": 60}, (0, 60, 60), id="no rest"),
        pytest.param({}, (0, 0, 0), id="nothing"),
    ],
)
def test_the_traffic_split(options: dict[str, Any], shares: tuple[int, int, int]) -> None:
    assert decode_plain(options, TrafficRoutingOptions, what="stage").shares() == shares


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"canary": 10.5}, "invalid percentage", id="a fraction"),
        pytest.param({"canary": None}, "invalid percentage", id="null"),
        pytest.param({"canary": ""}, "invalid percentage", id="nothing"),
    ],
)
def test_an_invalid_percentage_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        decode_plain(options, TrafficRoutingOptions, what="stage")


LABEL = {"variantLabel": {"canaryValue": "c", "primaryValue": "p"}}


@pytest.mark.parametrize(
    ("section", "variant", "configured", "expected"),
    [
        pytest.param({}, "canary", "", "canary", id="the variant"),
        pytest.param(LABEL, "canary", "", "canary", id="the variant, whatever the label says"),
        pytest.param(LABEL, "canary", "x", "x", id="the suffix of the stage"),
        pytest.param(
            {**LABEL, "suffixFromVariantLabel": True}, "primary", "", "p", id="the label in v0"
        ),
        pytest.param(
            {"suffixFromVariantLabel": True}, "baseline", "", "baseline", id="the default label"
        ),
    ],
)
def test_the_suffix_of_a_variant(
    section: dict[str, Any], variant: Any, configured: str, expected: str
) -> None:
    assert app(section).suffix(variant, configured) == expected


def multi(section: dict[str, Any]) -> MulticlusterApplication:
    return decode_plain(section, MulticlusterApplication, what="kubernetes_multicluster")


@pytest.mark.parametrize(
    ("variant", "configured", "expected"),
    [("canary", "", "c"), ("primary", "", "primary"), ("canary", "x", "x")],
)
def test_the_suffix_of_a_multicluster_variant(variant: Any, configured: str, expected: str) -> None:
    assert multi(LABEL).suffix(variant, configured) == expected


def test_a_multi_target_overrides_the_input() -> None:
    target = {
        "target": {"name": "tokyo", "labels": {"a": "b"}},
        "manifests": ["m.yaml"],
        "kubectlVersion": "1.29.0",
        "kustomizeDir": "overlays/tokyo",
        "kustomizeVersion": "5.4.0",
        "kustomizeOptions": {"a": "b"},
    }
    [read] = multi({"input": {"multiTargets": [target]}}).input.multi_targets
    assert read.model_dump(mode="json", by_alias=True) == target


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        pytest.param(
            {"helmChart": {"path": "c"}, "kustomizeOptions": {"a": "b"}},
            "helmChart and kustomizeOptions are mutually exclusive",
            id="Helm and Kustomize",
        ),
        pytest.param(
            {"multiTargets": [{"target": {"name": "a"}}, {"manifests": ["m"]}]},
            r"multiTargets\[1\]\.target\.name must not be empty",
            id="a target without a name",
        ),
    ],
)
def test_an_invalid_multicluster_input_is_refused(configured: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        multi({"input": configured})


@pytest.mark.parametrize("name", sorted(MULTICLUSTER_CONFIG.stages))
def test_a_multicluster_stage_may_select_targets(name: str) -> None:
    options = MULTICLUSTER_CONFIG.stages[name]
    named = decode_plain({"multiTargets": ["tokyo"]}, options, what=name)
    assert named.model_dump()["multi_targets"] == ("tokyo",)


def test_the_default_cluster_is_that_of_piped() -> None:
    target = decode_plain({}, KubernetesTarget, what="target")
    assert (target.master_url, target.kube_config_path, target.kubectl_version) == ("", "", "")
    assert not any(target.app_state_informer.model_dump().values())


def test_watched_kinds_are_configurable() -> None:
    filters = {
        "namespace": "shop",
        "includeResources": [{"apiVersion": "v1", "kind": "Pod"}],
        "excludeResources": [{"apiVersion": "batch/v1"}],
    }
    target = decode_plain({"appStateInformer": filters}, KubernetesTarget, what="target")
    assert target.app_state_informer.exclude_resources[0].kind == ""
    assert target.app_state_informer.include_resources[0].api_version == "v1"


def test_the_default_types_of_chart_repositories() -> None:
    settings = {
        "chartRepositories": [{"name": "a", "address": "b"}],
        "chartRegistries": [{"address": "c"}],
    }
    sources = decode_plain(settings, ChartSources, what="kubernetes")
    assert sources.chart_repositories[0].type == "HTTP"
    assert sources.chart_repositories[0].insecure is False
    assert sources.chart_registries[0].type == "OCI"
