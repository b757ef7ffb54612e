# SPDX-License-Identifier: Apache-2.0
"""External plugins run as processes, serve piped, and never outlive it."""

import asyncio
import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.pluginhost.host import PLUGIN_SERVICE
from pipecd.piped.pluginhost.process import PluginLaunch, PluginSupervisor, PluginTimeouts
from pipecd.piped.pluginhost.remote import RemotePlugin
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.sdk.serving import entry_json, rpc_handlers, start_arguments
from pipecd.sdk.stage import StageCommandKind
from pipecd.sdk.testing import MemoryHost
from pipecd.wire.server import grpc_server
from servers.server import is_running

Program = Callable[..., Path]


def spec_of(path: Path, port: int) -> PluginSpec:
    return PluginSpec(name="greeter", url=f"file://{path}", port=port)


@asynccontextmanager
async def hosted(
    spec: PluginSpec, host: MemoryHost, timeouts: PluginTimeouts | None = None
) -> AsyncGenerator[RemotePlugin, None]:
    handlers = rpc_handlers(PLUGIN_SERVICE, host)
    async with grpc_server([handlers], host="localhost", port=0, grace=0) as port:
        command = [spec.url.removeprefix("file://")]
        supervisor = PluginSupervisor(PluginLaunch(spec, command, f"localhost:{port}"), timeouts)
        running = asyncio.ensure_future(supervisor.run())
        try:
            await supervisor.wait_until_ready()
            yield RemotePlugin(spec.name, supervisor.connect)
        finally:
            running.cancel()
            await asyncio.wait({running})


def executing(deployment: Deployment, stage: str, config: bytes = b"") -> pb.ExecuteStageRequest:
    return pb.ExecuteStageRequest(
        input=pb.ExecutePluginInput(
            deployment=deployment,
            stage=PipelineStage(id="s1", name=stage, created_at=1, updated_at=1),
            stage_config=config,
        )
    )


async def has_ended(pid: int) -> bool:
    for _ in range(400):
        if not is_running(pid):
            return True
        await asyncio.sleep(0.025)
    return False


@pytest.mark.slow
async def test_a_plugin_process_runs_stages_and_calls_back(
    program: Program, free_port: int, deployment: Deployment
) -> None:
    host = MemoryHost()
    host.tell(StageCommandKind.APPROVE, "ann")
    async with hosted(spec_of(program(), free_port), host) as plugin:
        stages = await plugin.FetchDefinedStages(pb.FetchDefinedStagesRequest())
        assert list(stages.stages) == ["GREET", "LINGER"]
        response = await plugin.ExecuteStage(executing(deployment, "GREET", b'{"name": "Ann"}'))
        assert (response.status, response.message) == (StageStatus.SUCCESS, "Hello Ann")
    assert host.lines == ["ann said approve", "Hello Ann"]
    assert host.stage_metadata == {"greeted": "yes"}
    assert host.is_log_completed


@pytest.mark.slow
async def test_a_plugin_process_ends_with_piped_and_leaves_its_log_open(
    program: Program, free_port: int, deployment: Deployment
) -> None:
    host = MemoryHost()
    async with asyncio.timeout(20), hosted(spec_of(program(), free_port), host) as plugin:
        running = asyncio.ensure_future(plugin.ExecuteStage(executing(deployment, "LINGER")))
        await host.until(lambda: bool(host.lines))
        pid = int(host.lines[0].removeprefix("pid "))
        assert is_running(pid)
    assert not is_running(pid)
    assert not host.is_log_completed
    with pytest.raises(Unavailable):
        await running


