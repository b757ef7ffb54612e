# SPDX-License-Identifier: Apache-2.0
"""A plugin process that dies or hangs is restarted, and its callers learn why."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec
from pipecd.config.piped import PluginSpec
from pipecd.model.errors import Unavailable
from pipecd.piped.pluginhost.host import PluginHost
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.plugin import Plugin, PluginDied
from pipecd.piped.pluginhost.process import PluginTimeouts
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.sdk.testing import MemoryHost

pytestmark = pytest.mark.slow

Program = Callable[..., Path]

MORTAL = f'''#!{sys.executable}
"""A plugin with many ways to go wrong."""
import asyncio, os, signal, subprocess, sys, time
from pipecd.sdk import Stage, StageContext, StagePlugin, StageResult, serve

class Mortal(StagePlugin):
    stages = (Stage("DIE"), Stage("EXIT"), Stage("HANG"), Stage("FLOOD"), Stage("PID"), Stage("SSH"))

    async def execute(self, stage: StageContext) -> StageResult:
        match stage.name:
            case "DIE":
                print("goodbye, cruel world", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            case "EXIT":
                subprocess.Popen(["sleep", "60"])
                os._exit(4)
            case "HANG":
                stage.log.info("hanging")
                await asyncio.sleep(0.3)
                time.sleep(60)
            case "FLOOD":
                for i in range(200_000):
                    print("flood", i)
                sys.stdout.flush()
            case "SSH":
                return StageResult.succeeded(stage.host.git_variables("x")["GIT_SSH_COMMAND"])
        return StageResult.succeeded(str(os.getpid()))

if __name__ == "__main__":
    serve(Mortal)
'''


@asynccontextmanager
async def hosted(
    path: Path, *names: str, timeouts: PluginTimeouts | None = None, host: MemoryHost | None = None
) -> AsyncGenerator[PluginRegistry, None]:
    specs = [PluginSpec(name=name, url=f"file://{path}") for name in names or ("mortal",)]
    callbacks: Any = host or MemoryHost()
    callbacks.masks = SecretMasks()
    callbacks.masks.add("d1", ["cruel"])
    start = PluginHost.start(specs, callbacks=callbacks, timeouts=timeouts)
    async with asyncio.timeout(50), start as registry:
        yield registry


async def execute(plugin: Plugin, deployment: Deployment, stage: str) -> str:
    given = pb.ExecutePluginInput(
        deployment=deployment,
        stage=PipelineStage(id="s1", name=stage, created_at=1, updated_at=1),
    )
    return (await plugin.ExecuteStage(pb.ExecuteStageRequest(input=given))).message


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        pytest.param("DIE", r"plugin mortal was ended by SIGKILL, its last output was:\n(.*\n)*goodbye, \*{6} world", id="it is killed"),
        pytest.param("EXIT", r"plugin mortal ended with exit code 4, its last output was:\n", id="it ends and leaves a child"),
    ],
)  # fmt: skip
async def test_a_call_fails_when_the_process_dies_and_the_next_one_reaches_a_new_process(
    program: Program, deployment: Deployment, stage: str, error: str
) -> None:
    async with hosted(program(MORTAL)) as registry:
        plugin = registry.named("mortal")
        first = await execute(plugin, deployment, "PID")
        with pytest.raises(PluginDied, match=error) as death:
            await execute(plugin, deployment, stage)
        assert death.value.plugin == "mortal"
        assert isinstance(death.value, Unavailable)
        assert await execute(plugin, deployment, "PID") != first


async def after_a_cancellation(call: Coroutine[Any, Any, str]) -> str:
    """As a TaskGroup leaves its parent in which a task failed while it was being left."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return await call


async def test_a_process_that_hangs_is_restarted(program: Program, deployment: Deployment) -> None:
    timeouts = PluginTimeouts(probe_interval=1.0, unresponsive=3.0, grace=0.2)
    async with hosted(program(MORTAL), timeouts=timeouts) as registry:
        plugin = registry.named("mortal")
        with pytest.raises(PluginDied, match=r"plugin mortal stopped answering for \ds and was"):
            await asyncio.create_task(after_a_cancellation(execute(plugin, deployment, "HANG")))
        assert await execute(plugin, deployment, "PID")


async def test_secrets_in_the_output_are_masked_in_the_log_of_piped(
    program: Program, deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    async with hosted(program(MORTAL)) as registry:
        with pytest.raises(PluginDied):
            await execute(registry.named("mortal"), deployment, "DIE")
    assert "goodbye, ****** world" in capfd.readouterr().err


async def test_git_of_a_plugin_process_uses_the_ssh_settings_of_piped(
    program: Program, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, variables = MemoryHost(), {"GIT_SSH_COMMAND": "ssh -F of-piped", "PASSWORD": "of piped"}
    monkeypatch.setattr(host, "git_variables", lambda _: variables)
    async with hosted(program(MORTAL), host=host) as registry:
        output = await execute(registry.named("mortal"), deployment, "SSH")
    assert output == "ssh -F of-piped"


async def test_too_much_output_is_dropped(
    program: Program, deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    async with hosted(program(MORTAL)) as registry:
        assert await execute(registry.named("mortal"), deployment, "FLOOD")
    assert capfd.readouterr().err.count("flood") < 50_000


async def test_a_cancelled_call_does_not_restart_the_process(
    program: Program, deployment: Deployment
) -> None:
    host = MemoryHost()
    async with hosted(program(), host=host) as registry:
        plugin = registry.named("mortal")
        running = asyncio.ensure_future(execute(plugin, deployment, "LINGER"))
        await host.until(lambda: bool(host.lines))
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        assert await plugin.FetchDefinedStages(pb.FetchDefinedStagesRequest())


async def test_two_plugins_of_one_platform_run_side_by_side_and_the_application_chooses(
    program: Program, deployment: Deployment
) -> None:
    async with hosted(program(MORTAL), "blue", "green") as registry:
        pids = {
            name: int(
                await execute(
                    registry.for_stage("PID", ApplicationSpec(plugins={name: {}})),
                    deployment,
                    "PID",
                )
            )
            for name in ("blue", "green")
        }
        assert pids["blue"] != pids["green"]
        os.kill(pids["blue"], signal.SIGKILL)
        again = await execute(registry.named("green"), deployment, "PID")
        assert int(again) == pids["green"]


STUBBORN = """#!/bin/sh
trap '' TERM
exec {program} "$@"
"""


async def test_all_processes_are_stopped_at_once_and_killed_after_the_grace_period(
    program: Program, tmp_path: Path, deployment: Deployment
) -> None:
    (tmp_path / "mortal.py").write_text(
        MORTAL.replace("    serve(Mortal)", "    import signal\n    signal.signal = lambda *a: None\n"
        "    asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = lambda *a: None\n"
        "    serve(Mortal)")
    )  # fmt: skip
    (tmp_path / "mortal.py").chmod(0o755)
    path = program(STUBBORN.format(program=tmp_path / "mortal.py"))
    timeouts = PluginTimeouts(grace=2.0)
    loop = asyncio.get_running_loop()
    async with hosted(path, "one", "two", "three", timeouts=timeouts) as registry:
        pids = [
            int(await execute(registry.named(name), deployment, "PID"))
            for name in registry.names[:3]
        ]
        began = loop.time()
    assert 2.0 <= loop.time() - began < 5.9
    assert not any(is_there(pid) for pid in pids)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
