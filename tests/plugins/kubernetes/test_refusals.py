# SPDX-License-Identifier: Apache-2.0
"""A cluster that refuses is told in words that name the object and what to do."""

import asyncio
import json
import urllib.error
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from pipecd.plugins.kubernetes.plugin import KubernetesPlugin
from pipecd.sdk import PipecdError, PluginEntry, StageResult, StageStatus, StartContext, SyncStatus
from pipecd.sdk.testing import MemoryHost, StageBench
from plugins.kubernetes.bed import Application, config_map, deployment, succeed, until
from servers.fixtures import running
from servers.kubernetes import Kubernetes

RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1"


async def refused(bench: StageBench, stage: str = "K8S_SYNC") -> StageResult:
    """Runs a stage that has to fail."""
    result = await bench.run(stage)
    assert result.status is StageStatus.FAILURE
    return result


def limited_to_config_maps(application: Application, tmp_path: Path) -> str:
    """Returns the kubeconfig of an account that may only keep ConfigMaps of the namespace."""
    cluster, place = application.kubernetes, f"/namespaces/{application.namespace}"
    name = {"metadata": {"name": "limited"}}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}
    cluster.ask("POST", f"/api/v1{place}/serviceaccounts", name)
    cluster.ask("POST", f"{RBAC}{place}/roles", {**name, "rules": [rule]})
    binding = {
        **name,
        "subjects": [
            {"kind": "ServiceAccount", "name": "limited", "namespace": application.namespace}
        ],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"},
    }
    cluster.ask("POST", f"{RBAC}{place}/rolebindings", binding)
    path = f"/api/v1{place}/serviceaccounts/limited/token"
    answer = cluster.ask("POST", path, {"spec": {"audiences": []}})
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = answer["status"]["token"]
    kubeconfig = tmp_path / "limited"
    kubeconfig.write_text(json.dumps(config))
    return str(kubeconfig)


async def test_what_piped_may_not_do_is_told_and_the_rest_works(
    application: Application, tmp_path: Path
) -> None:
    kubeconfig = limited_to_config_maps(application, tmp_path)
    informer = {"namespace": application.namespace}
    bench = application.commit("c1", config_map(a="1"), config_map("old"), deployment())
    application.aim(bench, kubeConfigPath=kubeconfig, appStateInformer=informer)
    result = await refused(bench)
    assert "Deployment web" in result.message
    assert "(2.yaml:1) was not applied" in result.message
    assert "cannot patch resource" in result.message
    assert "give the piped a role that allows it" in result.message
    second = application.commit("c2", config_map(a="1"))
    application.aim(second, kubeConfigPath=kubeconfig, appStateInformer=informer)
    await succeed(second, "K8S_SYNC", {"prune": True})
    assert "old" not in application.live("configmaps", "api/v1")
    state = await application.plugin.live_state(second.live_context())
    assert [resource.name for resource in state.resources] == ["settings"]
    assert state.sync.status is SyncStatus.SYNCED
    application.aim(second, name="without a namespace", kubeConfigPath=kubeconfig)
    state = await application.plugin.live_state(second.live_context())
    assert [resource.name for resource in state.resources] == ["settings"]
    assert state.sync.status is SyncStatus.SYNCED
    with pytest.raises(PipecdError, match=r"cannot get resource .*; give the piped a role"):
        await application.plugin.live_state(bench.live_context())


async def test_a_namespace_that_is_being_deleted_takes_nothing_new(
    application: Application,
) -> None:
    cluster, place = application.kubernetes, f"/api/v1/namespaces/{application.namespace}"
    held = config_map("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.ask("POST", f"{place}/configmaps", held)
    cluster.ask("DELETE", place)
    result = await refused(application.commit("c1", config_map(a="1")))
    application.patch("api/v1", "configmaps/held", {"metadata": {"finalizers": None}})
    assert "ConfigMap settings" in result.message
    assert "is being terminated" in result.message
    assert "wait until the namespace is gone, then sync again" in result.message


@pytest.fixture
def policy(application: Application) -> Iterator[str]:
    """A policy of the cluster that does not like a name."""
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
async def test_a_policy_that_refuses_is_quoted(application: Application) -> None:
    await until_denied(application)
    result = await refused(application.commit("c1", config_map("ugly"), config_map("pretty")))
    assert "ConfigMap ugly" in result.message
    assert "denied request: be nice" in result.message
    assert "an admission webhook or policy of the cluster refused it" in result.message
    assert "pretty" in application.live("configmaps", "api/v1")


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
        assert (await plugin.live_state(bench.live_context())).sync.summary.startswith("500 ")
        async with asyncio.TaskGroup() as tasks:
            stage = tasks.create_task(bench.run("K8S_SYNC"))
            await bench.host.until(lambda: any("applied" in line for line in bench.host.lines))
            own_cluster.api_server.stop()
            assert not stage.done()
            assert sum("applied" in line for line in bench.host.lines) < len(many)
            await asyncio.to_thread(own_cluster.api_server.start)
        assert stage.result().status is StageStatus.SUCCESS, stage.result().message
        assert set(application.live("configmaps", "api/v1")) >= {f"c{n}" for n in range(500)}
        await until(bench, lambda state: state.sync.status is SyncStatus.SYNCED)
