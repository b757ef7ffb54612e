# SPDX-License-Identifier: Apache-2.0
"""The metrics of requests, events and tool calls."""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from pipecd.plugins.kubernetes.client import open_client
from pipecd.plugins.kubernetes.informer import ChangeNotifier
from pipecd.plugins.kubernetes.kubeconfig import Connection
from pipecd.plugins.kubernetes.metrics import Metrics
from pipecd.plugins.kubernetes.watch import ObservedObject, observe
from pipecd.sdk import Backoff, PluginEntry, StageStatus, StartContext, Unavailable
from pipecd.sdk.testing import MemoryHost
from plugins.kubernetes.testbed import Application, config_map, deployment, succeed
from servers.server import free_port

CALLS = "cloudprovider_kubernetes_tool_calls_total"
REQUESTS = "livestatestore_kubernetes_api_requests_total"
EVENTS = "livestatestore_kubernetes_resource_events_total"


def requests(host: MemoryHost, command: str, status: str = "success") -> float:
    """Returns how many requests stages have sent to the API server."""
    return host.counted(CALLS, tool="apiserver", version="", command=command, status=status)


async def test_requests_of_stages_are_counted(application: Application) -> None:
    host = application.host
    first = application.commit("c1", config_map(), config_map("old"))
    await succeed(first, "K8S_SYNC")
    assert (requests(host, "apply"), requests(host, "delete")) == (2, 0)
    second = application.commit("c2", config_map(), running=first)
    await succeed(second, "K8S_SYNC", {"prune": True})
    assert (requests(host, "apply"), requests(host, "delete")) == (3, 1)
    # Requests for objects that do not exist yet are no failures.
    assert requests(host, "get") > 0
    assert [requests(host, c, "failure") for c in ("get", "apply", "delete")] == [0, 0, 0]


async def test_a_replaced_object_is_created_first(application: Application) -> None:
    replaced = config_map()
    replaced["metadata"]["annotations"] = {"pipecd.dev/sync-by-replace": "enabled"}
    for commit in ("c1", "c2"):
        await succeed(application.commit(commit, replaced), "K8S_SYNC")
    counted = [requests(application.host, command) for command in ("create", "replace", "apply")]
    assert counted == [1, 1, 0]


async def test_a_refused_request_is_counted_as_a_failure(application: Application) -> None:
    wrong = config_map()
    wrong["data"] = {"not a key": "1"}
    result = await application.commit("c1", wrong).run("K8S_SYNC")
    assert result.status is StageStatus.FAILURE
    assert requests(application.host, "apply", "failure") == 1
    assert requests(application.host, "apply") == 0


async def test_watches_count_their_requests_and_events(application: Application) -> None:
    host = application.host
    bench = application.commit("c1", config_map(), deployment())
    await succeed(bench, "K8S_SYNC")
    await application.plugin.live_state(bench.live_context())
    kubeconfig = yaml.safe_load(application.kubernetes.kubeconfig.read_text())
    server = urlsplit(kubeconfig["clusters"][0]["cluster"]["server"]).netloc
    assert host.counted(REQUESTS, host=server, method="GET", code="200") > 0
    update = partial(host.counted, EVENTS, event="update", handled="true")
    before = update()
    application.patch("api/v1", "configmaps/settings", {"data": {"a": "changed"}})
    application.patch("apis/apps/v1", "deployments/web", {"spec": {"replicas": 1}})
    async with asyncio.timeout(20):
        await host.until(lambda: update() >= before + 2)
        await host.until(lambda: host.counted(EVENTS, event="delete", handled="true") > 0)
    assert requests(host, "get", "failure") == 0


def pod(uid: str, owner: str) -> ObservedObject:
    """Returns a pod that another object owns."""
    owners = [{"uid": owner, "kind": "ReplicaSet", "name": owner}]
    return observe({"metadata": {"uid": uid, "ownerReferences": owners}}, "v1", "Pod")


