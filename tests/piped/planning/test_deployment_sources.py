# SPDX-License-Identifier: Apache-2.0
"""The plan and the stages of a deployment share unmodified working copies."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.piped.planning.deployment_sources import DeploymentSources, Snapshot
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Source, Sources
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from servers.origin import Origin
from servers.samples import CART

CART_PATH = ApplicationGitPath(
    repo=ApplicationGitRepository(id="site"), path="cart", config_filename="app.pipecd.yaml"
)
FILES = {"cart/app.pipecd.yaml": CART, "cart/old.yaml": CART, "cart/x": "1", "cart/d/y": "2"}


@pytest.fixture
def open_sources(
    origin: Origin, tmp_path: Path, workers: WorkerPool
) -> Callable[[], AbstractAsyncContextManager[DeploymentSources]]:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[DeploymentSources]:
        site = Repository("site", origin.remote, "main")
        async with open_mirrors(
            [site], directory=tmp_path / "mirrors", credentials=GitCredentials()
        ) as mirrors:
            sources = Sources(
                mirrors,
                ApplicationConfigs(load_catalog()),
                project="shop",
                renderer=TemplateRenderer(workers),
            )
            yield DeploymentSources(sources, SecretMasks(), "d", nullcontext())

    return opened


def write_the_same_size(application: Path) -> None:
    (application / "x").write_text("2")


def replace_a_file(application: Path) -> None:
    (application / "x").unlink()
    (application / "x").write_text("1")
    os.utime(application / "x", (1, 1))


MODIFICATIONS = [
    pytest.param(write_the_same_size, id="overwritten with the same size at once"),
    pytest.param(replace_a_file, id="replaced"),
    pytest.param(lambda at: (at / "d" / "new").write_text(""), id="a new file"),
    pytest.param(lambda at: (at / "d" / "y").unlink(), id="a deleted file"),
    pytest.param(lambda at: (at / "x").chmod(0o755), id="another mode"),
    pytest.param(lambda at: (at.parent / "new").mkdir(), id="a new directory beside"),
]


@pytest.mark.parametrize("modify", MODIFICATIONS)
async def test_a_modified_working_copy_is_not_seen_by_the_next_stage(
    open_sources: Any, origin: Origin, tmp_path: Path, modify: Callable[[Path], Any]
) -> None:
    commit = origin.commit(FILES)
    async with open_sources() as sources:
        first = await sources.at(CART_PATH, commit, into=tmp_path / "s1", name="target")
        modify(first.application_directory)
        second = await sources.at(CART_PATH, commit, into=tmp_path / "s2", name="target")
    assert second.directory == tmp_path / "s2" / "target"
    assert not first.directory.exists()
    assert {p.name for p in second.application_directory.rglob("*")} == {
        *("app.pipecd.yaml", "old.yaml", "x", "d", "y")
    }
    assert (second.application_directory / "x").read_text() == "1"


async def test_an_unmodified_working_copy_is_reused(
    open_sources: Any, origin: Origin, tmp_path: Path
) -> None:
    commit = origin.commit(FILES)
    async with open_sources() as sources:

        async def get(stage: str, name: str = "target", **rest: Any) -> Source:
            return await sources.at(CART_PATH, commit, into=tmp_path / stage, name=name, **rest)

        first = await get("plan")
        (first.application_directory / "x").read_text()
        assert await get("s1") is first
        running = await get("s1", "running")
        assert running is not first, "a stage may modify one of them and compare it with the other"
        assert (await get("s2"), await get("s2", "running")) == (first, running)
        other = await get("s3", "running", config_filename="old.yaml")
        assert (other.config_filename, running.directory.exists()) == ("old.yaml", False)
        await sources.discard()
        assert not first.directory.exists()
        assert not other.directory.exists()
        assert (await get("s4")).directory == tmp_path / "s4" / "target"


def test_a_hard_link_to_a_shared_file_modifies_nothing(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("1")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "x").hardlink_to(tmp_path / "shared")
    snapshot = Snapshot(tmp_path / "copy")
    (tmp_path / "another").hardlink_to(tmp_path / "shared")
    assert snapshot.is_unmodified()
    (tmp_path / "another").write_text("2")
    assert not snapshot.is_unmodified()
