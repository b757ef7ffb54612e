# SPDX-License-Identifier: Apache-2.0
"""Our launcher takes a piped from ours to upstream's of either generation, and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.observe.version import build_version
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
    open_bed: Any,
    free_port: Callable[[], int],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    program: str,
    rest: str,
) -> None:
    releases = tmp_path / "releases"
    releases.mkdir()
    (releases / "piped_v0.99.0").symlink_to(request.getfixturevalue(program))
    async with open_bed() as bed:
        agent = await bed.register_piped("moved", rest)
        flags = (
            f"--config-file={agent.config}", f"--home-dir={tmp_path / 'home'}",
            f"--piped-release=file://{releases}/piped_{{version}}", "--check-interval", "1s",
            "--insecure", f"--admin-port={free_port()}", "--tools-dir", str(tmp_path / "tools"),
        )  # fmt: skip

        async def is_ours() -> bool:
            known = await bed.introduced(agent.id)
            return bool(known) and known.version == build_version()

        async def is_theirs() -> bool:
            known = await bed.introduced(agent.id)
            return bool(known) and known.version != build_version()

        async with bed.running(OUR_LAUNCHER, "launcher", *flags) as launcher:
            await bed.eventually(is_ours, launcher)
            await bed.cases.pipeds.set_desired_version("v0.99.0", [agent.id], by=bed.admin)
            await bed.eventually(is_theirs, launcher)
            await bed.cases.pipeds.set_desired_version("", [agent.id], by=bed.admin)
            await bed.eventually(is_ours, launcher)
        assert "piped ended during its trial" not in launcher.text
