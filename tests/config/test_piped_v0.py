# SPDX-License-Identifier: Apache-2.0
"""A v0 piped file is translated to plugins and their deploy targets."""

from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import PipedSpec, PluginSpec
from pipecd.config.piped_v0 import with_default_kubernetes
from pipecd.config.read import PipedConfig, read_piped
from pipecd.config.report import ConfigMistake

CATALOG = load_catalog()
HEAD = """
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyFile: /etc/key
  apiAddress: localhost:9080
  name: tokyo
  git: {username: bot}
"""


def read_config(spec: str) -> PipedConfig:
    return read_piped(HEAD + spec, file="piped.yaml", catalog=CATALOG)


def read(spec: str) -> PipedSpec:
    return read_config(spec).spec


def plugin(spec: PipedSpec, name: str) -> PluginSpec:
    return next(p for p in spec.plugins if p.name == name)


def providers(*items: str) -> str:
    return "  platformProviders:\n" + "".join(f"    - {item}\n" for item in items)


PLATFORMS: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "KUBERNETES",
        "kubernetes",
        "{masterURL: https://k, kubeConfigPath: /k, kubectlVersion: 1.29.0}",
        {
            "masterURL": "https://k",
            "kubeConfigPath": "/k",
            "kubectlVersion": "1.29.0",
            "appStateInformer": {
                "namespace": "",
                "includeResources": [],
                "excludeResources": [],
            },
        },
    ),
    (
        "TERRAFORM",
        "terraform",
        "{vars: [a=b], driftDetectionEnabled: false}",
        {
            "tool": "",
            "vars": ["a=b"],
            "driftDetectionEnabled": False,
            "planPreviewEnabled": True,
            "requireApprovalForDestroy": False,
        },
    ),
    (
        "CLOUDRUN",
        "cloudrun",
        "{project: p, region: r, credentialsFile: /c}",
        {"project": "p", "region": "r", "credentialsFile": "/c", "endpoint": ""},
    ),
    (
        "LAMBDA",
        "lambda",
        "{region: r, awsAPIPollingInterval: 20s}",
        {
            "region": "r",
            "profile": "",
            "credentialsFile": "",
            "roleARN": "",
            "tokenFile": "",
            "endpoint": "",
            "awsAPIPollingInterval": "20s",
        },
    ),
    (
        "ECS",
        "ecs",
        "{region: r, roleARN: a, tokenFile: t, profile: p}",
        {
            "region": "r",
            "profile": "p",
            "credentialsFile": "",
            "roleARN": "a",
            "tokenFile": "t",
            "endpoint": "",
        },
    ),
]


@pytest.mark.parametrize(
    ("type_", "name", "config", "expected"), PLATFORMS, ids=[row[0] for row in PLATFORMS]
)
def test_a_provider_becomes_a_deploy_target_of(
    type_: str, name: str, config: str, expected: dict[str, Any]
) -> None:
    spec = read(providers(f"{{name: p1, type: {type_}, labels: {{a: b}}, config: {config}}}"))
    [target] = plugin(spec, name).deploy_targets
    assert target.name == "p1"
    assert target.labels == {"a": "b"}
    assert target.config == expected
    assert [p.name for p in spec.plugins] == [name]


def test_providers_of_one_type_share_a_plugin() -> None:
    spec = read(providers("{name: a, type: KUBERNETES}", "{name: b, type: KUBERNETES}"))
    assert [t.name for t in plugin(spec, "kubernetes").deploy_targets] == ["a", "b"]


def test_cloud_providers_come_after_platform_providers() -> None:
    spec = read(
        "  cloudProviders: [{name: old, type: KUBERNETES}]\n"
        "  platformProviders: [{name: new, type: KUBERNETES}]\n"
    )
    assert [t.name for t in plugin(spec, "kubernetes").deploy_targets] == ["new", "old"]


def test_of_two_providers_with_the_same_name_the_first_is_used() -> None:
    spec = read(
        providers(
            "{name: a, type: KUBERNETES, config: {kubeConfigPath: /first}}",
            "{name: a, type: KUBERNETES, config: {kubeConfigPath: /second}}",
            "{name: a, type: TERRAFORM}",
        )
    )
    [target] = plugin(spec, "kubernetes").deploy_targets
    assert target.config["kubeConfigPath"] == "/first"
    assert len(plugin(spec, "terraform").deploy_targets) == 1


def test_charts_become_settings_of_kubernetes() -> None:
    spec = read(
        "  chartRepositories: [{name: stable, address: 'https://c', insecure: yes}]\n"
        "  chartRegistries: [{address: r, username: u, password: p}]\n"
        "  platformProviders: [{name: a, type: KUBERNETES}]\n"
    )
    config = plugin(spec, "kubernetes").config
    assert config["chartRepositories"][0] == {
        "type": "HTTP",
        "name": "stable",
        "address": "https://c",
        "username": "",
        "password": "",
        "insecure": True,
        "gitRemote": "",
        "sshKeyFile": "",
    }
    assert config["chartRegistries"] == [
        {"type": "OCI", "address": "r", "username": "u", "password": "p"}
    ]


def test_analysis_providers_become_settings_of_analysis() -> None:
    spec = read(
        "  analysisProviders: [{name: m, type: PROMETHEUS, config: {address: 'http://p'}}]\n"
    )
    [provider] = plugin(spec, "analysis").config["analysisProviders"]
    assert (provider["name"], provider["config"]["address"]) == ("m", "http://p")


