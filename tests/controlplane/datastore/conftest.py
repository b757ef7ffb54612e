# SPDX-License-Identifier: Apache-2.0
"""Stores on real engines, a clock that is set by hand, and documents to put into them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.controlplane.storage import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.assemble import assemble_stores
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.stores import Stores
from pipecd.model.ids import new_id
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.proto.model.event_pb2 import Event

START = 1_700_000_000


class HandClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.seconds: float = START

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine passes the same tests."""
    return request.param


@pytest.fixture
def open_database(
    engine: str, tmp_path: Path
) -> Callable[[], AbstractAsyncContextManager[Database]]:
    """Opens the same database each time."""
    specs = {
        "sqlite": DatastoreSpec(
            type="SQLITE", config=DatastoreConfig(path=str(tmp_path / "data" / "pipecd.db"))
        )
    }
    return lambda: open_datastore(specs[engine])


@pytest.fixture
def open_stores(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
    tmp_path: Path,
    clock: HandClock,
) -> Callable[[], AbstractAsyncContextManager[Stores]]:
    """Opens all stores on the same data each time."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Stores]:
        files = await LocalFiles.open(tmp_path / "files")
        async with open_database() as database:
            yield assemble_stores(database, files, MemoryCache(), now=clock)

    return opened


@pytest.fixture
async def database(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
) -> AsyncIterator[Database]:
    async with open_database() as database:
        yield database


@pytest.fixture
async def stores(database: Database, tmp_path: Path, clock: HandClock) -> Stores:
    files = await LocalFiles.open(tmp_path / "files")
    return assemble_stores(database, files, MemoryCache(), now=clock)


def _git_path() -> ApplicationGitPath:
    repo = ApplicationGitRepository(id="repo", remote="git@example.com:o/r.git", branch="main")
    return ApplicationGitPath(repo=repo, path="apps/web", config_filename="app.pipecd.yaml")


@pytest.fixture
def application() -> Callable[..., Application]:
    def make(**fields: Any) -> Application:
        given: dict[str, Any] = {
            "id": new_id(),
            "name": "web",
            "piped_id": "piped-1",
            "project_id": "p",
        } | fields
        return Application(git_path=_git_path(), **given)

    return make


@pytest.fixture
def deployment() -> Callable[..., Deployment]:
    def make(**fields: Any) -> Deployment:
        commit = Commit(
            hash="c0ffee", message="change", author="dev", branch="main", created_at=START
        )
        given: dict[str, Any] = {
            "id": new_id(),
            "application_id": "application-1",
            "application_name": "web",
            "piped_id": "piped-1",
            "project_id": "p",
        } | fields
        trigger = DeploymentTrigger(commit=commit, timestamp=START)
        return Deployment(git_path=_git_path(), trigger=trigger, **given)

    return make


@pytest.fixture
def command() -> Callable[..., Command]:
    def make(**fields: Any) -> Command:
        given: dict[str, Any] = {"id": new_id(), "piped_id": "piped-1", "project_id": "p"} | fields
        return Command(**given)

    return make


@pytest.fixture
def event() -> Callable[..., Event]:
    def make(**fields: Any) -> Event:
        given: dict[str, Any] = {
            "id": new_id(),
            "name": "image",
            "data": "v1",
            "project_id": "p",
            "event_key": "key",
        } | fields
        return Event(**given)

    return make


@pytest.fixture
def api_key() -> Callable[..., APIKey]:
    def make(**fields: Any) -> APIKey:
        given: dict[str, Any] = {
            "id": new_id(),
            "name": "ci",
            "key_hash": "hash",
            "project_id": "p",
            "creator": "someone",
        } | fields
        return APIKey(**given)

    return make
