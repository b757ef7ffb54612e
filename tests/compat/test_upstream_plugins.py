# SPDX-License-Identifier: Apache-2.0
"""Upstream's plugins pass our checks, and our piped runs what upstream's pipectl pushed."""

import asyncio
from pathlib import Path

import pytest

from pipecd.config.piped import PluginSpec
from pipecd.piped.pluginhost.host import PluginDownloads
from pipecd.sdk.conformance import Trial, Verdict, try_plugin
from pipecd.wire.program_store import host_platform
from servers.registry import OciRegistry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("wait", {"WAIT": {"duration": "1s"}}, id="wait"),
        pytest.param("scriptrun", {"SCRIPT_RUN": {"run": "echo done"}}, id="scriptrun"),
    ],
)
async def test_a_plugin_of_upstream_passes_our_checks(
    upstream_plugins: Path, name: str, options: dict[str, object]
) -> None:
    trial = Trial(command=[str(upstream_plugins / name)], options=options)
    findings = {f.question: f async for f in try_plugin(trial)}
    assert [str(f) for f in findings.values() if f.verdict is Verdict.FAILED] == []
    for stage in options:
        assert findings[f"it runs {stage}"].verdict is Verdict.OK


async def test_our_piped_runs_a_plugin_that_upstreams_pipectl_pushed(
    upstream_pipectl: Path, upstream_plugins: Path, registry: OciRegistry, tmp_path: Path
) -> None:
    program = upstream_plugins / "wait"
    files = f"--files={'/'.join(host_platform())}={program}"
    where = (f"--registry={registry.host}", "--repository=team/wait", "--tag=v1", "--insecure")
    pushing = await asyncio.create_subprocess_exec(
        upstream_pipectl,
        "plugin",
        "push",
        files,
        *where,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await pushing.communicate()
    assert pushing.returncode == 0, output.decode()
    spec = PluginSpec(name="wait", url=f"oci://{registry.host}/team/wait:v1")
    fetched = await PluginDownloads(tmp_path).program(spec)
    assert fetched.read_bytes() == program.read_bytes()
