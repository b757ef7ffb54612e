# SPDX-License-Identifier: Apache-2.0
"""v0 application kinds are translated to plugin settings."""

from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec, SkipOn
from pipecd.config.catalog import Catalog
from pipecd.config.decode import decode_plain
from pipecd.config.read import ApplicationConfig, ConfigMistake, Generation, read_application
from pipecd.config.units import Duration
from pipecd.model.application import ApplicationKind

V0, V1 = Generation.V0, Generation.V1
KINDS = {
    "KubernetesApp": ("kubernetes", ApplicationKind.KUBERNETES),
    "TerraformApp": ("terraform", ApplicationKind.TERRAFORM),
    "CloudRunApp": ("cloudrun", ApplicationKind.CLOUDRUN),
    "LambdaApp": ("lambda", ApplicationKind.LAMBDA),
    "ECSApp": ("ecs", ApplicationKind.ECS),
}


def read(kind: str, spec: str, catalog: Catalog, reader: Generation = V0) -> ApplicationSpec:
    text = f"apiVersion: pipecd.dev/v1beta1\nkind: {kind}\nspec: {spec}"
    return read_application(text, file="a.yaml", catalog=catalog, reader=reader).spec


def stages(spec: str, catalog: Catalog, reader: Generation = V0) -> Any:
    text = f"{{timeout: 12h, pipeline: {{stages: [{spec}]}}}}"
    return read("KubernetesApp", text, catalog, reader).pipeline.stages


