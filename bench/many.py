# SPDX-License-Identifier: Apache-2.0
"""One piped with many applications: a push that changes all of them, and an idle piped."""

import argparse
import asyncio
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipecd.model.deployment import DeploymentStatus
from rig.control_plane import ControlPlaneProcess, run_control_plane
from rig.engines import engine
from rig.piped import PipedProcess, git, run_piped, seed_piped
from rig.seed import PROJECT

PUSHED, IDLE = 200, 500
TARGET_SECONDS, TARGET_DISK, TARGET_MEMORY, TARGET_PROCESSOR = 60, 1024, 200, 3
SETTLE_SECONDS, IDLE_SECONDS, TIMEOUT_SECONDS = 15.0, 30.0, 300.0
APPLICATION = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {name}
  pipeline: {{stages: [{{name: SCRIPT_RUN, with: {{run: cat version}}}}]}}
  trigger: {{onCommit: {{disabled: {quiet}}}}}
"""


def commit(
    repository: Path,
    count: int,
    text: str,
    *,
    quiet: bool = False,
    application: str = APPLICATION,
) -> None:
    """Creates one commit that changes every application."""
    for number in range(count):
        path = repository / f"app-{number:03}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "version").write_text(f"{text}\n")
        written = application.format(name=path.name, quiet=str(quiet).lower())
        (path / "app.pipecd.yaml").write_text(written)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", text)


def count_with_status(database: sqlite3.Connection, status: DeploymentStatus) -> int:
    query = "SELECT count(*) FROM Deployment WHERE ProjectId = ? AND Status = ?"
    return database.execute(query, (PROJECT, int(status))).fetchone()[0]


def wait_for_success(
    database: sqlite3.Connection, running: PipedProcess, count: int, *, with_disk: bool = False
) -> tuple[float, float]:
    """Waits until that many succeeded; returns the seconds it took and the maximum disk usage.

    The disk usage costs processor time, and is 0 without `with_disk`.
    """
    began, most = time.monotonic(), 0.0
    while (succeeded := count_with_status(database, DeploymentStatus.SUCCESS)) < count:
        failed = count_with_status(database, DeploymentStatus.FAILURE)
        has_timed_out = time.monotonic() - began > TIMEOUT_SECONDS
        if failed or has_timed_out or running.process.poll() is not None:
            sys.exit(f"only {succeeded} of {count} deployments succeeded, {failed} failed")
        if with_disk:
            most = max(most, running.disk())
        time.sleep(0.2)
    return time.monotonic() - began, most


@contextmanager
def run_installation(
    count: int, *, quiet: bool
) -> Iterator[tuple[PipedProcess, Path, sqlite3.Connection]]:
    """Runs a server, a repository and a piped with that many applications."""
    with run_push_installation(count, quiet=quiet) as (running, _, repository, database):
        yield running, repository, database


@contextmanager
def run_push_installation(
    count: int, *, quiet: bool = False, application: str = APPLICATION
) -> Iterator[tuple[PipedProcess, ControlPlaneProcess, Path, sqlite3.Connection]]:
    """Runs the same with a configuration for all applications, and yields the server too."""
    directory = Path(tempfile.mkdtemp())
    repository = directory / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    commit(repository, count, "first", quiet=quiet, application=application)
    remote = f"file://{repository}"
    try:
        with engine("sqlite") as datastore:
            names = [f"app-{number:03}" for number in range(count)]
            seeded = asyncio.run(seed_piped(datastore, remote, names))
            with (
                run_control_plane(datastore) as server,
                run_piped(directory, remote, server.address("piped-api"), seeded) as running,
            ):
                database = sqlite3.connect(f"file:{datastore.config.path}?mode=ro", uri=True)
                yield running, server, repository, database
                database.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure_push(count: int) -> None:
    with run_installation(count, quiet=False) as (running, repository, database):
        first, _ = wait_for_success(database, running, count)
        print(f"first deployments of {count} applications: {first:.1f} s from the start of piped")
        before = running.cpu_seconds()
        commit(repository, count, "second")
        seconds, disk = wait_for_success(database, running, 2 * count, with_disk=True)
        processor = running.cpu_seconds() - before
        print(
            f"a push that changes {count}: all succeeded after {seconds:.1f} s "
            f"(target {TARGET_SECONDS}), at most {disk:.0f} MB of disk (target {TARGET_DISK}), "
            f"{processor:.1f} s of CPU time, {running.memory():.0f} MB of memory"
        )


def measure_idle(count: int) -> None:
    with run_installation(count, quiet=True) as (running, _, _):
        time.sleep(SETTLE_SECONDS)
        before = running.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        share = (running.cpu_seconds() - before) / IDLE_SECONDS * 100
        print(
            f"{count} idle applications: {running.memory():.0f} MB (target {TARGET_MEMORY}), "
            f"{share:.1f} % of a core (target {TARGET_PROCESSOR})"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pushed", type=int, default=PUSHED)
    options.add_argument("--idle", type=int, default=IDLE)
    given = options.parse_args()
    if given.pushed:
        measure_push(given.pushed)
    if given.idle:
        measure_idle(given.idle)


if __name__ == "__main__":
    main()
