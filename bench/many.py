# SPDX-License-Identifier: Apache-2.0
"""Figures of one piped with many applications: a push that touches all, and doing nothing."""

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
from rig.control_plane import run_control_plane
from rig.engines import engine
from rig.piped import PipedProcess, git, run_piped, seed_piped

PUSHED, IDLE = 200, 500
ASKED_SECONDS, ASKED_DISK, ASKED_MEMORY, ASKED_PROCESSOR = 60, 1024, 200, 3
SETTLE_SECONDS, IDLE_SECONDS, GIVE_UP = 15.0, 30.0, 300.0
APPLICATION = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {name}
  pipeline: {{stages: [{{name: SCRIPT_RUN, with: {{run: cat version}}}}]}}
  trigger: {{onCommit: {{disabled: {quiet}}}}}
"""


def commit(repository: Path, count: int, text: str, *, quiet: bool = False) -> None:
    """One commit that touches every application."""
    for number in range(count):
        place = repository / f"app-{number:03}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "version").write_text(f"{text}\n")
        written = APPLICATION.format(name=place.name, quiet=str(quiet).lower())
        (place / "app.pipecd.yaml").write_text(written)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", text)


def finished(database: sqlite3.Connection, status: DeploymentStatus) -> int:
    query = "SELECT count(*) FROM Deployment WHERE Status = ?"
    return database.execute(query, (int(status),)).fetchone()[0]


def until_finished(
    database: sqlite3.Connection, running: PipedProcess, count: int
) -> tuple[float, float]:
    """Seconds until that many have succeeded, and the most disk that was used on the way."""
    began, most = time.monotonic(), 0.0
    while finished(database, DeploymentStatus.SUCCESS) < count:
        failed = finished(database, DeploymentStatus.FAILURE)
        if failed or time.monotonic() - began > GIVE_UP or running.process.poll() is not None:
            sys.exit(f"only {finished(database, DeploymentStatus.SUCCESS)} succeeded, {failed} not")
        most = max(most, running.disk())
        time.sleep(0.2)
    return time.monotonic() - began, most


@contextmanager
def run_installation(
    count: int, *, quiet: bool
) -> Iterator[tuple[PipedProcess, Path, sqlite3.Connection]]:
    """A server, a repository and a piped with that many applications."""
    directory = Path(tempfile.mkdtemp())
    repository = directory / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    commit(repository, count, "first", quiet=quiet)
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
                yield running, repository, database
                database.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def pushed(count: int) -> None:
    with run_installation(count, quiet=False) as (running, repository, database):
        first, _ = until_finished(database, running, count)
        print(f"first deployments of {count} applications: {first:.1f} s from the start of piped")
        before = running.cpu_seconds()
        commit(repository, count, "second")
        seconds, disk = until_finished(database, running, 2 * count)
        processor = running.cpu_seconds() - before
        print(
            f"a push that touches {count}: all succeeded after {seconds:.1f} s "
            f"(asked {ASKED_SECONDS}), at most {disk:.0f} MB of disk (asked {ASKED_DISK}), "
            f"{processor:.1f} s of processor, {running.memory():.0f} MB of memory"
        )


def idle(count: int) -> None:
    with run_installation(count, quiet=True) as (running, _, _):
        time.sleep(SETTLE_SECONDS)
        before = running.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        share = (running.cpu_seconds() - before) / IDLE_SECONDS * 100
        print(
            f"{count} idle applications: {running.memory():.0f} MB (asked {ASKED_MEMORY}), "
            f"{share:.1f} % of a core (asked {ASKED_PROCESSOR})"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pushed", type=int, default=PUSHED)
    options.add_argument("--idle", type=int, default=IDLE)
    given = options.parse_args()
    if given.pushed:
        pushed(given.pushed)
    if given.idle:
        idle(given.idle)


if __name__ == "__main__":
    main()