def test_a_v0_file_has_no_plugins_of_generic_stages() -> None:
    assert read("  platformProviders: []\n").plugins == ()


def test_a_v1_file_has_the_plugins_it_names() -> None:
    assert [p.name for p in read("  plugins: [{name: wait}]\n").plugins] == ["wait"]


def test_all_other_fields_are_copied() -> None:
    spec = read("  platformProviders: []\n  syncInterval: 2m\n")
    assert (spec.project_id, spec.name, spec.git.username) == ("shop", "tokyo", "bot")
    assert spec.sync_interval == 120


REFUSED = [
    pytest.param(
        "platformProviders: [{name: a, type: HEROKU}]",
        "spec.platformProviders[0].type: unsupported platform provider type: HEROKU, "
        "write one of CLOUDRUN, ECS, KUBERNETES, LAMBDA, TERRAFORM",
        id="an unknown platform provider type",
    ),
    pytest.param(
        "cloudProviders: [{type: KUBERNETES}]",
        "spec.cloudProviders[0].name: name must be set",
        id="a provider without a name",
    ),
    pytest.param(
        "platformProviders: [{name: a, type: ECS, config: {}}]",
        "spec.platformProviders[0].config.region: region must be set",
        id="ECS without a region",
    ),
    pytest.param(
        "platformProviders: [{name: a, type: LAMBDA}]",
        "spec.platformProviders[0].config.region: region must be set",
        id="Lambda without settings",
    ),
    pytest.param(
        "platformProviders: [{name: a, type: TERRAFORM, config: {vars: a=b}}]",
        "spec.platformProviders[0].config.vars: "
        "must be a list, not a string, begin each item with a dash",
        id="settings of a wrong type",
    ),
    pytest.param(
        "chartRepositories: [{address: a}]",
        "spec.chartRepositories[0].name: name must be set",
        id="an HTTP chart repository without a name",
    ),
    pytest.param(
        "chartRepositories: [{name: a}]",
        "spec.chartRepositories[0].address: address must be set",
        id="an HTTP chart repository without an address",
    ),
    pytest.param(
        "chartRepositories: [{type: GIT}]",
        "spec.chartRepositories[0].gitRemote: gitRemote must be set",
        id="a Git chart repository without a remote",
    ),
    pytest.param(
        "chartRepositories: [{type: http, name: a, address: b}]",
        "spec.chartRepositories[0].type: "
        "either HTTP repository or GIT repository must be configured",
        id="a chart repository of another type",
    ),
    pytest.param(
        "chartRegistries: [{username: a}]",
        "spec.chartRegistries[0].address: address must be set",
        id="a chart registry without an address",
    ),
    pytest.param(
        "chartRegistries: [{type: HTTP, address: a}]",
        "spec.chartRegistries[0].type: OCI registry must be configured",
        id="a chart registry of another type",
    ),
    pytest.param(
        "analysisProviders: [{name: a, type: GRAPHITE}]",
        "spec.analysisProviders[0].type: unsupported analysis provider type: GRAPHITE, "
        "write one of PROMETHEUS, DATADOG, STACKDRIVER",
        id="an analysis provider that does not exist",
    ),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_v0_file_is_refused_with(line: str, message: str) -> None:
    with pytest.raises(ConfigMistake) as caught:
        read(f"  {line}\n")
    assert [f"{m.path}: {m.what}" for m in caught.value.report.mistakes] == [message]


WARNED = [
    pytest.param(
        "plugins: [{name: wait, config: {a: 1}}]",
        "spec.plugins[0].config: the plugin wait does not use this",
        id="settings for a plugin that has none",
    ),
    pytest.param(
        "plugins: [{name: wait, deployTargets: [{name: a}]}]",
        "spec.plugins[0].deployTargets: the plugin wait does not use this",
        id="deploy targets for a plugin that deploys nothing",
    ),
    pytest.param(
        "plugins: [{name: kubernetes}]",
        "spec.plugins[0]: the plugin kubernetes deploys nothing without deployTargets",
        id="a platform without deploy targets",
    ),
    pytest.param(
        "plugins: [{name: terraform, deployTargets: [{name: a, config: {var: [a=b]}}]}]",
        'spec.plugins[0].deployTargets[0].config.var: unknown field, did you mean "vars"?',
        id="a misspelled setting",
    ),
    pytest.param("fooo: 1", "spec.fooo: unknown field", id="an unknown key"),
]


@pytest.mark.parametrize(("line", "message"), WARNED)
def test_a_file_is_read_with_a_warning_about(line: str, message: str) -> None:
    warnings = read_config(f"  {line}\n").warnings
    assert [f"{w.path}: {w.what}" for w in warnings] == [message]


def test_the_cluster_of_piped_can_be_a_deploy_target() -> None:
    spec = with_default_kubernetes(read("  platformProviders: [{name: a, type: KUBERNETES}]\n"))
    names = [t.name for t in plugin(spec, "kubernetes").deploy_targets]
    assert names == ["a", "kubernetes-default"]


def test_the_cluster_of_piped_is_added_where_there_is_no_kubernetes_yet() -> None:
    spec = with_default_kubernetes(read("  platformProviders: []\n"))
    assert [t.name for t in plugin(spec, "kubernetes").deploy_targets] == ["kubernetes-default"]


def test_the_cluster_of_piped_is_not_added_twice() -> None:
    spec = read("  platformProviders: [{name: kubernetes-default, type: KUBERNETES}]\n")
    assert with_default_kubernetes(spec) == spec
