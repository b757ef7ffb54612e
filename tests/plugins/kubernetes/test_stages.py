# SPDX-License-Identifier: Apache-2.0
"""The stages of an application on a cluster."""

import asyncio
from typing import Any

import pytest

from pipecd.sdk import Backoff, DeployTarget, PluginEntry, StageStatus, SyncStrategy
from plugins.kubernetes.testbed import (
    VARIANT,
    Application,
    config_map,
    deployment,
    image,
    service,
    succeed,
)
from servers.kubernetes import NEVER_READY


async def test_a_sync_applies_all_manifests_and_prunes_removed_ones(
    application: Application,
) -> None:
    first = application.commit("c1", deployment(), config_map(a="1"), config_map("old"))
    await succeed(first, "K8S_SYNC")
    live = application.live("deployments")["web"]
    assert live["metadata"]["labels"]["pipecd.dev/commit-hash"] == "c1"
    assert "pipecd.dev/config-hash" in live["spec"]["template"]["metadata"]["annotations"]
    second = application.commit("c2", deployment("web:v2"), config_map(a="1"), running=first)
    await succeed(second, "K8S_SYNC")
    assert "old" in application.live("configmaps", "api/v1")
    await succeed(second, "K8S_SYNC", {"prune": True})
    assert "old" not in application.live("configmaps", "api/v1")
    assert "settings" in application.live("configmaps", "api/v1")
    assert image(application.live("deployments")["web"]) == "web:v2"


async def test_unmanaged_objects_are_never_pruned(application: Application) -> None:
    unmanaged = config_map("unmanaged")
    unmanaged["metadata"]["namespace"] = application.namespace
    application.kubernetes.ask(
        "POST", f"/api/v1/namespaces/{application.namespace}/configmaps", unmanaged
    )
    await succeed(application.commit("c1", deployment()), "K8S_SYNC", {"prune": True})
    assert "unmanaged" in application.live("configmaps", "api/v1")


async def test_objects_created_by_controllers_are_never_pruned(
    application: Application,
) -> None:
    await succeed(application.commit("c1", service(), deployment()), "K8S_SYNC")
    before = application.live("endpoints", "api/v1")
    while "web" not in before:
        await asyncio.sleep(0.02)
        before = application.live("endpoints", "api/v1")
    second = application.commit("c2", service(), deployment())
    await succeed(second, "K8S_SYNC", {"prune": True})
    after = application.live("endpoints", "api/v1")["web"]
    assert after["metadata"]["uid"] == before["web"]["metadata"]["uid"]
    assert not [line for line in second.host.lines if "deleted" in line]


async def test_a_canary_has_its_own_objects_and_is_cleaned(
    application: Application,
) -> None:
    first = application.commit("c1", deployment(), config_map(a="1"), service())
    await succeed(first, "K8S_SYNC")
    second = application.commit(
        "c2", deployment("web:v2"), config_map(a="2"), service(), running=first
    )
    await succeed(second, "K8S_CANARY_ROLLOUT", {"replicas": "50%", "createService": True})
    await succeed(second, "K8S_BASELINE_ROLLOUT", {"replicas": 1})
    deployments = application.live("deployments")
    assert {name: image(item) for name, item in deployments.items()} == {
        "web": "web:v1",
        "web-canary": "web:v2",
        "web-baseline": "web:v1",
    }
    assert deployments["web-canary"]["spec"]["replicas"] == 1
    assert application.live("configmaps", "api/v1")["settings-canary"]["data"] == {"a": "2"}
    assert (
        application.live("services", "api/v1")["web-canary"]["spec"]["selector"][VARIANT]
        == "canary"
    )
    await succeed(second, "K8S_PRIMARY_ROLLOUT")
    await succeed(second, "K8S_CANARY_CLEAN")
    await succeed(second, "K8S_BASELINE_CLEAN")
    assert {n: image(d) for n, d in application.live("deployments").items()} == {"web": "web:v2"}
    assert set(application.live("services", "api/v1")) == {"web"}
    assert "settings-canary" not in application.live("configmaps", "api/v1")


async def test_a_rollback_restores_the_previous_commit_completely(application: Application) -> None:
    first = application.commit("c1", deployment(), config_map(a="1"))
    await succeed(first, "K8S_SYNC")
    before = application.live("deployments")["web"]["spec"]
    second = application.commit(
        "c2", deployment("web:v2"), config_map(a="2"), config_map("new"), running=first
    )
    await succeed(second, "K8S_CANARY_ROLLOUT")
    await succeed(second, "K8S_PRIMARY_ROLLOUT")
    await succeed(second, "K8S_ROLLBACK")
    assert {n: d["spec"] for n, d in application.live("deployments").items()} == {"web": before}
    config_maps = application.live("configmaps", "api/v1")
    assert config_maps["settings"]["data"] == {"a": "1"}
    assert not {"new", "settings-canary"} & set(config_maps)


