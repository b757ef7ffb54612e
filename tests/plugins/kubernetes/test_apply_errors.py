# SPDX-License-Identifier: Apache-2.0
"""Errors of a cluster name the object, the cause and a remedy."""

import asyncio
import json
import re
import urllib.error
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.plugins.kubernetes.plugin import KubernetesPlugin
from pipecd.sdk import (
    Backoff,
    PipecdError,
    PluginEntry,
    StageResult,
    StageStatus,
    StartContext,
    SyncStatus,
)
from pipecd.sdk.testing import MemoryHost, StageBench
from pipecd.sdk.unstructured import with_value
from plugins.kubernetes.testbed import (
    Application,
    config_map,
    deployment,
    live_state,
    service,
    succeed,
    wait_for_live_state,
)
from servers.fixtures import running
from servers.kubernetes import Kubernetes
from servers.web import Answer, Request, WebServer, in_json

RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1"


async def refused(bench: StageBench, stage: str = "K8S_SYNC") -> StageResult:
    """Runs a stage that has to fail."""
    result = await bench.run(stage)
    assert result.status is StageStatus.FAILURE
    return result


def limited_to_config_maps(application: Application, tmp_path: Path) -> str:
    """Returns the kubeconfig of an account that may only write ConfigMaps of the namespace."""
    cluster, path_prefix = application.kubernetes, f"/namespaces/{application.namespace}"
    name = {"metadata": {"name": "limited"}}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}
    cluster.ask("POST", f"/api/v1{path_prefix}/serviceaccounts", name)
    cluster.ask("POST", f"{RBAC}{path_prefix}/roles", {**name, "rules": [rule]})
    binding = {
        **name,
        "subjects": [
            {"kind": "ServiceAccount", "name": "limited", "namespace": application.namespace}
        ],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"},
    }
    cluster.ask("POST", f"{RBAC}{path_prefix}/rolebindings", binding)
    path = f"/api/v1{path_prefix}/serviceaccounts/limited/token"
    response = cluster.ask("POST", path, {"spec": {"audiences": []}})
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = response["status"]["token"]
    kubeconfig = tmp_path / "limited"
    kubeconfig.write_text(json.dumps(config))
    return str(kubeconfig)


async def test_a_missing_permission_fails_only_what_needs_it(
    application: Application, tmp_path: Path
) -> None:
    kubeconfig = limited_to_config_maps(application, tmp_path)
    filters = {"namespace": application.namespace}
    bench = application.commit("c1", config_map(a="1"), config_map("old"), deployment())
    application.set_target(bench, kubeConfigPath=kubeconfig, appStateInformer=filters)
    result = await refused(bench)
    assert "Deployment web" in result.message
    assert "(2.yaml:1) was not applied" in result.message
    assert "cannot patch resource" in result.message
    assert "grant the piped a role that allows it" in result.message
    second = application.commit("c2", config_map(a="1"))
    application.set_target(second, kubeConfigPath=kubeconfig, appStateInformer=filters)
    await succeed(second, "K8S_SYNC", {"prune": True})
    assert "old" not in application.live("configmaps", "api/v1")
    state = await application.plugin.live_state(second.live_context())
    assert [resource.name for resource in state.resources] == ["settings"]
    assert state.sync.status is SyncStatus.SYNCED
    application.set_target(second, name="without a namespace", kubeConfigPath=kubeconfig)
    state = await application.plugin.live_state(second.live_context())
    assert [resource.name for resource in state.resources] == ["settings"]
    assert state.sync.status is SyncStatus.SYNCED
    with pytest.raises(PipecdError, match=r"cannot get resource .*; grant the piped a role"):
        await application.plugin.live_state(bench.live_context())


async def test_applying_to_a_terminating_namespace_fails_with_a_hint(
    application: Application,
) -> None:
    cluster, path_prefix = application.kubernetes, f"/api/v1/namespaces/{application.namespace}"
    held = config_map("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.ask("POST", f"{path_prefix}/configmaps", held)
    cluster.ask("DELETE", path_prefix)
    result = await refused(application.commit("c1", config_map(a="1")))
    application.patch("api/v1", "configmaps/held", {"metadata": {"finalizers": None}})
    assert "ConfigMap settings" in result.message
    assert "is being terminated" in result.message
    assert "wait until the namespace is gone, then sync again" in result.message


@pytest.fixture
def policy(application: Application) -> Iterator[str]:
    """An admission policy of the cluster that denies a name."""
    cluster, name = application.kubernetes, application.namespace
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
    }
    validation = {"expression": "object.metadata.name != 'ugly'", "message": "be nice"}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": application.namespace}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    kinds = (("validatingadmissionpolicies", spec), ("validatingadmissionpolicybindings", binding))
    for plural, body in kinds:
        cluster.ask("POST", f"{POLICIES}/{plural}", {"metadata": {"name": name}, "spec": body})
    yield name
    for plural, _ in reversed(kinds):
        cluster.ask("DELETE", f"{POLICIES}/{plural}/{name}")