async def test_events_that_concern_no_application_are_not_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipecd.plugins.kubernetes.informer._BATCH_DELAY", 0.01)
    counted: list[tuple[str, bool]] = []
    notified: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()
    notifier = ChangeNotifier(
        lambda observed: {"shop"} if "set" in observed.owners else set(),
        lambda _: True,
        lambda concerned: notified.set_result(set(concerned)),
        lambda event, *, is_handled: counted.append((event, is_handled)),
    )
    ours, foreign = pod("ours", "set"), pod("foreign", "other")
    running = asyncio.create_task(notifier.run())
    for event, observed in (("add", foreign), ("add", ours), ("update", ours), ("delete", foreign)):
        notifier.event_received(event, observed)
    notifier.object_changed(ours)
    async with asyncio.timeout(10):
        assert await notified == {"shop"}
    running.cancel()
    assert counted == [("add", False), ("add", True), ("update", True), ("delete", False)]


async def test_a_request_without_a_response_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipecd.plugins.kubernetes.client._BACKOFF", Backoff(0.0, 8))
    port, responses = free_port(), list[tuple[str, str, str]]()
    connection = Connection(f"http://127.0.0.1:{port}")
    async with open_client(
        connection, record_response=lambda *response: responses.append(response)
    ) as client:
        with pytest.raises(Unavailable):
            await client.get("/api/v1/pods")
        with pytest.raises(Unavailable):
            async with client.watch("/api/v1/pods"):
                pass
    assert set(responses) == {(f"127.0.0.1:{port}", "GET", "<error>")}
    assert len(responses) == 10


def runs(host: MemoryHost) -> dict[tuple[str, str, str], float]:
    """Returns how often programs were run, each with the version that it has."""
    counts: dict[tuple[str, str, str], float] = {}
    for sample in (s for family in host.plugin_metrics.collect() for s in family.samples):
        if sample.name == CALLS and sample.labels["tool"] != "apiserver":
            assert re.fullmatch(r"\d+\.\d+\.\d+", sample.labels["version"])
            key = sample.labels["tool"], sample.labels["command"], sample.labels["status"]
            counts[key] = sample.value
    return counts


async def test_runs_of_kustomize_are_counted_with_its_version(
    application: Application, kustomize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(kustomize).parent), prepend=":")
    good, broken = application.commit("c1", config_map()), application.commit("c2", config_map())
    for bench, resource in ((good, "0.yaml"), (broken, "missing.yaml")):
        (bench.directory / "kustomization.yaml").write_text(f"resources: [{resource}]\n")
    await succeed(good, "K8S_SYNC")
    assert (await broken.run("K8S_SYNC")).status is StageStatus.FAILURE
    assert runs(application.host) == {
        ("kustomize", "build", "success"): 1,
        ("kustomize", "build", "failure"): 1,
    }


async def test_runs_of_helm_are_counted_with_its_version(
    application: Application, helm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(helm).parent), prepend=":")
    input_ = {"namespace": application.namespace, "helmChart": {"path": "chart"}}
    bench = application.commit("c1", input=input_)
    templates = bench.directory / "chart" / "templates"
    templates.mkdir(parents=True)
    (templates.parent / "Chart.yaml").write_text("apiVersion: v2\nname: chart\nversion: 1.0.0\n")
    (templates / "one.yaml").write_text(json.dumps(config_map()))
    await succeed(bench, "K8S_SYNC")
    assert runs(application.host) == {("helm", "template", "success"): 1}


async def test_the_plugins_for_one_and_for_several_clusters_count_together() -> None:
    host = MemoryHost()
    async with AsyncExitStack() as lifetime:
        for name in ("kubernetes", "kubernetes_multicluster"):
            metrics = Metrics(StartContext(PluginEntry(name), host, lifetime))
            metrics.record_event("add", is_handled=True)
    assert host.counted(EVENTS, event="add", handled="true") == 2
