# SPDX-License-Identifier: Apache-2.0
"""One application on two clusters."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.kubernetes.multicluster import KubernetesMulticlusterPlugin
from pipecd.sdk import Backoff, DeployTarget, PluginEntry, StageStatus, StartContext, SyncStatus
from pipecd.sdk.testing import MemoryHost
from plugins.kubernetes.testbed import Application, config_map, deployment, image, succeed
from servers.kubernetes import Kubernetes


@pytest.fixture
async def application(
    kubernetes: Kubernetes, other: Kubernetes, namespace: str, tmp_path: Path
) -> AsyncIterator[Application]:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    other.ask("POST", "/api/v1/namespaces", body)
    plugin, name, host = KubernetesMulticlusterPlugin(), "kubernetes_multicluster", MemoryHost()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry(name), host, lifetime))
        yield Application(kubernetes, namespace, tmp_path, plugin, host, name, other)


def with_override(application: Application, **override: Any) -> dict[str, Any]:
    """Returns settings whose second deploy target differs from the first."""
    targets = [{"target": {"name": "cluster"}}, {"target": {"name": "other"}, **override}]
    return {"input": {"namespace": application.namespace, "multiTargets": targets}}


def config_maps(application: Application, on: Kubernetes | None = None) -> set[str]:
    return set(application.live("configmaps", "api/v1", on)) - {"kube-root-ca.crt"}


async def test_multi_targets_select_manifests_for_each_cluster(
    application: Application, other: Kubernetes
) -> None:
    manifests = (config_map("here"), config_map("there"))
    everywhere = application.commit("c1", *manifests)
    await succeed(everywhere, "K8S_MULTI_SYNC")
    assert config_maps(application) == config_maps(application, other) == {"here", "there"}
    assert any(line.startswith("[other] - applied") for line in everywhere.host.lines)
    settings = with_override(application, manifests=["1.yaml"])
    apart = application.commit("c2", *manifests, **settings)
    await succeed(apart, "K8S_MULTI_SYNC", {"prune": True})
    assert config_maps(application) == {"here", "there"}
    assert config_maps(application, other) == {"there"}
    both = application.commit("c3", config_map("new"))
    await succeed(both, "K8S_MULTI_SYNC", {"multiTargets": ["other"]})
    assert "new" not in config_maps(application)
    assert "new" in config_maps(application, other)


async def test_kustomize_builds_another_directory_for_each_cluster(
    application: Application, other: Kubernetes, kustomize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(kustomize).parent), prepend=":")
    settings = with_override(application, kustomizeDir="there")
    bench = application.commit("c1", config_map("settings"), **settings)
    for name, prefix in (("", "my-"), ("there", "their-")):
        directory = bench.directory / name
        directory.mkdir(exist_ok=True)
        (directory / "0.yaml").write_text((bench.directory / "0.yaml").read_text())
        text = f"namePrefix: {prefix}\nresources: [0.yaml]\n"
        (directory / "kustomization.yaml").write_text(text)
    await succeed(bench, "K8S_MULTI_SYNC")
    assert config_maps(application) == {"my-settings"}
    assert config_maps(application, other) == {"their-settings"}
    previews = await application.plugin.preview(bench.preview_context())
    assert [shown.target for shown in previews] == ["cluster", "other"]
    assert "their-settings" in previews[1].details


async def test_a_failure_on_one_cluster_fails_the_stage_and_all_are_rolled_back(
    application: Application, other: Kubernetes
) -> None:
    first = application.commit("c1", deployment(), config_map(a="1"))
    await succeed(first, "K8S_MULTI_SYNC")
    wrong = config_map("wrong")
    wrong["metadata"]["labels"] = {"a": "not a label!"}
    settings = with_override(application, manifests=["0.yaml", "1.yaml", "2.yaml"])
    settings["input"]["manifests"] = ["0.yaml", "1.yaml"]
    changed = (deployment("web:v2"), config_map(a="2"))
    second = application.commit("c2", *changed, wrong, running=first, **settings)
    result = await second.run("K8S_MULTI_SYNC")
    assert result.status is StageStatus.FAILURE
    assert "cluster: 2 objects are as in commit c2" in result.message
    assert "other: ConfigMap wrong" in result.message
    assert image(application.live("deployments")["web"]) == "web:v2"
    await succeed(second, "K8S_MULTI_ROLLBACK")
    for on in (application.kubernetes, other):
        assert image(application.live("deployments", on=on)["web"]) == "web:v1"
        assert application.live("configmaps", "api/v1", on)["settings"]["data"] == {"a": "1"}


async def test_a_rollback_deletes_all_objects_on_a_new_cluster(
    application: Application, other: Kubernetes
) -> None:
    alone = {"namespace": application.namespace, "multiTargets": [{"target": {"name": "cluster"}}]}
    first = application.commit("c1", config_map(a="1"), input=alone)
    await succeed(first, "K8S_MULTI_SYNC")
    second = application.commit("c2", config_map(a="2"), running=first)
    await succeed(second, "K8S_MULTI_SYNC")
    assert config_maps(application, other) == {"settings"}
    await succeed(second, "K8S_MULTI_ROLLBACK")
    assert application.live("configmaps", "api/v1")["settings"]["data"] == {"a": "1"}
    assert config_maps(application, other) == set()


async def test_a_stage_runs_on_its_multi_targets(
    application: Application, other: Kubernetes
) -> None:
    first = application.commit("c1", deployment())
    await succeed(first, "K8S_MULTI_SYNC")
    second = application.commit("c2", deployment("web:v2"), running=first)
    await succeed(second, "K8S_MULTI_CANARY_ROLLOUT", {"multiTargets": ["other"]})
    assert set(application.live("deployments")) == {"web"}
    assert set(application.live("deployments", on=other)) == {"web", "web-canary"}
    await succeed(second, "K8S_MULTI_CANARY_CLEAN")
    assert set(application.live("deployments", on=other)) == {"web"}
    planned = await application.plugin.strategy(second.plan_context(running=first.source))
    assert planned is not None
    assert "image web from v1 to v2" in planned.summary
    versions = await application.plugin.versions(second.plan_context())
    assert [version.version for version in versions] == ["v2"]


async def test_the_versions_of_several_clusters_are_those_of_all_containers(
    application: Application,
) -> None:
    web = deployment("web:v1")
    web["spec"]["template"]["spec"]["initContainers"] = [{"name": "i", "image": "migrate:v2"}]
    pod = {"containers": [{"name": "c", "image": "report:v3"}], "restartPolicy": "Never"}
    job = {"spec": {"template": {"spec": pod}}}
    nightly = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": job},
    }
    bench = application.commit("c1", web, nightly)
    versions = await application.plugin.versions(bench.plan_context())
    assert [f"{v.name}:{v.version}" for v in versions] == ["migrate:v2", "web:v1", "report:v3"]


async def test_live_states_are_merged_by_severity_and_an_unreachable_cluster_hides_no_other(
    application: Application,
    other: Kubernetes,
    free_tcp_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipecd.plugins.kubernetes.client._BACKOFF", Backoff(0.01, 8))
    bench = application.commit("c1", config_map(a="1"))
    await succeed(bench, "K8S_MULTI_SYNC")
    state = await application.plugin.live_state(bench.live_context())
    assert sorted(resource.target for resource in state.resources) == ["cluster", "other"]
    assert state.sync.status is SyncStatus.SYNCED
    path = f"/api/v1/namespaces/{application.namespace}/configmaps/settings"
    other.ask("DELETE", path)
    later = application.commit("c2", config_map(a="1"), config_map("new"))
    state = await application.plugin.live_state(later.live_context())
    assert state.sync.status is SyncStatus.OUT_OF_SYNC
    assert "cluster: There are 1 manifests not synced (1 adds" in state.sync.summary
    away = DeployTarget("away", {}, {"masterURL": f"http://127.0.0.1:{free_tcp_port}"})
    bench.entry = PluginEntry(bench.entry.name, targets=(bench.entry.targets[0], away))
    state = await application.plugin.live_state(bench.live_context())
    assert [resource.target for resource in state.resources] == ["cluster"]
    assert state.sync.status is SyncStatus.UNKNOWN
    assert "away: the API server" in state.sync.summary


async def test_an_unknown_multi_target_is_logged(application: Application) -> None:
    targets = [{"target": {"name": "unknown"}}]
    input_ = {"namespace": application.namespace, "multiTargets": targets}
    bench = application.commit("c1", config_map(), input=input_)
    await succeed(bench, "K8S_MULTI_SYNC")
    assert bench.host.lines[0] == "No deploy target of this application is named unknown"
    assert config_maps(application) == set()
