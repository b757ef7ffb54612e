# SPDX-License-Identifier: Apache-2.0
"""Upstream's plugins pass our checks, and our piped runs what upstream's pipectl pushed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec
from pipecd.config.piped import PluginSpec
from pipecd.model.deployment import StageStatus
from pipecd.piped.pluginhost.host import PluginDownloads, PluginHost
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.plugins.wait.plugin import WaitPlugin
from pipecd.proto.model.deployment_pb2 import PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.source_pb2 import DeploymentSource
from pipecd.sdk.conformance import Trial, Verdict, try_plugin
from pipecd.sdk.testing import MemoryHost, StageBench
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


@pytest.mark.parametrize(
    "service_port", [pytest.param(None, id="through the socket"), pytest.param(0, id="on a port")]
)
async def test_a_plugin_of_upstream_calls_our_piped(
    upstream_plugins: Path, service_port: int | None, tmp_path: Path
) -> None:
    host: Any = MemoryHost()
    host.masks = SecretMasks()
    spec = PluginSpec(name="wait", url=f"file://{upstream_plugins / 'wait'}")
    deployment = StageBench(WaitPlugin(), tmp_path).deployment()
    async with PluginHost.start(
        [spec], callbacks=host, workspace=tmp_path, service_port=service_port
    ) as plugins:
        plugin = plugins.for_stage("WAIT", ApplicationSpec())
        response = await plugin.ExecuteStage(
            pb.ExecuteStageRequest(
                input=pb.ExecutePluginInput(
                    deployment=deployment,
                    stage=PipelineStage(id="s1", name="WAIT", created_at=1, updated_at=1),
                    stage_config=b'{"duration": "1s"}',
                    target_deployment_source=DeploymentSource(
                        application_directory=str(tmp_path),
                        commit_hash="c0ffee",
                        application_config=b"{apiVersion: pipecd.dev/v1beta1, kind: Application, spec: {name: cart}}",
                        application_config_filename="app.pipecd.yaml",
                    ),
                )
            )
        )
    assert StageStatus(response.status) is StageStatus.SUCCESS
    assert host.lines, "it sends the log of the stage to piped"
    assert host.stage_metadata, "it stores when it began to wait"
