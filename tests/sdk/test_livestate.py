# SPDX-License-Identifier: Apache-2.0
"""Live state and plan previews of a plugin become the messages of upstream's protocol."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.proto.model.livestate_pb2 import ApplicationLiveState, ResourceState
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest
from pipecd.proto.plugin.source_pb2 import DeploymentSource
from pipecd.sdk import (
    DeployTarget,
    Health,
    LiveContext,
    LiveState,
    LiveStatePlugin,
    PluginConfig,
    PluginEntry,
    Preview,
    PreviewContext,
    PreviewPlugin,
    Resource,
    Spec,
    StageContext,
    StagePlugin,
    StageResult,
    StartContext,
    SyncState,
    SyncStatus,
)
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.testing import MemoryHost, StageBench
from pipecd.wire.validation import check

CREATED = datetime(2026, 1, 2, tzinfo=UTC)


class TargetConfig(Spec):
    """The settings of a deploy target."""

    region: str


class VmPlugin(StagePlugin, LiveStatePlugin, PreviewPlugin):
    """Reports one resource for each target and health."""

    stages = ()
    config = PluginConfig(name="vm", deploy_target=TargetConfig)
    healths: Sequence[Health] = (Health.HEALTHY,)

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()

    async def live_state(self, look: LiveContext) -> LiveState:
        resources = [
            Resource(
                id=f"{target.name}-{i}",
                name=f"{look.application_name} in {target.settings(TargetConfig).region}",
                kind="vm",
                target=target.name,
                health=health,
                created_at=CREATED,
                metadata={"commit": look.source.commit},
            )
            for target in look.targets
            for i, health in enumerate(self.healths)
        ]
        return LiveState(resources, SyncState(SyncStatus.OUT_OF_SYNC, "differs", "- a\n+ b"))

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        before = change.running.commit if change.running else "nothing"
        return [
            Preview(target.name, f"{before} becomes {change.target.commit}", "+ b")
            for target in change.targets
        ]


ENTRY = PluginEntry("vm", {}, (DeployTarget("dev", {}, {"region": "eu"}),))
SOURCE = DeploymentSource(application_directory="/nowhere", commit_hash="c0ffee")


def request_for(*targets: str) -> GetLivestateRequest:
    return GetLivestateRequest(
        piped_id="p", application_id="a", application_name="shop",
        deploy_source=SOURCE, deploy_targets=targets,
    )  # fmt: skip


async def live_state_of(plugin: VmPlugin) -> GetLivestateResponse:
    response = await PluginServer(plugin, ENTRY, MemoryHost()).GetLivestate(request_for("dev"))
    check(response.application_live_state)
    check(response.sync_state)
    return response


async def test_a_live_state_becomes_a_valid_message() -> None:
    response = await live_state_of(VmPlugin())
    (resource,) = response.application_live_state.resources
    assert (resource.name, resource.deploy_target, resource.plugin_name) == ("shop in eu", "dev", "vm")  # fmt: skip
    assert (resource.created_at, resource.updated_at > resource.created_at) == (1767312000, True)
    assert (response.sync_state.status, response.sync_state.short_reason) == (3, "differs")


async def test_a_resource_that_progresses_is_an_unhealthy_one_that_says_so() -> None:
    plugin = VmPlugin()
    plugin.healths = (Health.PROGRESSING,)
    (resource,) = (await live_state_of(plugin)).application_live_state.resources
    assert resource.health_status == ResourceState.UNHEALTHY
    assert resource.health_description == "Progressing"


@pytest.mark.parametrize(
    ("healths", "health"),
    [
        pytest.param((), ApplicationLiveState.HEALTHY, id="no resources"),
        pytest.param((Health.HEALTHY, Health.HEALTHY), ApplicationLiveState.HEALTHY, id="all healthy"),
        pytest.param((Health.HEALTHY, Health.UNHEALTHY), ApplicationLiveState.OTHER, id="one unhealthy"),
        pytest.param((Health.HEALTHY, Health.PROGRESSING), ApplicationLiveState.OTHER, id="one progressing"),
        pytest.param((Health.UNKNOWN, Health.UNHEALTHY), ApplicationLiveState.UNKNOWN, id="one unknown"),
    ],
)  # fmt: skip
async def test_the_health_of_an_application(
    healths: Sequence[Health], health: ApplicationLiveState.Status.ValueType
) -> None:
    plugin = VmPlugin()
    plugin.healths = healths
    assert (await live_state_of(plugin)).application_live_state.health_status == health


async def test_plan_previews_become_messages() -> None:
    server = PluginServer(VmPlugin(), ENTRY, MemoryHost())
    request = GetPlanPreviewRequest(
        application_id="a",
        application_name="shop",
        piped_id="p",
        deploy_targets=["dev"],
        target_deployment_source=SOURCE,
    )
    (first,) = (await server.GetPlanPreview(request)).results
    assert (first.deploy_target, first.summary) == ("dev", "nothing becomes c0ffee")
    assert (first.details, first.diff_language) == (b"+ b", "diff")
    request.running_deployment_source.commit_hash = "0ld"
    (later,) = (await server.GetPlanPreview(request)).results
    assert later.summary == "0ld becomes c0ffee"


async def test_live_state_requires_configured_deploy_targets() -> None:
    server = PluginServer(VmPlugin(), ENTRY, MemoryHost())
    with pytest.raises(UserMistake, match="no deploy targets provided"):
        await server.GetLivestate(request_for())
    with pytest.raises(PipecdError, match="deploy target moon is not defined for plugin vm"):
        await server.GetLivestate(request_for("moon"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param(PluginEntry("vm"), "requires at least one deploy target", id="no target"),
        pytest.param(PluginEntry("vm", {}, (DeployTarget("dev", {}, {}),)), "deploy target dev: region: must be set", id="a target without its settings"),
    ],
)  # fmt: skip
def test_an_invalid_entry_is_reported_at_start(entry: PluginEntry, message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        PluginServer(VmPlugin(), entry, MemoryHost())


async def test_the_bench_calls_a_plugin_as_piped_does(tmp_path: Path) -> None:
    bench = StageBench(VmPlugin(), tmp_path, entry=ENTRY, config="kind: Application")
    state = await VmPlugin().live_state(bench.live_context())
    assert [resource.name for resource in state.resources] == ["tested in eu"]
    (preview,) = await VmPlugin().preview(bench.preview_context(running=bench.source))
    assert preview.summary == "c0ffee becomes c0ffee"
    assert bench.plan_context().target.config == b"kind: Application"


async def test_every_context_installs_tools(tmp_path: Path) -> None:
    bench = StageBench(VmPlugin(), tmp_path, entry=ENTRY)
    bench.host.tools["helm-3.8.2"] = tmp_path / "helm"
    for context in (bench.plan_context(), bench.live_context(), bench.preview_context()):
        assert await context.tool("helm", "3.8.2", "curl …") == tmp_path / "helm"


class MissingTool(VmPlugin):
    """Requires a tool at start that is not installed."""

    async def prepare(self, start: StartContext) -> None:
        await start.tool("helm", "1", "")


async def test_a_failed_prepare_is_reported() -> None:
    server = PluginServer(MissingTool(), ENTRY, MemoryHost())
    with pytest.raises(
        PipecdError, match="there is no tool helm-1 here; a test puts its path into `tools`"
    ):
        await server.prepare(AsyncExitStack())
