# SPDX-License-Identifier: Apache-2.0
"""Drift detection of one piped with many applications on a real, idle cluster.

Each application has three objects, created as a deployment would create them, so that every
application is in sync.
"""

import argparse
import asyncio
import json
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipecd.model.application import SyncStatus
from rig.cluster import NotInstalled, cluster
from rig.control_plane import run_control_plane
from rig.engines import engine
from rig.piped import PipedProcess, SeededPiped, git, run_piped, seed_piped

APPLICATIONS, TARGET_PROCESSOR, TARGET_SECONDS = 1000, 5, 2
MEASURED_SECONDS, TIMEOUT_SECONDS = 60.0, 600.0
CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: {name}
  trigger: {{onCommit: {{disabled: true}}}}
"""


def objects(name: str) -> Iterator[dict[str, Any]]:
    """Yields the manifests of an application."""
    for part in ("settings", "texts"):
        metadata = {"name": f"{name}-{part}", "namespace": "default"}
        data = {f"key-{number}": "value" for number in range(10)}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    spec = {"selector": {"app": name}, "type": "ExternalName", "externalName": "example.com"}
    metadata = {"name": name, "namespace": "default"}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def commit(repository: Path, names: list[str]) -> None:
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    for name in names:
        path = repository / name
        path.mkdir()
        (path / "app.pipecd.yaml").write_text(CONFIG.format(name=name))
        (path / "all.yaml").write_text("\n---\n".join(map(json.dumps, objects(name))))
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "first")


def apply(kubernetes: Any, seeded: SeededPiped) -> None:
    """Creates the objects of all applications on the cluster, with the metadata that piped sets."""

    def put(item: tuple[str, str]) -> None:
        name, id_ = item
        for body in objects(name):
            owner = {
                "pipecd.dev/managed-by": "piped",
                "pipecd.dev/piped": seeded.piped,
                "pipecd.dev/application": id_,
            }
            version = {"pipecd.dev/original-api-version": body["apiVersion"]}
            body["metadata"] |= {"labels": owner, "annotations": owner | version}
            plural = f"{body['kind'].lower()}s"
            kubernetes.ask("POST", f"/api/v1/namespaces/default/{plural}", body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, seeded.applications.items()))


def count_with_status(database: sqlite3.Connection, status: SyncStatus) -> int:
    query = "SELECT count(*) FROM Application WHERE SyncState_Status = ?"
    return database.execute(query, (int(status),)).fetchone()[0]


def wait_for(
    database: sqlite3.Connection, running: PipedProcess, status: SyncStatus, count: int
) -> float:
    """Waits until so many applications have a sync status; returns the seconds it took."""
    began = time.monotonic()
    while count_with_status(database, status) < count:
        if time.monotonic() - began > TIMEOUT_SECONDS or running.process.poll() is not None:
            sys.exit(f"only {count_with_status(database, status)} of {count} are {status.name}")
        time.sleep(0.02)
    return time.monotonic() - began


@contextmanager
def run_installation(
    kubernetes: Any, count: int, directory: Path
) -> Iterator[tuple[PipedProcess, sqlite3.Connection]]:
    """Runs a server, a repository and a piped with that many applications on the cluster."""
    names = [f"app-{number:04}" for number in range(count)]
    repository = directory / "repository"
    commit(repository, names)
    remote = f"file://{repository}"
    target = {"kubeConfigPath": str(kubernetes.kubeconfig)}
    provider = {"name": "p", "type": "KUBERNETES", "config": target}
    with engine("sqlite") as datastore:
        seeded = asyncio.run(seed_piped(datastore, remote, names))
        apply(kubernetes, seeded)
        more = f"  platformProviders: [{json.dumps(provider)}]\n"
        with (
            run_control_plane(datastore) as server,
            run_piped(directory, remote, server.address("piped-api"), seeded, more) as running,
        ):
            database = sqlite3.connect(f"file:{datastore.config.path}?mode=ro", uri=True)
            yield running, database
            database.close()


def measure(kubernetes: Any, count: int, seconds: float, directory: Path) -> None:
    with run_installation(kubernetes, count, directory) as (running, database):
        first = wait_for(database, running, SyncStatus.SYNCED, count)
        print(
            f"first live state of {count} applications: {first:.1f} s from the start of piped, "
            f"{running.cpu_seconds():.1f} s of CPU time"
        )
        time.sleep(5)
        before = running.cpu_seconds()
        time.sleep(seconds)
        share = (running.cpu_seconds() - before) / seconds * 100
        print(
            f"{count} idle applications: {share:.1f} % of a core "
            f"(target {TARGET_PROCESSOR}), {running.memory():.0f} MB of memory, "
            f"{running.disk():.0f} MB of disk"
        )
        kubernetes.ask("DELETE", "/api/v1/namespaces/default/services/app-0000")
        took = wait_for(database, running, SyncStatus.OUT_OF_SYNC, 1)
        print(f"a deleted object is reported after {took:.2f} s (target {TARGET_SECONDS})")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--applications", type=int, default=APPLICATIONS)
    options.add_argument("--seconds", type=float, default=MEASURED_SECONDS)
    given = options.parse_args()
    try:
        kubernetes = cluster()
    except NotInstalled as e:
        print(f"skipped: {e}")
        return
    directory = Path(tempfile.mkdtemp())
    try:
        measure(kubernetes, given.applications, given.seconds, directory)
    finally:
        kubernetes.close()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
