# SPDX-License-Identifier: Apache-2.0
"""One piped as a process of its own, the applications it has, and what it takes of the machine."""

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
from rig.plane import TICKS, memory_of
from rig.world import BEGAN, PROJECT


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
        return memory_of(self.process.pid)

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


@dataclass(frozen=True)
class Settled:
    """A piped in the database, its key, and the ids of its applications by name."""

    piped: str
    key: str
    applications: Mapping[str, str]


def git(repository: Path, *arguments: str) -> None:
    who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run(["git", "-C", str(repository), *who, *arguments], check=True)


async def settle(datastore: DatastoreSpec, remote: str, names: Sequence[str]) -> Settled:
    """Writes a piped and its applications, each in the directory of its name, into the database."""
    repository = ApplicationGitRepository(id="repo", remote=remote, branch="main")
    piped, key = new_id(), new_piped_key()
    with tempfile.TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        async with open_datastore(datastore) as database:
            stores = create_stores(database, files, MemoryCache())
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
            registered = [_application(name, piped, repository) for name in names]
            for each in registered:
                await stores.applications.add(each)
    return Settled(piped, key, {each.name: each.id for each in registered})


def _application(name: str, piped: str, repository: ApplicationGitRepository) -> Application:
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
def agent(
    directory: Path, remote: str, address: str, settled: Settled, more: str = ""
) -> Iterator[Agent]:
    """`piped run` until the block ends; `more` goes on with its configuration."""
    config, work = directory / "piped.yaml", directory / "work"
    config.write_text(f"""\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {PROJECT}
  pipedID: {settled.piped}
  pipedKeyData: {base64.b64encode(settled.key.encode()).decode()}
  apiAddress: {address}
  repositories: [{{repoID: repo, remote: "{remote}", branch: main}}]
{more}""")
    places = [f"--workspace-dir={work}", f"--tools-dir={directory / 'tools'}"]
    flags = ["--insecure", "--admin-port=0", "--log-level=warn", f"--config-file={config}"]
    process = subprocess.Popen([sys.executable, "-m", "pipecd", "piped", *flags, *places])
    try:
        yield Agent(process, work)
    finally:
        process.terminate()
        process.wait(60)