async def until_denied(application: Application) -> None:
    """Waits until the API server has taken up the policy."""
    path = f"/api/v1/namespaces/{application.namespace}/configmaps?dryRun=All"
    while True:
        try:
            application.kubernetes.ask("POST", path, config_map("ugly"))
        except urllib.error.HTTPError:
            return
        await asyncio.sleep(0.05)


@pytest.mark.usefixtures("policy")
async def test_the_error_quotes_an_admission_policy(application: Application) -> None:
    await until_denied(application)
    result = await refused(application.commit("c1", config_map("ugly"), config_map("pretty")))
    assert "ConfigMap ugly" in result.message
    assert "denied request: be nice" in result.message
    assert "an admission webhook or policy of the cluster refused it" in result.message
    assert "pretty" in application.live("configmaps", "api/v1")


class Webhook(WebServer):
    """An admission webhook that denies every request."""

    def answer(self, request: Request) -> Answer:
        review = json.loads(request.body)
        status = {"message": "no objects on Sundays", "code": 403}
        response = {"uid": review["request"]["uid"], "allowed": False, "status": status}
        return in_json({**review, "request": None, "response": response})


@pytest.fixture
def webhook(application: Application, certificate: tuple[str, str]) -> Iterator[Webhook]:
    """An admission webhook for ConfigMaps of the namespace."""
    server = Webhook(certificate)
    client = {
        "url": f"{server.address}/",
        "caBundle": b64encode(Path(certificate[0]).read_bytes()).decode(),
    }
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
    }
    hook = {
        "name": "sundays.tests.pipecd.dev",
        "clientConfig": client,
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": application.namespace}
        },
    }
    body = {"metadata": {"name": application.namespace}, "webhooks": [hook]}
    path_prefix = f"{POLICIES}/validatingwebhookconfigurations"
    application.kubernetes.ask("POST", path_prefix, body)
    yield server
    application.kubernetes.ask("DELETE", f"{path_prefix}/{application.namespace}")
    server.close()


