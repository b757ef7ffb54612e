# SPDX-License-Identifier: Apache-2.0
"""Seeds a database: a project with pipeds and their deployments.

The rows are written through the stores, before the control plane opens the database. All pipeds
share one key, since a thousand slow hashes would not measure the control plane.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.ids import new_id
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger, PipelineStage
from pipecd.proto.model.piped_pb2 import Piped, PipedKey
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from pipecd.secrets.keys import hash_key, new_piped_key
from pipecd.wire.credentials import piped_token

PROJECT = "bench"
STAGES = 5
CREATED_AT = 1_790_000_000


@dataclass(frozen=True)
class RegisteredPiped:
    """A piped, its `authorization` and a running deployment."""

    id: str
    token: str
    deployment: Deployment


def seed_pipeds(datastore: DatastoreSpec, *, pipeds: int) -> list[RegisteredPiped]:
    """Seeds the database and closes it."""
    return asyncio.run(_seed_pipeds(datastore, pipeds))


async def _seed_pipeds(datastore: DatastoreSpec, pipeds: int) -> list[RegisteredPiped]:
    with TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        async with open_datastore(datastore) as database:
            stores = create_stores(database, files, MemoryCache())
            admin = ProjectStaticUser(username="admin", password_hash="no password")
            await stores.projects.add(Project(id=PROJECT, desc="d", static_admin=admin))
            key = new_piped_key()
            hashed = PipedKey(hash=hash_key(key), creator="c", created_at=CREATED_AT)
            return [await _add_piped(stores, key, hashed, number) for number in range(pipeds)]


async def _add_piped(stores: Stores, key: str, hashed: PipedKey, number: int) -> RegisteredPiped:
    piped = Piped(
        id=new_id(),
        name=f"piped-{number}",
        desc="d",
        project_id=PROJECT,
        keys=[hashed],
        status=Piped.ONLINE,
        created_at=CREATED_AT,
        updated_at=CREATED_AT,
    )
    await stores.pipeds.add(piped)
    running = deployment(new_id(), piped.id)
    await stores.deployments.add(running)
    return RegisteredPiped(piped.id, piped_token(PROJECT, piped.id, key), running)


def deployment(application: str, piped: str) -> Deployment:
    """Returns a running deployment with five stages."""
    repository = ApplicationGitRepository(id="repo", remote="git@host:o/r.git", branch="main")
    commit = Commit(
        hash="c" * 40, message="change", author="dev", branch="main", created_at=CREATED_AT
    )
    stages = [
        PipelineStage(
            id=f"stage-{i}", name="K8S_SYNC", created_at=CREATED_AT, updated_at=CREATED_AT
        )
        for i in range(STAGES)
    ]
    return Deployment(
        id=new_id(),
        application_id=application,
        application_name="web",
        piped_id=piped,
        project_id=PROJECT,
        git_path=ApplicationGitPath(repo=repository, path="web", config_filename="app.pipecd.yaml"),
        trigger=DeploymentTrigger(commit=commit, timestamp=CREATED_AT),
        labels={"env": "dev"},
        stages=stages,
        status=int(DeploymentStatus.RUNNING),  # type: ignore[arg-type]
        created_at=CREATED_AT,
        updated_at=CREATED_AT,
    )
