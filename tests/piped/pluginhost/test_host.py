# SPDX-License-Identifier: Apache-2.0
"""The plugin host: built-in, configured and external plugins, and their calls to piped."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from pipecd.config.application import ApplicationSpec
from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.config.unusable import Unusable
from pipecd.model.backoff import Backoff
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import NotFound, Unavailable
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.pluginhost import host
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.host import PluginHost, PluginRun
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.plugin import PluginNotStarted
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.pluginhost.tool_registry import ToolRegistry
from pipecd.plugins.wait.plugin import WaitPlugin
from pipecd.proto.model.analysis_pb2 import AnalysisResult
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin import host_pb2
from pipecd.sdk import StartContext
from servers.polling import eventually

OpenPlane = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def open_callbacks(plane: Any) -> AsyncGenerator[tuple[Callbacks, MetadataStore], None]:
    async with plane.piped.api() as api:
        metadata = MetadataStore(api)
        commands = CommandCache(api, interval=0.02)
        tools = ToolRegistry(plane.directory / "tools")
        yield Callbacks(api, commands=commands, metadata=metadata, tools=tools), metadata


async def new_deployment(plane: Any) -> Deployment:
    """A deployment of a new application with one stage, as the control plane knows it."""
    from pipecd.model.ids import new_id
    from pipecd.proto.model.deployment_pb2 import Commit, DeploymentTrigger
    from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest

    await plane.piped.add_repository("site", "file:///nowhere")
    application = await plane.application(await plane.piped.add_application("cart"))
    deployment = Deployment(
        id=new_id(),
        application_id=application.id,
        application_name="cart",
        piped_id=plane.piped.id,
        project_id=application.project_id,
        git_path=application.git_path,
        trigger=DeploymentTrigger(
            commit=Commit(hash="c", message="m", author="a", branch="main", created_at=1),
            timestamp=1,
        ),
    )
    await plane.cases.deployment_reports.create(deployment, by=plane.piped.caller)
    stage = PipelineStage(id="s1", name="WAIT", created_at=1, updated_at=1)
    await plane.cases.deployment_reports.report_planned(
        ReportDeploymentPlannedRequest(deployment_id=deployment.id, stages=[stage]),
        by=plane.piped.caller,
    )
    return await plane.cases.deployments.get(deployment.id, by=plane.piped.caller)


async def test_built_in_stage_plugins_need_no_configuration(
    open_plane: OpenPlane,
) -> None:
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        async with PluginHost.start([], callbacks=callbacks) as registry:
            assert registry.names == ("analysis", "scriptrun", "wait", "waitapproval")
            assert registry.for_stage("WAIT", ApplicationSpec()).name == "wait"
        named = PluginSpec(name="pause", url="builtin://wait")
        async with PluginHost.start([named], callbacks=callbacks) as registry:
            assert registry.names == ("pause", "analysis", "scriptrun", "wait", "waitapproval")
            assert registry.for_stage("WAIT", ApplicationSpec()).name == "pause"


class Shy(WaitPlugin):
    """Starts with its third attempt."""

    attempts: ClassVar[list[str]] = []

    async def prepare(self, start: StartContext) -> None:
        self.attempts.append("attempt")
        if len(self.attempts) < 3:
            # Not an error that a plugin should raise.
            raise KeyError("token")


async def test_plugins_that_cannot_start_are_named_with_the_reason(
    open_plane: OpenPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_RETRY", Backoff(first=0.01, longest=0.01))
    Shy.attempts.clear()
    specs = [PluginSpec(name="dance"), PluginSpec(name="shy"), PluginSpec(name="wait")]
    unusable = [Unusable("moon", "far", "too far"), Unusable("moon", "", "too far")]
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        start = PluginHost.start(
            specs,
            callbacks=callbacks,
            unusable=unusable,
            builtins={"shy": Shy, "wait": WaitPlugin},
        )
        async with start as registry:
            reasons = {(each.plugin, each.target): each.reason for each in registry.failures}
            assert reasons["dance", ""].startswith("there is no built-in plugin dance yet; use one")
            assert reasons["moon", "far"] == reasons["moon", ""] == "too far"
            with pytest.raises(PluginNotStarted, match="plugin dance is not running: there is no"):
                registry.named("dance")
            await eventually(lambda: "shy" in registry.names)
            assert registry.names == ("shy", "wait")
            assert len(Shy.attempts) == 3
            assert {each.plugin for each in registry.failures} == {"dance", "moon"}


async def test_what_the_configuration_makes_unusable_is_logged(open_plane: OpenPlane) -> None:
    unusable = [Unusable("moon", "far", "too far"), Unusable("sun", "", "too hot")]
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        with capture_logs() as logs:
            async with PluginHost.start([], callbacks=callbacks, unusable=unusable):
                pass
    logged = [
        (entry["plugin"], entry["deploy_target"], entry["error"])
        for entry in logs
        if entry["log_level"] == "error"
    ]
    assert logged == [("moon", "far", "too far"), ("sun", "", "too hot")]


async def test_a_long_run_resets_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_RETRY", Backoff(first=0.01, longest=1.0))
    monkeypatch.setattr(host, "_STABLE_AFTER", 0.05)
    runs = iter((None, None, 0.2, None, 0.0))

    async def start(lifetime: AsyncExitStack) -> None:
        seconds = next(runs, None)
        if seconds is None:
            # An attempt that takes long is no long run.
            await asyncio.sleep(0.1)
            raise Unavailable("it does not start")
        tasks = await lifetime.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(fail_after(seconds))

    async def fail_after(seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise Unavailable("it has ended")

    with capture_logs() as logs:
        run = asyncio.create_task(PluginRun("p", start, PluginRegistry()).run())
        await eventually(lambda: len(logs) >= 5)
        run.cancel()
    assert [entry["retry_in"] for entry in logs[:5]] == [0.01, 0.02, 0.01, 0.02, 0.04]


async def test_a_plugin_that_takes_long_to_start_does_not_hold_up_the_others(
    open_plane: OpenPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_STARTED_WITHIN", 0.05)
    release = asyncio.Event()

    class Slow(WaitPlugin):
        async def prepare(self, start: StartContext) -> None:
            await release.wait()

    builtins = {"slow": Slow, "wait": WaitPlugin}
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        specs = [PluginSpec(name="slow")]
        async with PluginHost.start(specs, callbacks=callbacks, builtins=builtins) as registry:
            assert registry.names == ("wait",)
            with pytest.raises(PluginNotStarted, match="it is being started") as caught:
                registry.named("slow")
            assert caught.value.is_temporary
            release.set()
            await eventually(lambda: registry.names == ("slow", "wait"))
            assert not registry.failures


async def test_a_platform_gets_its_targets_from_the_configuration(
    open_plane: OpenPlane, platform: Any, deployment: Deployment
) -> None:
    spec = PluginSpec(
        name="platform",
        deploy_targets=(DeployTargetSpec(name="dev", config={"region": "asia"}),),
    )
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        deployment = await new_deployment(plane)
        deployment.deploy_targets_by_plugin["platform"].deploy_targets.append("dev")
        start = PluginHost.start(
            [spec], callbacks=callbacks, builtins={"platform": lambda: platform}
        )
        async with start as registry:
            plugin = registry.named("platform")
            request = pb.ExecuteStageRequest(
                input=pb.ExecutePluginInput(
                    deployment=deployment, stage=PipelineStage(id="s1", name="SYNC")
                )
            )
            assert (await plugin.ExecuteStage(request)).status == StageStatus.SUCCESS
        # The end of a log is left to the scheduler.
        (end,) = callbacks.take_unsent(deployment.id, "s1")
        assert [block.log for block in end.blocks] == ["dev in asia", "synced"]
        assert end.completed


@pytest.mark.slow
async def test_an_external_and_a_built_in_plugin_run_side_by_side(
    open_plane: OpenPlane, program: Callable[..., Path], free_port: int
) -> None:
    spec = PluginSpec(name="greeter", url=f"file://{program()}", port=free_port)
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, metadata):
        deployment = await new_deployment(plane)
        async with PluginHost.start([spec], callbacks=callbacks) as registry:
            assert registry.for_stage("GREET", ApplicationSpec()).name == "greeter"
            commands = callbacks._commands
            await plane.cases.deployments.approve(deployment.id, "s1", by=plane.admin)
            request = pb.ExecuteStageRequest(
                input=pb.ExecutePluginInput(
                    deployment=deployment,
                    stage=PipelineStage(id="s1", name="GREET", created_at=1, updated_at=1),
                )
            )
            refreshing = asyncio.ensure_future(commands.run())  # type: ignore[attr-defined]
            with metadata.open(deployment):
                response = await registry.named("greeter").ExecuteStage(request)
            refreshing.cancel()
        assert response.message == "Hello World"
        stored = await plane.cases.deployments.get(deployment.id, by=plane.piped.caller)
        assert dict(stored.stages[0].metadata) == {"greeted": "yes"}


async def test_metadata_exists_for_running_deployments_only(open_plane: OpenPlane) -> None:
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, metadata):
        deployment = await new_deployment(plane)
        deployment.metadata_v2.shared.keyValues["DeploymentNotification"] = "{}"
        request = host_pb2.GetStageMetadataRequest(
            deployment_id=deployment.id, stage_id="s1", key="k"
        )
        with pytest.raises(
            NotFound, match=f"metadata store not found for deployment {deployment.id}"
        ):
            await callbacks.GetStageMetadata(request)
        with metadata.open(deployment):
            assert not (await callbacks.GetStageMetadata(request)).found
            await callbacks.PutStageMetadata(
                host_pb2.PutStageMetadataRequest(
                    deployment_id=deployment.id, stage_id="s1", key="k", value=""
                )
            )
            assert (await callbacks.GetStageMetadata(request)).found
            for key in ("one", "two"):
                await callbacks.PutDeploymentPluginMetadata(
                    host_pb2.PutDeploymentPluginMetadataRequest(
                        deployment_id=deployment.id, plugin_name="p", key=key, value=key
                    )
                )
            # A first-generation piped stores metadata of its platform with the deployment.
            deployment.metadata["canary-resources"] = "v0"
            adopted = host_pb2.GetDeploymentPluginMetadataRequest(
                deployment_id=deployment.id, plugin_name="p", key="canary-resources"
            )
            assert (await callbacks.GetDeploymentPluginMetadata(adopted)).value == "v0"
            shared = host_pb2.GetDeploymentSharedMetadataRequest(
                deployment_id=deployment.id, key="DeploymentNotification"
            )
            assert (await callbacks.GetDeploymentSharedMetadata(shared)).value == "{}"
        stored = await plane.cases.deployments.get(deployment.id, by=plane.piped.caller)
        assert dict(stored.stages[0].metadata) == {"k": ""}
        assert dict(stored.metadata_v2.plugins["p"].keyValues) == {"one": "one", "two": "two"}


async def test_shared_objects_belong_to_the_application(open_plane: OpenPlane) -> None:
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        deployment = await new_deployment(plane)
        request = host_pb2.GetApplicationSharedObjectRequest(
            application_id=deployment.application_id, plugin_name="p", key="k"
        )
        with pytest.raises(NotFound):
            await callbacks.GetApplicationSharedObject(request)
        await callbacks.PutApplicationSharedObject(
            host_pb2.PutApplicationSharedObjectRequest(
                application_id=deployment.application_id, plugin_name="p", key="k", object=b"\0x"
            )
        )
        assert (await callbacks.GetApplicationSharedObject(request)).object == b"\0x"


async def test_the_analysis_result_of_a_v0_piped_is_read(open_plane: OpenPlane) -> None:
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        application = (await new_deployment(plane)).application_id
        request = host_pb2.GetApplicationSharedObjectRequest(
            application_id=application, plugin_name="analysis", key="latest-analysis-result"
        )
        with pytest.raises(NotFound):
            await callbacks.GetApplicationSharedObject(request)
        older = AnalysisResult(start_time=1_700_000_000)
        await plane.cases.objects.put_analysis_result(application, older, by=plane.piped.caller)
        result = (await callbacks.GetApplicationSharedObject(request)).object
        assert result == b'{"start_time":1700000000}'
        await callbacks.PutApplicationSharedObject(
            host_pb2.PutApplicationSharedObjectRequest(
                application_id=application, plugin_name="analysis", key=request.key, object=b"newer"
            )
        )
        assert (await callbacks.GetApplicationSharedObject(request)).object == b"newer"


async def test_secrets_are_masked_in_stage_logs(open_plane: OpenPlane) -> None:
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        deployment = await new_deployment(plane)
        callbacks.masks.add(deployment.id, ["hunter22"])
        for index, line in enumerate(
            ["password hunter22", "a hunt", "er22!", "YSBodW50", "ZXIyMg=="]
        ):
            block = LogBlock(index=index + 1, log=line, created_at=1)
            await callbacks.ReportStageLogs(
                host_pb2.ReportStageLogsRequest(
                    deployment_id=deployment.id, stage_id="s1", blocks=[block]
                )
            )
        (part,) = (await plane.cases.logs.of_deployment(deployment.id, by=plane.admin)).values()
        shown = [block.log for block in part.blocks]
        assert shown == ["password ******", "a ******", "******!", "YSB******", "******=="]


class Careful(WaitPlugin):
    """Holds something while it runs."""

    held: ClassVar[list[str]] = []

    async def prepare(self, start: StartContext) -> None:
        self.held.append("held")
        start.lifetime.callback(self.held.clear)


async def test_resources_of_a_plugin_are_closed_with_the_piped(open_plane: OpenPlane) -> None:
    async with open_plane() as plane, open_callbacks(plane) as (callbacks, _):
        builtins = {"wait": Careful}
        async with PluginHost.start([], callbacks=callbacks, builtins=builtins):
            assert Careful.held
        assert not Careful.held
