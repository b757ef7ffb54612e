# SPDX-License-Identifier: Apache-2.0
"""Duration of a sync of many objects on a real cluster, and the memory of the informers.

The baseline is upstream's method, one `kubectl apply` for each manifest; its time is extrapolated
from some of the manifests. Then measures whole processes: from a push to the end of its deployment,
and from a deleted pod to the updated live state in the control plane.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from pipecd.controlplane.app import ControlPlane
from pipecd.model.errors import NotFound
from pipecd.observe.log import configure
from pipecd.plugins.kubernetes.plugin import KubernetesPlugin
from pipecd.plugins.kubernetes.watch import ObjectStore, observe
from pipecd.sdk import DeployTarget, PluginEntry, StageStatus, StartContext, SyncStatus
from pipecd.sdk.testing import MemoryHost, StageBench
from push import ADMIN, Clone, piped, plane, wait_for_success
from rig.cluster import NotInstalled, cluster, program

NAME = "bench"
APP = "{apiVersion: pipecd.dev/v1beta1, kind: KubernetesApp, spec: {name: hello}}"
ANNOTATIONS = {"pipecd.dev/managed-by": "piped", "pipecd.dev/application": NAME}


def config_map(number: int, value: str) -> dict[str, Any]:
    metadata = {"name": f"settings-{number}", "namespace": "default"}
    data = {"value": value}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def commit(plugin: KubernetesPlugin, directory: Path, kubeconfig: Path, count: int) -> StageBench:
    """Returns a deployment of so many objects, all of which differ from those of other commits."""
    directory.mkdir()
    for number in range(count):
        text = json.dumps(config_map(number, directory.name))
        (directory / f"{number:05}.yaml").write_text(text)
    target = DeployTarget("cluster", {}, {"kubeConfigPath": str(kubeconfig)})
    entry = PluginEntry("kubernetes", targets=(target,))
    return StageBench(plugin, directory, entry=entry, commit=directory.name, application_id=NAME)


async def synced(bench: StageBench) -> float:
    begin = time.perf_counter()
    result = await bench.run("K8S_SYNC")
    if result.status is not StageStatus.SUCCESS:
        raise SystemExit(result.message)
    return time.perf_counter() - begin


def applied(kubectl: str, kubeconfig: Path, directory: Path, count: int) -> float:
    """Returns how long kubectl takes for the first objects of a commit, one after the other."""
    begin = time.perf_counter()
    for file in sorted(directory.iterdir())[:count]:
        command = [kubectl, f"--kubeconfig={kubeconfig}", "apply", "-f", str(file)]
        subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


async def until_synced(plugin: KubernetesPlugin, bench: StageBench) -> None:
    while (await sync_status(plugin, bench)) is not SyncStatus.SYNCED:
        pass


async def sync_status(plugin: KubernetesPlugin, bench: StageBench) -> SyncStatus:
    return (await plugin.live_state(bench.live_context())).sync.status


async def measure(count: int, by_kubectl: int) -> None:
    kubernetes, kubectl = cluster(), program("kubectl")
    plugin = KubernetesPlugin()
    async with AsyncExitStack() as lifetime:
        lifetime.callback(kubernetes.close)
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        await plugin.prepare(StartContext(PluginEntry("kubernetes"), MemoryHost(), lifetime))
        config = kubernetes.kubeconfig
        first = await synced(commit(plugin, directory / "one", config, count))
        second = commit(plugin, directory / "two", config, count)
        again = await synced(second)
        print(f"sync of {count} new ConfigMaps          {first:>8.2f} s")
        print(f"sync of {count} changed ConfigMaps      {again:>8.2f} s")
        begin = time.perf_counter()
        await until_synced(plugin, second)
        print(f"first live state of {count} objects     {time.perf_counter() - begin:>8.2f} s")
        begin = time.perf_counter()
        await until_synced(plugin, second)
        print(f"next live state of {count} objects      {time.perf_counter() - begin:>8.2f} s")
        begin = time.perf_counter()
        kubernetes.ask("DELETE", "/api/v1/namespaces/default/configmaps/settings-0")
        while (await sync_status(plugin, second)) is SyncStatus.SYNCED:
            pass
        print(f"drift after a deleted object         {time.perf_counter() - begin:>8.2f} s")
        third = commit(plugin, directory / "three", config, count)
        took = applied(kubectl, config, third.directory, by_kubectl)
        print(
            f"kubectl apply of {count} manifests      {took / by_kubectl * count:>8.2f} s "
            f"(extrapolated from {by_kubectl}, which took {took:.2f} s)"
        )


def workload(image: str) -> str:
    """Returns a Deployment and its Service as a file."""
    labels = {"app": "web"}
    container = {"name": "web", "image": image}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "web", "namespace": "default"}
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    service_spec = {"selector": labels, "ports": [{"port": 80}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service_spec}
    return "\n---\n".join(map(json.dumps, (web, service)))


async def reported_pods(running: ControlPlane, application: str) -> set[str]:
    """Returns the pods in the live state of the control plane."""
    try:
        state = await running.cases.livestate.get(application, by=ADMIN)
    except NotFound:
        return set()
    return {each.id for each in state.kubernetes.resources if each.kind == "Pod"}


async def wait_for_pods(
    running: ControlPlane, application: str, matches: Callable[[set[str]], bool]
) -> set[str]:
    """Waits until the pods in the live state match."""
    async with asyncio.timeout(60), running.bus.subscribe(project=ADMIN.project) as signals:
        while True:
            current = await reported_pods(running, application)
            if matches(current):
                return current
            await anext(aiter(signals))


async def push_and_watch(rounds: int) -> None:
    """Prints how long whole processes take to deploy, and to report a change of the cluster."""
    pushed: list[float] = []
    reported: list[float] = []
    async with AsyncExitStack() as lifetime:
        kubernetes = cluster()
        lifetime.callback(kubernetes.close)
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        clone = Clone(directory)
        (clone.tree / "hello" / "app.pipecd.yaml").write_text(APP)
        config = {"kubeConfigPath": str(kubernetes.kubeconfig)}
        provider = {"name": "p", "type": "KUBERNETES", "config": config}
        running = await lifetime.enter_async_context(plane(directory))
        remote = f"file://{clone.bare}"
        application = await lifetime.enter_async_context(
            piped(running, directory, remote, platformProviders=[provider])
        )
        for number in range(rounds + 2):
            (clone.tree / "hello" / "web.yaml").write_text(workload(f"web:v{number}"))
            commit = await asyncio.to_thread(clone.push, f"push {number}")
            began = time.perf_counter()
            pushed.append(await wait_for_success(running, commit) - began)
            # The rollout continues after the deployment; the next measurement is about one pod.
            await asyncio.sleep(2)
            before = await wait_for_pods(running, application, lambda pods: len(pods) == 2)
            (listed,) = [
                pod
                for pod in kubernetes.ask("GET", "/api/v1/namespaces/default/pods")["items"]
                if pod["metadata"]["uid"] in before
            ][:1]
            deleted, name = listed["metadata"]["uid"], listed["metadata"]["name"]
            kubernetes.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}")
            began = time.perf_counter()
            await wait_for_pods(running, application, lambda pods, uid=deleted: uid not in pods)
            reported.append(time.perf_counter() - began)
    # The first two are warm-up.
    for what, taken, target in (
        ("push to SUCCESS", pushed[2:], 2.5),
        ("deleted pod to live state", reported[2:], 1.0),
    ):
        p50, worst = median(taken), max(taken)
        print(f"{what:38} p50 {p50:5.2f} s   worst {worst:5.2f} s   (target: {target} s)")


def pods(count: int) -> Iterator[dict[str, Any]]:
    """Yields pods as an API server returns them, each parsed separately."""
    container = {
        "name": "web",
        "image": "registry.example/team/web:v1.2.3",
        "env": [{"name": f"SETTING_{n}", "value": f"value of {n}"} for n in range(20)],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    states = [{"name": "web", "ready": True, "state": {"running": {"startedAt": "now"}}}]
    pod = {
        "spec": {"containers": [container] * 2},
        "status": {"phase": "Running", "containerStatuses": states},
    }
    text = json.dumps(pod)
    for number in range(count):
        metadata: dict[str, Any] = {
            "name": f"web-{number}",
            "namespace": "default",
            "uid": f"00000000-0000-0000-0000-{number:012}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        if number % 2:
            metadata["ownerReferences"] = [{"uid": f"owner-{number // 10}"}]
        else:
            metadata["annotations"] = ANNOTATIONS
        yield {**json.loads(text), "metadata": metadata}


def measure_memory(count: int) -> None:
    """Prints the memory of an informer cache with so many objects, half of them managed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = ObjectStore()
    for pod in pods(count):
        store.put(observe(pod, "v1", "Pod"))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"memory of {len(store):,} live objects       {grown:>8.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=200)
    parser.add_argument("--by-kubectl", type=int, default=20)
    parser.add_argument("--cached", type=int, default=10_000)
    parser.add_argument("--pushes", type=int, default=10)
    given = parser.parse_args()
    configure("error", "console")
    measure_memory(given.cached)
    try:
        asyncio.run(measure(given.objects, given.by_kubectl))
        asyncio.run(push_and_watch(given.pushes))
    except NotInstalled as e:
        print(f"skipped: {e}")


if __name__ == "__main__":
    main()
