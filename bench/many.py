# SPDX-License-Identifier: Apache-2.0
"""Figures of one piped with many applications: a push that touches all, and doing nothing."""

import argparse
import asyncio
import base64
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.config.controlplane.storage import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.assemble import assemble_stores
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped, PipedKey
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from pipecd.secrets.keys import hash_key, new_piped_key
from rig.engines import engine
from rig.plane import TICKS, plane
from rig.world import BEGAN, PROJECT

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


@dataclass(frozen=True)
class Agent:
    """The piped that is measured."""

    process: "subprocess.Popen[bytes]"
    work: Path

    def cpu_seconds(self) -> float:
        """Processor time that it and the programs it ran have taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / TICKS

    def memory(self) -> float:
        """Megabytes that it holds now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def disk(self) -> float:
        """Megabytes in its working directory; what vanishes meanwhile is not counted."""
        total = 0
        for directory, _, names in os.walk(self.work):
            for name in names:
                try:
                    total += os.lstat(Path(directory) / name).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total / 1024 / 1024


def git(repository: Path, *arguments: str) -> None:
    who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run(["git", "-C", str(repository), *who, *arguments], check=True)


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


async def settle(datastore: DatastoreSpec, remote: str, count: int) -> tuple[str, str]:
    """Writes a piped and its applications into the database; answers the piped's id and key."""
    repository = ApplicationGitRepository(id="repo", remote=remote, branch="main")
    piped, key = new_id(), new_piped_key()
    with tempfile.TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        async with open_datastore(datastore) as database:
            stores = assemble_stores(database, files, MemoryCache())
            admin = ProjectStaticUser(username="admin", password_hash="no password")
            await stores.projects.add(Project(id=PROJECT, desc="d", static_admin=admin))
            keys = [PipedKey(hash=hash_key(key), creator="c", created_at=BEGAN)]
            await stores.pipeds.add(
                Piped(
                    id=piped,
                    name="piped",
                    desc="d",
                    project_id=PROJECT,
                    keys=keys,
                    created_at=BEGAN,
                    updated_at=BEGAN,
                )
            )
            for number in range(count):
                await stores.applications.add(application(f"app-{number:03}", piped, repository))
    return piped, key


def application(name: str, piped: str, repository: ApplicationGitRepository) -> Application:
    path = ApplicationGitPath(repo=repository, path=name, config_filename="app.pipecd.yaml")
    return Application(
        id=new_id(),
        name=name,
        piped_id=piped,
        project_id=PROJECT,
        git_path=path,
        platform_provider="p",
        created_at=BEGAN,
        updated_at=BEGAN,
    )


@contextmanager
def agent(directory: Path, remote: str, address: str, identity: tuple[str, str]) -> Iterator[Agent]:
    """`piped run` until the block ends."""
    piped, key = identity
    config, work = directory / "piped.yaml", directory / "work"
    config.write_text(f"""\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {PROJECT}
  pipedID: {piped}
  pipedKeyData: {base64.b64encode(key.encode()).decode()}
  apiAddress: {address}
  repositories: [{{repoID: repo, remote: "{remote}", branch: main}}]
""")
    places = [f"--workspace-dir={work}", f"--tools-dir={directory / 'tools'}"]
    flags = ["--insecure", "--admin-port=0", "--log-level=warn", f"--config-file={config}"]
    process = subprocess.Popen([sys.executable, "-m", "pipecd", "piped", *flags, *places])
    try:
        yield Agent(process, work)
    finally:
        process.terminate()
        process.wait(60)


def finished(database: sqlite3.Connection, status: DeploymentStatus) -> int:
    query = "SELECT count(*) FROM Deployment WHERE Status = ?"
    return database.execute(query, (int(status),)).fetchone()[0]


def until_finished(database: sqlite3.Connection, running: Agent, count: int) -> tuple[float, float]:
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
def world(count: int, *, quiet: bool) -> Iterator[tuple[Agent, Path, sqlite3.Connection]]:
    """A server, a repository and a piped with that many applications."""
    directory = Path(tempfile.mkdtemp())
    repository = directory / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    commit(repository, count, "first", quiet=quiet)
    remote = f"file://{repository}"
    try:
        with engine("sqlite") as datastore:
            identity = asyncio.run(settle(datastore, remote, count))
            with (
                plane(datastore) as server,
                agent(directory, remote, server.address("piped-api"), identity) as running,
            ):
                database = sqlite3.connect(f"file:{datastore.config.path}?mode=ro", uri=True)
                yield running, repository, database
                database.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def pushed(count: int) -> None:
    with world(count, quiet=False) as (running, repository, database):
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
    with world(count, quiet=True) as (running, _, _):
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