@pytest.mark.parametrize("reader", [V0, V1], ids=["v0", "v1"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_v0_kind_becomes_the_section_of_its_plugin(
    kind: str, reader: Generation, catalog: Catalog
) -> None:
    plugin, application_kind = KINDS[kind]
    text = f"apiVersion: pipecd.dev/v1beta1\nkind: {kind}\nspec: {{name: shop}}"
    config = read_application(text, file="a.yaml", catalog=catalog, reader=reader)
    assert config.kind == kind
    assert config.application_kind is application_kind
    assert config.spec.name == "shop"
    assert list(config.spec.plugins) == [plugin]
    assert type(config.spec) is ApplicationSpec


@pytest.mark.parametrize("kind", KINDS)
def test_a_translated_section_is_valid_for_its_plugin(kind: str, catalog: Catalog) -> None:
    name, section = next(iter(read(kind, "{}", catalog).plugins.items()))
    plugin = catalog.plugin(name)
    assert plugin is not None
    assert plugin.application is not None
    decode_plain(section, plugin.application, what=name)


@pytest.mark.parametrize(
    ("kind", "spec", "reader", "expected"),
    [
        pytest.param("KubernetesApp", "{}", V0, True, id="Kubernetes rolls back by default"),
        pytest.param("TerraformApp", "{}", V0, False, id="Terraform does not"),
        pytest.param("TerraformApp", "{}", V1, False, id="Terraform does not for the newer piped either"),
        pytest.param("KubernetesApp", "{input: {autoRollback: false}}", V0, False, id="the switch of the kind counts"),
        pytest.param("TerraformApp", "{input: {autoRollback: true}}", V1, True, id="it counts for the newer piped too"),
        pytest.param("KubernetesApp", "{planner: {autoRollback: false}}", V0, True, id="the switch of plugins does not count in v0"),
        pytest.param("KubernetesApp", "{planner: {autoRollback: false}}", V1, False, id="it counts for the newer piped"),
    ],
)  # fmt: skip
def test_auto_rollback_of_v0_kinds(
    kind: str, spec: str, reader: Generation, expected: bool, catalog: Catalog
) -> None:
    read_spec = read(kind, spec, catalog, reader)
    assert read_spec.planner.auto_rollback is expected
    assert "autoRollback" not in str(read_spec.plugins)


def test_terraform_input_becomes_the_section(catalog: Catalog) -> None:
    section = read("TerraformApp", "{input: {workspace: prod, vars: [a=b]}}", catalog).plugins
    assert section["terraform"]["workspace"] == "prod"
    assert section["terraform"]["vars"] == ["a=b"]


def test_a_standalone_task_of_ecs_runs_by_default(catalog: Catalog) -> None:
    assert read("ECSApp", "{}", catalog).plugins["ecs"]["input"]["runStandaloneTask"] is True
    message = read("ECSApp", "{input: {runStandaloneTask: false}}", catalog).plugins["ecs"]
    assert message["input"]["runStandaloneTask"] is False


def test_an_analysis_of_kubernetes_has_the_namespace(catalog: Catalog) -> None:
    pipeline = "pipeline: {stages: [{name: ANALYSIS, with: {duration: 1m}}]}"
    spec = read("KubernetesApp", f"{{input: {{namespace: shop}}, {pipeline}}}", catalog)
    assert spec.plugins["analysis"] == {"appCustomArgs": {"k8sNamespace": "shop"}}
    spec = read("KubernetesApp", f"{{{pipeline}}}", catalog)
    assert spec.plugins["analysis"] == {"appCustomArgs": {"k8sNamespace": "default"}}


@pytest.mark.parametrize(
    ("stage", "limit"),
    [
        pytest.param("{name: K8S_CANARY_CLEAN}", "12h", id="a stage has the limit of the deployment"),
        pytest.param("{name: K8S_CANARY_CLEAN, timeout: 5m}", "5m", id="the limit beside with counts"),
        pytest.param("{name: WAIT_APPROVAL}", "6h", id="an approval has a limit of its own"),
        pytest.param("{name: WAIT_APPROVAL, with: {timeout: 1h}}", "1h", id="the limit in with moves out"),
        pytest.param("{name: SCRIPT_RUN, timeout: 5m, with: {timeout: 1h}}", "1h", id="the limit in with wins"),
        pytest.param("{name: SCRIPT_RUN, timeout: 5m}", "5m", id="without one in with, that beside it"),
        pytest.param("{name: CUSTOM_SYNC, with: {run: a, timeout: 0s}}", "6h", id="zero is none given"),
    ],
)  # fmt: skip
def test_the_timeout_of_a_stage(stage: str, limit: str, catalog: Catalog) -> None:
    [translated] = stages(stage, catalog)
    assert translated.timeout == Duration.parse(limit)
    assert "timeout" not in translated.with_


@pytest.mark.parametrize("name", ["WAIT", "WAIT_APPROVAL", "ANALYSIS", "SCRIPT_RUN"])
def test_skip_on_moves_out_of_with(name: str, catalog: Catalog) -> None:
    options = "{duration: 1m, run: a, skipOn: {paths: [docs]}}"
    [stage] = stages(f"{{name: {name}, with: {options}}}", catalog)
    assert stage.skip_on == SkipOn(paths=("docs",))
    assert "skipOn" not in stage.with_


def test_skip_on_beside_with_is_read_by_v1_only(catalog: Catalog) -> None:
    text = "{name: WAIT, skipOn: {paths: [docs]}}"
    assert stages(text, catalog, V0)[0].skip_on == SkipOn()
    assert stages(text, catalog, V1)[0].skip_on == SkipOn(paths=("docs",))


def test_ids_and_descriptions_are_kept(catalog: Catalog) -> None:
    [stage] = stages("{name: WAIT, id: pause, desc: a pause}", catalog)
    assert (stage.id, stage.name, stage.desc) == ("pause", "WAIT", "a pause")


def test_a_custom_sync_is_a_script(catalog: Catalog) -> None:
    [stage] = stages("{name: CUSTOM_SYNC, with: {run: make, envs: {A: b}}}", catalog)
    assert stage.name == "SCRIPT_RUN"
    assert stage.with_ == {"run": "make", "env": {"A": "b"}}


def test_every_translated_stage_belongs_to_a_plugin(catalog: Catalog) -> None:
    options = "{duration: 1m, run: a, approvers: [b]}"
    for name in catalog.v0_stages:
        [stage] = stages(f"{{name: {name}, with: {options}}}", catalog)
        decode_plain(stage.with_, catalog.stages[stage.name], what=name)


def test_in_v1_plugin_sections_override_translated_settings(catalog: Catalog) -> None:
    text = "{input: {namespace: a}, quickSync: {prune: true}, plugins: {kubernetes: {input: {namespace: b}}}}"
    section = read("KubernetesApp", text, catalog, V1).plugins["kubernetes"]
    assert section["input"] == {"namespace": "b"}
    assert section["quickSync"]["prune"] is True


def detected(kind: str, spec: str, catalog: Catalog) -> ApplicationConfig:
    """Reads a file as piped and `pipectl lint` do, which choose the generation by the file."""
    text = f"apiVersion: pipecd.dev/v1beta1\nkind: {kind}\nspec: {spec}"
    return read_application(text, file="a.yaml", catalog=catalog)


@pytest.mark.parametrize(
    ("kind", "plugin"),
    [*((kind, plugin) for kind, (plugin, _) in KINDS.items()), ("KubernetesApp", "kubernetes_multicluster")],
)  # fmt: skip
def test_a_v0_kind_with_sections_of_plugins_has_only_these(
    kind: str, plugin: str, catalog: Catalog
) -> None:
    config = detected(kind, f"{{plugins: {{{plugin}: {{input: {{}}}}}}}}", catalog)
    assert config.spec.plugins == {plugin: {"input": {}}}
    assert config.spec.planner.auto_rollback
    assert config.application_kind is KINDS[kind][1]


def test_a_v0_kind_may_use_the_stages_of_plugins(catalog: Catalog) -> None:
    config = detected(
        "KubernetesApp",
        "{pipeline: {stages: [{name: K8S_SYNC}, {name: K8S_MULTI_SYNC}, {name: WAIT, with: {duration: 1m}}]}}",
        catalog,
    )
    names = [stage.name for stage in config.spec.pipeline.stages]
    assert names == ["K8S_SYNC", "K8S_MULTI_SYNC", "WAIT"]
    assert config.warnings == ()


def test_a_mistake_in_a_section_of_a_v0_kind_is_a_warning(catalog: Catalog) -> None:
    section = "{kubernetes: {inptu: {}}}"
    [warning] = detected("KubernetesApp", f"{{plugins: {section}}}", catalog).warnings
    assert "spec.plugins.kubernetes.inptu" in str(warning)


def test_a_v0_kind_without_sections_of_plugins_is_read_strictly(catalog: Catalog) -> None:
    with pytest.raises(ConfigMistake, match="unknown field"):
        detected("KubernetesApp", "{foo: 1, plugins: {}}", catalog)


def test_v0_reads_an_application_by_its_platform(catalog: Catalog) -> None:
    text = "{name: shop, plugins: {kubernetes: {input: {namespace: x, autoRollback: false}}}}"
    spec = read("Application", text, catalog)
    assert spec.name == "shop"
    assert spec.plugins["kubernetes"]["input"]["namespace"] == "x"
    assert not spec.planner.auto_rollback


def test_in_v0_a_plugin_section_overrides_the_spec(catalog: Catalog) -> None:
    text = "{input: {namespace: a}, plugins: {kubernetes: {input: {namespace: b}}}}"
    spec = read("Application", text, catalog)
    assert spec.plugins["kubernetes"]["input"]["namespace"] == "b"
