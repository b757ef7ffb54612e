# SPDX-License-Identifier: Apache-2.0
"""Programs of upstream, in the directory `PIPECD_UPSTREAM`, and installations to run them in."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipecd.model.ids import new_id
from servers import server
from servers.control_plane import StartControlPlane
from servers.origin import Origin
from servers.our_installation import OpenInstallation, OurInstallation
from servers.upstream import UpstreamInstallation, UpstreamPlane


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The directory with programs of upstream, which the test suite does not build."""
    value = os.environ.get("PIPECD_UPSTREAM", "")
    if not value:
        pytest.skip("set PIPECD_UPSTREAM to a directory with upstream's programs to run this test")
    return Path(value).resolve()


def given(upstream: Path, name: str) -> Path:
    if not (path := upstream / name).exists():
        pytest.skip(f"PIPECD_UPSTREAM names {upstream}, where there is no {name}")
    return path


@pytest.fixture
def upstream_pipecd(upstream: Path) -> Path:
    """Upstream's control plane."""
    return given(upstream, "pipecd")


@pytest.fixture
def upstream_pipectl(upstream: Path) -> Path:
    return given(upstream, "pipectl")


@pytest.fixture
def upstream_piped(upstream: Path) -> Path:
    """Upstream's first-generation piped."""
    return given(upstream, "piped")


@pytest.fixture
def upstream_pipedv1(upstream: Path) -> Path:
    """Upstream's piped for plugins."""
    return given(upstream, "pipedv1")


@pytest.fixture
def upstream_plugins(upstream: Path) -> Path:
    """A directory with upstream's plugins, named as they are."""
    return given(upstream, "plugins")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    made = Origin.begin(tmp_path / "origin")
    # A piped may push to the branch that is checked out.
    made.git("config", "receive.denyCurrentBranch", "updateInstead")
    made.commit({"README": "sources\n"}, "the beginning")
    return made


# Requested again until there is a result.
MAY_COME_LATER = {"GetApplicationMostRecentDeployment", "GetPlanPreviewResults"}


@pytest.fixture
def open_installation(
    start_plane: StartControlPlane, origin: Origin, tmp_path: Path
) -> OpenInstallation:
    """Opens a installation: `async with open_installation() as installation`; settings go to the control plane.

    With `all_answered` the control plane must not have refused any call, apart from requests for
    objects that do not exist yet.
    """

    @asynccontextmanager
    async def opening(
        *, all_answered: bool = False, **settings: Any
    ) -> AsyncGenerator[OurInstallation, None]:
        with capture_logs() as logged:
            async with start_plane(**settings) as plane:
                yield OurInstallation(plane, origin, tmp_path)
        calls = [line for line in logged if line["event"] in {"call rejected", "call failed"}]
        refused = [c for c in calls if c["rpc"] not in MAY_COME_LATER]
        assert not all_answered or refused == []

    return opening


@pytest.fixture
async def upstream_installation(
    request: pytest.FixtureRequest,
    upstream_pipecd: Path,
    origin: Origin,
    tmp_path: Path,
) -> AsyncGenerator[UpstreamInstallation, None]:
    """A control plane of upstream, with its administrator signed in."""
    dolt, redis, s3 = (request.getfixturevalue(name) for name in ("dolt", "redis", "s3"))
    name = f"upstream-{new_id()}"
    plane = await asyncio.to_thread(UpstreamPlane, upstream_pipecd, (dolt, redis, s3), name)
    try:
        installation = UpstreamInstallation(plane, origin, tmp_path)
        await installation.admin.sign_in()
        yield installation
    finally:
        await asyncio.to_thread(plane.close)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A free port; upstream's programs cannot choose one and report it."""
    return server.free_port


@pytest.fixture
def tools_dir(tmp_path: Path, terraform: str) -> Path:
    """Terraform where a first-generation piped keeps its tools, as version "given"."""
    made = tmp_path / "tools"
    made.mkdir()
    shutil.copy(terraform, made / "terraform-given")
    return made
