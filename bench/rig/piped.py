# SPDX-License-Identifier: Apache-2.0
"""Runs a piped with its applications as a process and reads its CPU time, memory and disk."""

import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped, PipedKey
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from pipecd.secrets.keys import hash_key, new_piped_key
from rig.control_plane import TICKS, memory_of
from rig.seed import CREATED_AT, PROJECT


@dataclass(frozen=True)
class PipedProcess:
    """A running piped."""

    process: "subprocess.Popen[bytes]"
    work: Path

    def cpu_seconds(self) -> float:
        """Returns the CPU time of piped and the programs that it ran."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / TICKS

    def memory(self) -> float:
        """Returns its resident memory in MB."""
        return memory_of(self.process.pid)

    def disk(self) -> float:
        """Returns the size of its workspace in MB; ignores files deleted meanwhile."""
        total = 0
        for directory, _, names in os.walk(self.work):
            for name in names:
                try:
                    total += os.lstat(Path(directory) / name).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total / 1024 / 1024


@dataclass(frozen=True)
class SeededPiped:
    """A piped in the database, its key, and the ids of its applications by name."""

    piped: str
    key: str
    applications: Mapping[str, str]


def git(repository: Path, *arguments: str) -> None:
    who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run(["git", "-C", str(repository), *who, *arguments], check=True)


async def seed_piped(datastore: DatastoreSpec, remote: str, names: Sequence[str]) -> SeededPiped:
    """Adds a piped and its applications, each in the directory of its name, to the database."""
    repository = ApplicationGitRepository(id="repo", remote=remote, branch="main")
    piped, key = new_id(), new_piped_key()
    with tempfile.TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        async with open_datastore(datastore) as database:
            stores = create_stores(database, files, MemoryCache())
            admin = ProjectStaticUser(username="admin", password_hash="no password")
            await stores.projects.add(Project(id=PROJECT, desc="d", static_admin=admin))
            keys = [PipedKey(hash=hash_key(key), creator="c", created_at=CREATED_AT)]
            await stores.pipeds.add(
                Piped(
                    id=piped,
                    name="piped",
                    desc="d",
                    project_id=PROJECT,
                    keys=keys,
                    created_at=CREATED_AT,
                    updated_at=CREATED_AT,
                )
            )
            registered = [_application(name, piped, repository) for name in names]
            for each in registered:
                await stores.applications.add(each)
    return SeededPiped(piped, key, {each.name: each.id for each in registered})


def _application(name: str, piped: str, repository: ApplicationGitRepository) -> Application:
    path = ApplicationGitPath(repo=repository, path=name, config_filename="app.pipecd.yaml")
    return Application(
        id=new_id(),
        name=name,
        piped_id=piped,
        project_id=PROJECT,
        git_path=path,
        platform_provider="p",
        created_at=CREATED_AT,
        updated_at=CREATED_AT,
    )


@contextmanager
def run_piped(
    directory: Path, remote: str, address: str, seeded: SeededPiped, more: str = ""
) -> Iterator[PipedProcess]:
    """Runs `piped` until the block ends; `more` is appended to its configuration."""
    config, work = directory / "piped.yaml", directory / "work"
    config.write_text(f"""\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {PROJECT}
  pipedID: {seeded.piped}
  pipedKeyData: {base64.b64encode(seeded.key.encode()).decode()}
  apiAddress: {address}
  repositories: [{{repoID: repo, remote: "{remote}", branch: main}}]
{more}""")
    directories = [f"--workspace-dir={work}", f"--tools-dir={directory / 'tools'}"]
    flags = ["--insecure", "--admin-port=0", "--log-level=warn", f"--config-file={config}"]
    process = subprocess.Popen([sys.executable, "-m", "pipecd", "piped", *flags, *directories])
    try:
        yield PipedProcess(process, work)
    finally:
        process.terminate()
        process.wait(60)