async def test_the_error_names_an_admission_webhook(
    application: Application, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until_denied(application)
    bench = application.commit("c1", config_map("ugly"), service())
    result = await refused(bench)
    assert "ConfigMap ugly" in result.message
    assert "denied the request: no objects on Sundays; an admission webhook" in result.message
    assert "web" not in application.live("services", "api/v1")
    webhook.close()
    monkeypatch.setattr("pipecd.plugins.kubernetes.client._BACKOFF", Backoff(0.001, 8))
    result = await refused(bench)
    assert "failed calling webhook" in result.message
    assert "an admission webhook of the cluster does not respond" in result.message


def changed(path: str, value: Any) -> dict[str, Any]:
    """Returns a Deployment with another value at a path."""
    return with_value(deployment(), path.split("."), value)


def secret(**fields: Any) -> dict[str, Any]:
    """Returns a Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, **fields}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(
            {"apiVersion": "apps/v1", "kind": "Deploymnet", "metadata": {"name": "web"}},
            "the cluster does not serve Deploymnet of apps/v1; correct apiVersion and kind",
            id="an unknown kind",
        ),
        pytest.param(
            {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}},
            "Widget of example.com/v1; .*install the CustomResourceDefinition first",
            id="a kind without its definition",
        ),
        pytest.param(
            changed("spec.replica", 3),
            r"\.spec\.replica: field not declared in schema; correct the manifest in Git",
            id="an unknown field",
        ),
        pytest.param(
            changed("spec.replicas", "three"),
            r"\.spec\.replicas: expected numeric .*; correct the manifest in Git",
            id="a value of the wrong type",
        ),
        pytest.param(
            changed("spec.strategy", {"type": "Sometimes"}),
            "spec.strategy: Unsupported value: .*; correct the manifest in Git",
            id="a value that is none of those",
        ),
        pytest.param(
            with_value(config_map(), ["data"], {"port": 80}),
            r"\.data\.port: expected string, got .*80.*; .*quote a number, true or false",
            id="a number where a text belongs",
        ),
        pytest.param(
            secret(data={"key": "no base64!"}),
            "illegal base64 data .*; .*plain text belongs under stringData",
            id="a secret that is not encoded",
        ),
    ],
)
async def test_an_invalid_manifest_fails_with_its_field_and_without_retries(
    application: Application, wrong: dict[str, Any], message: str
) -> None:
    async with asyncio.timeout(10):
        result = await refused(application.commit("c1", config_map("other"), wrong))
    assert re.search(message, result.message), result.message
    assert "other" in application.live("configmaps", "api/v1")


@pytest.mark.parametrize("value", [918273, {"of": "hidden 918273"}, ["hidden 918273"]])
async def test_the_error_of_a_refused_secret_does_not_contain_its_value(
    application: Application, value: Any
) -> None:
    bench = application.commit("c1", secret(stringData={"pin": value}))
    result = await refused(bench)
    assert ".stringData.pin: expected string; correct the manifest" in result.message
    assert "918273" not in "\n".join([result.message, *bench.host.lines])


async def test_invalid_yaml_fails_with_its_line_before_anything_is_applied(
    application: Application,
) -> None:
    bench = application.commit("c1", config_map())
    (bench.directory / "broken.yaml").write_text("kind: Service\nmetadata: {name: web\nspec:\n")
    result = await refused(bench)
    assert "broken.yaml:3" in result.message
    assert "settings" not in application.live("configmaps", "api/v1")


async def test_an_immutable_field_fails_unless_the_object_is_recreated(
    application: Application,
) -> None:
    await succeed(application.commit("c1", deployment()), "K8S_SYNC")
    other = deployment("web:v2", tier="front")
    result = await refused(application.commit("c2", other))
    assert "spec.selector: Invalid value" in result.message
    assert "annotate the manifest with pipecd.dev/force-sync-by-replace: enabled" in result.message
    other["metadata"]["annotations"] = {"pipecd.dev/force-sync-by-replace": "enabled"}
    await succeed(application.commit("c3", other), "K8S_SYNC")
    labels = application.live("deployments")["web"]["spec"]["selector"]["matchLabels"]
    assert labels == {"app": "web", "tier": "front"}


async def test_a_stage_logs_the_manager_of_a_reset_field(application: Application) -> None:
    await succeed(application.commit("c1", deployment()), "K8S_SYNC")
    path_prefix = f"/apis/apps/v1/namespaces/{application.namespace}/deployments/web"
    applied = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 7}}
    query = "fieldManager=other-manager&force=true"
    form = "application/apply-patch+yaml"
    application.kubernetes.ask("PATCH", f"{path_prefix}?{query}", applied, form=form)
    bench = application.commit("c2", deployment())
    await succeed(bench, "K8S_SYNC")
    assert application.live("deployments")["web"]["spec"]["replicas"] == 2
    line = next(line for line in bench.host.lines if "is reset" in line)
    assert ".spec.replicas is reset to its value in Git" in line
    assert "other-manager" in line


async def test_duplicate_env_variables_are_applied_as_kubectl_does(
    application: Application,
) -> None:
    web = deployment()
    repeated = [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]
    web["spec"]["template"]["spec"]["containers"][0]["env"] = repeated
    bench = application.commit("c1", web)
    await succeed(bench, "K8S_SYNC")
    (container,) = application.live("deployments")["web"]["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "B"}, {"name": "A", "value": "2"}]
    await wait_for_live_state(bench, lambda state: state.sync.status is SyncStatus.SYNCED)


@pytest.fixture
def own_cluster() -> Iterator[Kubernetes]:
    yield from running(Kubernetes)


@pytest.mark.slow
async def test_an_api_server_that_restarts_interrupts_neither_a_stage_nor_the_watches(
    own_cluster: Kubernetes, tmp_path: Path
) -> None:
    plugin, host = KubernetesPlugin(), MemoryHost()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("kubernetes"), host, lifetime))
        application = Application(own_cluster, "default", tmp_path, plugin, host)
        many = [config_map(f"c{number}", a="1") for number in range(500)]
        bench = application.commit("c1", *many)
        assert (await live_state(bench)).sync.summary.startswith(
            "There are 500 manifests not synced"
        )
        async with asyncio.TaskGroup() as tasks:
            stage = tasks.create_task(bench.run("K8S_SYNC"))
            await bench.host.until(lambda: any("applied" in line for line in bench.host.lines))
            own_cluster.api_server.stop()
            assert not stage.done()
            assert sum("applied" in line for line in bench.host.lines) < len(many)
            await asyncio.to_thread(own_cluster.api_server.start)
        assert stage.result().status is StageStatus.SUCCESS, stage.result().message
        assert set(application.live("configmaps", "api/v1")) >= {f"c{n}" for n in range(500)}
        await wait_for_live_state(bench, lambda state: state.sync.status is SyncStatus.SYNCED)
