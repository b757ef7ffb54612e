# SPDX-License-Identifier: Apache-2.0
"""A plugin behaves the same in this process and over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest

from pipecd.config.piped import PluginSpec
from pipecd.model.deployment import ManualOperation, StageStatus, SyncStrategy
from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.piped.pluginhost.callbacks import LiveStateChanges
from pipecd.piped.pluginhost.host import LIVE_STATE_CHANGES, PLUGIN_SERVICE
from pipecd.piped.pluginhost.local import LocalPlugin
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.process import PluginInstance, PluginLaunch, PluginTimeouts
from pipecd.piped.pluginhost.remote import RemotePlugin
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.host_pb2 import ListStageCommandsRequest
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest
from pipecd.proto.plugin.source_pb2 import DeploymentSource
from pipecd.sdk import PluginEntry
from pipecd.sdk.host_client import RemoteHost
from pipecd.sdk.process import DEPLOYMENT_SERVICE
from pipecd.sdk.serving import PluginServer, rpc_handlers
from pipecd.sdk.testing import MemoryHost
from pipecd.wire.server import grpc_server

SOURCE = DeploymentSource(application_directory="/nowhere", commit_hash="c0ffee")


@pytest.fixture
def host() -> MemoryHost:
    return MemoryHost()


@pytest.fixture(params=["in this process", "over gRPC"])
async def plugin(
    request: pytest.FixtureRequest, platform: Any, entry: PluginEntry, host: MemoryHost
) -> AsyncIterator[Plugin]:
    async with AsyncExitStack() as opened:
        if request.param == "in this process":
            yield LocalPlugin(PluginServer(platform, entry, host))
            return
        handlers = rpc_handlers(PLUGIN_SERVICE, host)
        callbacks = await opened.enter_async_context(
            grpc_server([handlers], host="127.0.0.1", port=0, grace=0)
        )
        back = await opened.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{callbacks}"))
        server = PluginServer(platform, entry, RemoteHost(back))
        port = await opened.enter_async_context(
            grpc_server(
                [rpc_handlers(DEPLOYMENT_SERVICE, server)], host="127.0.0.1", port=0, grace=0
            )
        )
        channel = await opened.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        instance = PluginInstance(
            PluginLaunch(PluginSpec(name="platform"), (), ""), PluginTimeouts(), lambda: None
        )
        instance._channel = channel

        async def connect() -> PluginInstance:
            return instance

        yield RemotePlugin("platform", connect)


def planning(deployment: Deployment, **sources: DeploymentSource) -> pb.PlanPluginInput:
    return pb.PlanPluginInput(deployment=deployment, target_deployment_source=SOURCE, **sources)


def executing(deployment: Deployment, stage: str) -> pb.ExecuteStageRequest:
    return pb.ExecuteStageRequest(
        input=pb.ExecutePluginInput(
            deployment=deployment,
            stage=PipelineStage(id="s1", name=stage, created_at=1, updated_at=1),
            target_deployment_source=SOURCE,
        )
    )


async def test_the_stages_of_a_plugin(plugin: Plugin) -> None:
    response = await plugin.FetchDefinedStages(pb.FetchDefinedStagesRequest())
    assert list(response.stages) == ["SYNC", "SYNC_ROLLBACK"]


async def test_the_versions_of_a_deployment(plugin: Plugin, deployment: Deployment) -> None:
    response = await plugin.DetermineVersions(
        pb.DetermineVersionsRequest(input=planning(deployment))
    )
    (version,) = response.versions
    assert (version.version, version.name, version.url) == ("c0ffee", "web", "https://example.com")


async def test_the_strategy_it_chooses(plugin: Plugin, deployment: Deployment) -> None:
    first = await plugin.DetermineStrategy(pb.DetermineStrategyRequest(input=planning(deployment)))
    assert (first.sync_strategy, first.unsupported) == (SyncStrategy.PIPELINE, False)
    running = DeploymentSource(application_directory="/", commit_hash="0ld")
    later = await plugin.DetermineStrategy(
        pb.DetermineStrategyRequest(input=planning(deployment, running_deployment_source=running))
    )
    assert (later.sync_strategy, later.summary) == (SyncStrategy.QUICK_SYNC, "from 0ld")


@pytest.mark.parametrize("rollback", [True, False])
async def test_the_stages_of_a_quick_sync(plugin: Plugin, rollback: bool) -> None:
    request = pb.BuildQuickSyncStagesRequest(rollback=rollback)
    stages = (await plugin.BuildQuickSyncStages(request)).stages
    assert [(s.name, s.rollback) for s in stages] == [
        ("SYNC", False),
        *([("SYNC_ROLLBACK", True)] if rollback else []),
    ]
    assert stages[0].available_operation == ManualOperation.NONE
    assert stages[0].created_at == stages[0].updated_at > 0


async def test_the_stages_of_a_pipeline(plugin: Plugin) -> None:
    config = pb.BuildPipelineSyncStagesRequest.StageConfig(name="SYNC", desc="go", index=3)
    response = await plugin.BuildPipelineSyncStages(
        pb.BuildPipelineSyncStagesRequest(stages=[config])
    )
    assert [(s.name, s.index, s.desc) for s in response.stages] == [("SYNC", 3, "go")]


async def test_a_stage_runs_with_its_targets_and_its_log(
    plugin: Plugin, deployment: Deployment, host: MemoryHost
) -> None:
    response = await plugin.ExecuteStage(executing(deployment, "SYNC"))
    assert (response.status, response.message) == (StageStatus.SUCCESS, "synced")
    assert host.lines == ["dev in eu", "synced"]
    assert host.is_log_completed


async def test_a_stopped_call_stops_the_stage(
    plugin: Plugin, deployment: Deployment, platform: Any, host: MemoryHost
) -> None:
    call = asyncio.ensure_future(plugin.ExecuteStage(executing(deployment, "SYNC_ROLLBACK")))
    async with asyncio.timeout(5):
        await platform.started.wait()
        call.cancel()
        await platform.stopped.wait()
    await asyncio.wait({call})
    assert call.cancelled()
    assert not host.is_log_completed


@pytest.mark.parametrize(
    ("message", "error"),
    [
        pytest.param("explode", "plugin platform failed: ZeroDivisionError: a bug", id="a bug"),
        pytest.param("refuse", "there is no manifest; add one", id="a mistake of the user"),
    ],
)
async def test_an_error_names_its_cause(
    plugin: Plugin, deployment: Deployment, message: str, error: str
) -> None:
    deployment.trigger.commit.message = message
    with pytest.raises(PipecdError, match=error):
        await plugin.DetermineVersions(pb.DetermineVersionsRequest(input=planning(deployment)))


async def test_a_deployment_without_targets_is_refused(
    plugin: Plugin, deployment: Deployment
) -> None:
    deployment.deploy_targets_by_plugin.clear()
    response = await plugin.ExecuteStage(executing(deployment, "SYNC"))
    assert (response.status, response.message) == (
        StageStatus.FAILURE,
        "no deploy targets provided; give the application one of the plugin platform with"
        " pipectl application edit --deploy-target platform=dev",
    )


async def test_a_target_that_is_not_configured_is_refused(
    plugin: Plugin, deployment: Deployment
) -> None:
    deployment.deploy_targets_by_plugin["platform"].deploy_targets.append("prod")
    with pytest.raises(PipecdError, match="deploy target prod is not defined for plugin platform"):
        await plugin.DetermineVersions(pb.DetermineVersionsRequest(input=planning(deployment)))


async def test_a_call_that_it_does_not_implement(plugin: Plugin) -> None:
    with pytest.raises(Unsupported):
        await plugin.GetLivestate(GetLivestateRequest())
    with pytest.raises(Unsupported):
        await plugin.GetPlanPreview(GetPlanPreviewRequest())


async def test_neither_side_sees_later_changes_of_the_other(
    plugin: Plugin, deployment: Deployment
) -> None:
    request = pb.DetermineVersionsRequest(input=planning(deployment))
    before = request.SerializeToString()
    response = await plugin.DetermineVersions(request)
    response.versions[0].version = "changed"
    assert request.SerializeToString() == before
    again = await plugin.DetermineVersions(request)
    assert again.versions[0].version == "c0ffee"


def test_a_platform_needs_a_target(platform: Any, host: MemoryHost) -> None:
    with pytest.raises(UserMistake, match="requires at least one deploy target"):
        PluginServer(platform, PluginEntry("platform"), host)


async def test_a_plugin_process_reports_live_state_changes_without_waiting(
    host: MemoryHost,
) -> None:
    changes = rpc_handlers(LIVE_STATE_CHANGES, LiveStateChanges(host))
    async with (
        grpc_server([changes], host="127.0.0.1", port=0, grace=0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        remote = RemoteHost(channel)
        remote.live_state_changed(["shop"])
        remote.live_state_changed(["cart", "shop"])
        async with asyncio.timeout(5):
            await host.until(lambda: "cart" in host.changed_applications)
        # Changes at the same time are sent in one call.
        assert host.changed_applications == ["cart", "shop"]
        remote.live_state_changed(["blog"])
        async with asyncio.timeout(5):
            await host.until(lambda: "blog" in host.changed_applications)


async def test_a_piped_without_live_state_changes_is_served_all_the_same(
    host: MemoryHost,
) -> None:
    async with (
        grpc_server(
            [rpc_handlers(PLUGIN_SERVICE, host)], host="127.0.0.1", port=0, grace=0
        ) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        remote = RemoteHost(channel)
        remote.live_state_changed(["shop"])
        response = await remote.ListStageCommands(
            ListStageCommandsRequest(deployment_id="d", stage_id="s")
        )
        assert list(response.commands) == []


async def test_a_stage_of_a_plugin_that_ends_gets_unavailable_for_its_calls() -> None:
    channel = grpc.aio.insecure_channel("127.0.0.1:1")
    await channel.close()
    request = ListStageCommandsRequest(deployment_id="d", stage_id="s")
    with pytest.raises(Unavailable, match="the plugin ends"):
        await RemoteHost(channel).ListStageCommands(request)
