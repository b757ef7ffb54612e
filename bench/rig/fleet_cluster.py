# SPDX-License-Identifier: Apache-2.0
"""A piped beside a cluster with many objects that change all the time."""

import asyncio
import json
import sqlite3
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from kubernetes import commit, synced
from pipecd.model.application import SyncStatus
from pipecd.plugins.kubernetes.plugin import KubernetesPlugin
from pipecd.sdk import PluginEntry, StartContext
from pipecd.sdk.testing import MemoryHost
from rig.cluster import cluster, token
from rig.control_plane import run_control_plane
from rig.engines import engine
from rig.piped import PipedProcess, SeededPiped, git, run_piped, seed_piped

OBJECTS_PER_APPLICATION, CHANGES_PER_SECOND, SECONDS = 100, 200, 15.0
NEW_OBJECTS = 200
TIMEOUT_SECONDS, CONCURRENT_REQUESTS = 240.0, 16
NAMESPACE = "/api/v1/namespaces/default/configmaps"
APPLY = {"fieldManager": "bench", "force": "true"}
CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec: {{name: {name}, trigger: {{onCommit: {{disabled: true}}}}}}
"""


@dataclass(frozen=True)
class BusyCluster:
    """What piped used while objects changed, and how late it reported one that drifted."""

    changes_per_second: float
    cpu_percent: float
    memory: float
    delay: float
    applied_per_second: float
    """Server-side apply from a loop, one object after the other."""
    first_sync: float
    """Seconds for the first sync of an application with 200 objects."""


def config_map(name: str, number: int) -> dict[str, Any]:
    metadata = {"name": f"{name}-{number:03}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "v"}}


def measure_cluster(objects: int, directory: Path) -> BusyCluster:
    """Runs a control plane and a piped with so many objects; NotInstalled without a cluster."""
    kubernetes = cluster()
    try:
        names = [f"app-{number:03}" for number in range(objects // OBJECTS_PER_APPLICATION)]
        repository = directory / "repository"
        _commit(repository, names)
        remote = f"file://{repository}"
        provider = {"name": "p", "type": "KUBERNETES"}
        provider |= {"config": {"kubeConfigPath": str(kubernetes.kubeconfig)}}  # type: ignore[dict-item]
        with engine("sqlite") as datastore:
            seeded = asyncio.run(seed_piped(datastore, remote, names))
            asyncio.run(_create(kubernetes, seeded))
            more = f"  platformProviders: [{json.dumps(provider)}]\n"
            with (
                run_control_plane(datastore) as server,
                run_piped(directory, remote, server.address("piped-api"), seeded, more) as running,
            ):
                database = sqlite3.connect(f"file:{datastore.config.path}?mode=ro", uri=True)
                wait_for(database, running, SyncStatus.SYNCED, len(names))
                first = asyncio.run(_first_sync(kubernetes, directory / "new"))
                return asyncio.run(_change(kubernetes, names, running, database, first))
    finally:
        kubernetes.close()


def wait_for(
    database: sqlite3.Connection, running: PipedProcess, status: SyncStatus, count: int
) -> float:
    """Waits until so many applications have a sync status; returns the seconds it took."""
    began = time.monotonic()
    query = "SELECT count(*) FROM Application WHERE SyncState_Status = ?"
    while (found := database.execute(query, (int(status),)).fetchone()[0]) < count:
        if time.monotonic() - began > TIMEOUT_SECONDS or running.process.poll() is not None:
            sys.exit(f"only {found} of {count} applications are {status.name}")
        time.sleep(0.02)
    return time.monotonic() - began


def _commit(repository: Path, names: Sequence[str]) -> None:
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    for name in names:
        path = repository / name
        path.mkdir()
        (path / "app.pipecd.yaml").write_text(CONFIG.format(name=name))
        bodies = (config_map(name, number) for number in range(OBJECTS_PER_APPLICATION))
        (path / "all.yaml").write_text("\n---\n".join(map(json.dumps, bodies)))
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "first")


@asynccontextmanager
async def _client(kubernetes: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    context = ssl.create_default_context(cafile=str(kubernetes.certificate))
    headers = {"Authorization": f"Bearer {token()}"}
    limits = httpx2.Limits(max_connections=CONCURRENT_REQUESTS)
    async with httpx2.AsyncClient(
        base_url=kubernetes.url, verify=context, headers=headers, limits=limits, timeout=60
    ) as client:
        yield client


async def _create(kubernetes: Any, seeded: SeededPiped) -> None:
    """Creates the objects of all applications with the metadata that piped sets."""
    slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
    async with _client(kubernetes) as client:

        async def create(body: dict[str, Any]) -> None:
            async with slots:
                (await client.post(NAMESPACE, json=body)).raise_for_status()

        async with asyncio.TaskGroup() as tasks:
            for name, id_ in seeded.applications.items():
                owner = {
                    "pipecd.dev/managed-by": "piped",
                    "pipecd.dev/piped": seeded.piped,
                    "pipecd.dev/application": id_,
                }
                version = {"pipecd.dev/original-api-version": "v1"}
                for number in range(OBJECTS_PER_APPLICATION):
                    body = config_map(name, number)
                    body["metadata"] |= {"labels": owner, "annotations": owner | version}
                    tasks.create_task(create(body))


async def _change(
    kubernetes: Any,
    names: Sequence[str],
    running: PipedProcess,
    database: sqlite3.Connection,
    first_sync: float,
) -> BusyCluster:
    """Changes what is not in Git at a steady rate, then deletes an object meanwhile."""
    changed, is_done = 0, asyncio.Event()
    async with _client(kubernetes) as client:
        applied = await _apply_rate(client, names[0])

        async def patch(number: int) -> None:
            name, each = names[number % len(names)], number // len(names) % 50 + 1
            body = {"metadata": {"annotations": {"bench": str(number)}}}
            form = {"Content-Type": "application/merge-patch+json"}
            path = f"{NAMESPACE}/{name}-{each:03}"
            (await client.patch(path, content=json.dumps(body), headers=form)).raise_for_status()

        async def churn(tasks: asyncio.TaskGroup) -> None:
            nonlocal changed
            began = time.monotonic()
            while not is_done.is_set():
                due = (time.monotonic() - began) * CHANGES_PER_SECOND
                while changed < due:
                    tasks.create_task(patch(changed))
                    changed += 1
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(churn(tasks))
            await asyncio.sleep(2)
            before, began, first = running.cpu_seconds(), time.monotonic(), changed
            await asyncio.sleep(SECONDS)
            seconds = time.monotonic() - began
            share, rate = (running.cpu_seconds() - before) / seconds, (changed - first) / seconds
            (await client.delete(f"{NAMESPACE}/{names[-1]}-099")).raise_for_status()
            path = database.execute("PRAGMA database_list").fetchone()[2]
            delay = await asyncio.to_thread(_out_of_sync, path, running)
            is_done.set()
    return BusyCluster(rate, share * 100, running.memory(), delay, applied, first_sync)


async def _first_sync(kubernetes: Any, directory: Path) -> float:
    """Returns the seconds of a `K8S_SYNC` of new objects, beside all others of the cluster."""
    plugin = KubernetesPlugin()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("kubernetes"), MemoryHost(), lifetime))
        return await synced(commit(plugin, directory, kubernetes.kubeconfig, NEW_OBJECTS))


def _out_of_sync(path: str, running: PipedProcess) -> float:
    """Waits in a thread, which needs a connection of its own."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as own:
        return wait_for(own, running, SyncStatus.OUT_OF_SYNC, 1)


async def _apply_rate(client: httpx2.AsyncClient, name: str, count: int = 50) -> float:
    began = time.monotonic()
    for number in range(count):
        body = config_map(f"plain-{name}", number)
        form = {"Content-Type": "application/apply-patch+yaml"}
        path = f"{NAMESPACE}/{body['metadata']['name']}"
        response = await client.patch(path, params=APPLY, content=json.dumps(body), headers=form)
        response.raise_for_status()
    return count / (time.monotonic() - began)