@pytest.mark.slow
async def test_a_plugin_process_does_not_outlive_a_killed_piped(
    program: Program, free_port: int, tmp_path: Path
) -> None:
    piped = tmp_path / "piped.py"
    piped.write_text(
        textwrap.dedent(f"""
        import asyncio
        from pipecd.config.piped import PluginSpec
        from pipecd.piped.pluginhost.host import PluginHost
        from pipecd.piped.pluginhost.masking import SecretMasks
        from pipecd.sdk.testing import MemoryHost

        async def main():
            spec = PluginSpec(name="greeter", url="file://{program()}", port={free_port})
            host = MemoryHost()
            host.masks = SecretMasks()
            async with PluginHost.start([spec], callbacks=host):
                print("ready", flush=True)
                await asyncio.Event().wait()

        asyncio.run(main())
        """)
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(piped), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        async for line in process.stdout:
            if line == b"ready\n":
                break
    children = children_of(process.pid)
    assert children, "the plugin runs"
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    for pid in children:
        assert await has_ended(pid)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("exit 3", "plugin greeter ended with exit code 3 instead of starting and wrote nothing", id="ends at once"),
        pytest.param("echo the key is missing >&2; exit 1", "ended with exit code 1 instead of starting; its last output was:\nthe key is missing", id="ends with a reason"),
        pytest.param("kill -9 $$", "plugin greeter was ended by SIGKILL instead of starting", id="is killed"),
        pytest.param("sleep 60", r"plugin greeter did not answer on port \d+ within 0.5s instead of starting", id="never answers"),
    ],
)  # fmt: skip
async def test_a_plugin_process_that_does_not_start(
    program: Program, free_port: int, text: str, error: str
) -> None:
    spec = spec_of(program(f"#!/bin/sh\n{text}\n"), free_port)
    timeouts = PluginTimeouts(startup=0.5, grace=0.5)
    with pytest.raises(UserMistake, match=error):
        async with asyncio.timeout(10), hosted(spec, MemoryHost(), timeouts):
            pass


def test_the_config_argument_is_the_json_of_upstream() -> None:
    target = DeployTargetSpec(name="dev", labels={"env": "dev"}, config={"region": "eu"})
    spec = PluginSpec(
        name="p", url="file:///p", port=7001, config={"a": [1]}, deploy_targets=(target,)
    )
    assert entry_json(spec) == (
        '{"name": "p", "url": "file:///p", "port": 7001, "config": {"a": [1]}, "deployTargets": '
        '[{"name": "dev", "labels": {"env": "dev"}, "config": {"region": "eu"}}]}'
    )
    assert entry_json(PluginSpec(name="p", url="file:///p", port=1)) == (
        '{"name": "p", "url": "file:///p", "port": 1}'
    )


async def test_a_port_in_use_is_an_error(program: Program) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = f"plugin greeter cannot start: port {port} is in use by another program"
        with pytest.raises(UserMistake, match=error):
            async with asyncio.timeout(20), hosted(spec_of(program(), port), MemoryHost()):
                pass


@pytest.mark.slow
async def test_without_a_port_it_listens_on_a_free_one(
    program: Program, deployment: Deployment
) -> None:
    host = MemoryHost()
    host.tell(StageCommandKind.APPROVE, "ann")
    async with hosted(spec_of(program(), 0), host) as plugin:
        response = await plugin.ExecuteStage(executing(deployment, "GREET"))
        assert response.message == "Hello World"


COUNTING = f'''#!{sys.executable}
"""A plugin that counts its starts, by the SDK and as libraries do."""
from prometheus_client import Counter
from pipecd.sdk import Stage, StageContext, StagePlugin, StageResult, StartContext, serve

class Counting(StagePlugin):
    stages = (Stage("COUNT"),)

    async def prepare(self, start: StartContext) -> None:
        start.tally("starts_total", "Starts.", ("kind",)).add(kind="cold")
        Counter("library_starts_total", "Starts.").inc()

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()

if __name__ == "__main__":
    serve(Counting)
'''


@pytest.mark.slow
async def test_a_plugin_process_serves_its_metrics_on_its_admin_port(
    program: Program, free_port: int
) -> None:
    path = program(COUNTING)
    handlers = rpc_handlers(PLUGIN_SERVICE, MemoryHost())
    async with grpc_server([handlers], host="localhost", port=0, grace=0) as port:
        arguments = start_arguments(spec_of(path, free_port), piped=f"localhost:{port}")
        process = await asyncio.create_subprocess_exec(
            str(path), *arguments, "--log-encoding", "json", stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(30), httpx2.AsyncClient() as http:
                while "admin_port" not in (line := json.loads(await process.stderr.readline())):
                    pass
                page = (await http.get(f"http://localhost:{line['admin_port']}/metrics")).text
        finally:
            process.terminate()
            await process.communicate()
    assert 'starts_total{kind="cold"} 1.0' in page
    assert "library_starts_total 1.0" in page
    assert "process_cpu_seconds_total" in page