async def test_a_blue_green_deployment_by_the_selector(application: Application) -> None:
    primary = {VARIANT: "primary"}
    first = application.commit("c1", deployment(**primary), service(**primary))
    await succeed(first, "K8S_SYNC")
    second = application.commit(
        "c2", deployment("web:v2", **primary), service(**primary), running=first
    )

    def selected() -> str:
        return application.live("services", "api/v1")["web"]["spec"]["selector"][VARIANT]

    await succeed(second, "K8S_CANARY_ROLLOUT", {"replicas": "100%"})
    await succeed(second, "K8S_TRAFFIC_ROUTING", {"all": "canary"})
    assert selected() == "canary"
    await succeed(second, "K8S_PRIMARY_ROLLOUT")
    await succeed(second, "K8S_TRAFFIC_ROUTING", {"all": "primary"})
    assert selected() == "primary"


async def test_a_stage_with_ready_within_waits_for_its_workloads(application: Application) -> None:
    bench = application.commit("c1", deployment(), config_map())
    await succeed(bench, "K8S_SYNC", {"readyWithin": "30s"})
    assert application.live("deployments")["web"]["status"]["availableReplicas"] == 2
    assert "Waiting until 1 object is ready, at most 30s" in bench.host.lines
    assert f"- Deployment web in {application.namespace}: ready" in bench.host.lines


@pytest.mark.parametrize(
    ("stage", "name"), [("K8S_PRIMARY_ROLLOUT", "web"), ("K8S_CANARY_ROLLOUT", "web-canary")]
)
async def test_a_workload_that_is_not_ready_in_time_fails_the_stage(
    application: Application, stage: str, name: str
) -> None:
    bench = application.commit("c1", deployment(**NEVER_READY))
    result = await bench.run(stage, {"readyWithin": "2s"})
    assert result.status is StageStatus.FAILURE
    assert (
        f"Deployment {name} in {application.namespace} is not ready after 2s: 0 of"
        in result.message
    )
    assert f"; pod {name}-" in result.message
    assert result.message.endswith(": Pending")
    assert (await bench.run(stage)).status is StageStatus.SUCCESS


@pytest.mark.parametrize(
    ("manifests", "stage", "options", "message"),
    [
        pytest.param(
            [config_map()], "K8S_CANARY_ROLLOUT", {}, "there is no workload", id="no workload"
        ),
        pytest.param(
            [deployment()],
            "K8S_CANARY_ROLLOUT",
            {"createService": True},
            "there is no Service to create a variant of",
            id="no service",
        ),
        pytest.param(
            [deployment()],
            "K8S_BASELINE_ROLLOUT",
            {},
            "there is no running commit yet",
            id="a first deployment",
        ),
        pytest.param(
            [deployment(), service()],
            "K8S_TRAFFIC_ROUTING",
            {"all": "canary"},
            "must select pipecd.dev/variant: primary in Git",
            id="a service for every variant",
        ),
        pytest.param([], "K8S_SYNC", {}, "there are no manifests", id="nothing to apply"),
    ],
)
async def test_a_stage_fails_with_the_reason(
    application: Application, manifests: Any, stage: str, options: Any, message: str
) -> None:
    result = await application.commit("c1", *manifests).run(stage, options)
    assert result.status == StageStatus.FAILURE
    assert message in result.message


async def test_a_change_is_planned_by_its_manifests(application: Application) -> None:
    first = application.commit("c1", deployment())
    second = application.commit("c2", deployment("web:v2"), running=first)
    planned = await application.plugin.strategy(second.plan_context(running=first.source))
    assert planned is not None
    assert planned.strategy == SyncStrategy.PIPELINE
    assert "image web from v1 to v2" in planned.summary
    versions = await application.plugin.versions(second.plan_context())
    assert [v.version for v in versions] == ["v2"]


async def test_an_unreachable_cluster_fails_the_stage(
    application: Application, monkeypatch: pytest.MonkeyPatch, free_tcp_port: int
) -> None:
    bench = application.commit("c1", deployment())
    address = f"http://127.0.0.1:{free_tcp_port}"
    bench.entry = PluginEntry(
        "kubernetes", targets=(DeployTarget("c", {}, {"masterURL": address}),)
    )
    monkeypatch.setattr("pipecd.plugins.kubernetes.client._BACKOFF", Backoff(0.01, 8))
    result = await bench.run("K8S_SYNC")
    assert f"the API server at {address} cannot be reached" in result.message
