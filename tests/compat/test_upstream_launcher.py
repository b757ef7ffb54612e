# SPDX-License-Identifier: Apache-2.0
"""Our launcher takes a piped from ours to upstream's of either generation, and back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipecd.observe.version import build_version
from servers.our_installation import OpenInstallation
from servers.programs import OUR_LAUNCHER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("program", "rest"),
    [
        pytest.param("upstream_piped", "  platformProviders: [{name: tf, type: TERRAFORM}]\n", id="the first generation"),
        pytest.param("upstream_pipedv1", "", id="the piped for plugins"),
    ],
)  # fmt: skip
async def test_the_desired_version_may_be_one_of_upstream(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    program: str,
    rest: str,
) -> None:
    releases = tmp_path / "releases"
    releases.mkdir()
    (releases / "piped_v0.99.0").symlink_to(request.getfixturevalue(program))
    async with open_installation() as installation:
        agent = await installation.register_piped("moved", rest)
        flags = (
            f"--config-file={agent.config}", f"--home-dir={tmp_path / 'home'}",
            f"--piped-release=file://{releases}/piped_{{version}}", "--check-interval", "1s",
            "--insecure", f"--admin-port={free_port()}", "--tools-dir", str(tmp_path / "tools"),
        )  # fmt: skip

        async def is_ours() -> bool:
            known = await installation.introduced(agent.id)
            return bool(known) and known.version == build_version()

        async def is_theirs() -> bool:
            known = await installation.introduced(agent.id)
            return bool(known) and known.version != build_version()

        async with installation.running(OUR_LAUNCHER, "launcher", *flags) as launcher:
            await installation.eventually(is_ours, launcher)
            await installation.cases.pipeds.set_desired_version(
                "v0.99.0", [agent.id], by=installation.admin
            )
            await installation.eventually(is_theirs, launcher)
            await installation.cases.pipeds.set_desired_version(
                "", [agent.id], by=installation.admin
            )
            await installation.eventually(is_ours, launcher)
        assert "piped failed to start" not in launcher.text
        assert "piped not started" not in launcher.text
