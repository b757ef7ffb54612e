# SPDX-License-Identifier: Apache-2.0
"""A plugin looks at its platform and piped hears it in upstream's words."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.proto.model.livestate_pb2 import ApplicationLiveState
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

BORN = datetime(2026, 1, 2, tzinfo=UTC)


class Place(Spec):
    """Where the plugin deploys to."""

    region: str


class Watcher(StagePlugin, LiveStatePlugin, PreviewPlugin):
    """Sees one resource at each target."""

    stages = ()
    config = PluginConfig(name="watcher", deploy_target=Place)
    healths: Sequence[Health] = (Health.HEALTHY,)

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()

    async def live_state(self, look: LiveContext) -> LiveState:
        resources = [
            Resource(
                id=f"{target.name}-{i}",
                name=f"{look.application_name} in {target.settings(Place).region}",
                kind="vm",
                target=target.name,
                health=health,
                created_at=BORN,
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


ENTRY = PluginEntry("watcher", {}, (DeployTarget("dev", {}, {"region": "eu"}),))
SOURCE = DeploymentSource(application_directory="/nowhere", commit_hash="c0ffee")


def asked(*targets: str) -> GetLivestateRequest:
    return GetLivestateRequest(
        piped_id="p", application_id="a", application_name="shop",
        deploy_source=SOURCE, deploy_targets=targets,
    )  # fmt: skip


async def look(plugin: Watcher) -> GetLivestateResponse:
    answer = await PluginServer(plugin, ENTRY, MemoryHost()).GetLivestate(asked("dev"))
    check(answer.application_live_state)
    check(answer.sync_state)
    return answer


async def test_what_runs_is_told_with_all_that_piped_needs() -> None:
    answer = await look(Watcher())
    (resource,) = answer.application_live_state.resources
    assert (resource.name, resource.deploy_target, resource.plugin_name) == ("shop in eu", "dev", "watcher")  # fmt: skip
    assert (resource.created_at, resource.updated_at > resource.created_at) == (1767312000, True)
    assert (answer.sync_state.status, answer.sync_state.short_reason) == (3, "differs")


@pytest.mark.parametrize(
    ("healths", "whole"),
    [
        pytest.param((), ApplicationLiveState.HEALTHY, id="nothing ails"),
        pytest.param((Health.HEALTHY, Health.HEALTHY), ApplicationLiveState.HEALTHY, id="all are well"),
        pytest.param((Health.HEALTHY, Health.UNHEALTHY), ApplicationLiveState.OTHER, id="one is ill"),
        pytest.param((Health.UNKNOWN, Health.UNHEALTHY), ApplicationLiveState.UNKNOWN, id="one is not known"),
    ],
)  # fmt: skip
async def test_the_health_of_the_whole(
    healths: Sequence[Health], whole: ApplicationLiveState.Status.ValueType
) -> None:
    plugin = Watcher()
    plugin.healths = healths
    assert (await look(plugin)).application_live_state.health_status == whole


async def test_what_a_change_would_do_is_told() -> None:
    server = PluginServer(Watcher(), ENTRY, MemoryHost())
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


async def test_a_look_needs_targets_that_are_known() -> None:
    server = PluginServer(Watcher(), ENTRY, MemoryHost())
    with pytest.raises(UserMistake, match="no deploy targets provided"):
        await server.GetLivestate(asked())
    with pytest.raises(PipecdError, match="deploy target moon is not defined for plugin watcher"):
        await server.GetLivestate(asked("moon"))


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        pytest.param(PluginEntry("watcher"), "requires at least one deploy target", id="no target"),
        pytest.param(PluginEntry("watcher", {}, (DeployTarget("dev", {}, {}),)), "deploy target dev: region: must be set", id="a target without its settings"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_found_at_the_start(entry: PluginEntry, told: str) -> None:
    with pytest.raises(UserMistake, match=told):
        PluginServer(Watcher(), entry, MemoryHost())


async def test_the_bench_asks_as_piped_does(tmp_path: Path) -> None:
    bench = StageBench(Watcher(), tmp_path, entry=ENTRY, config="kind: Application")
    state = await Watcher().live_state(bench.live_context())
    assert [resource.name for resource in state.resources] == ["tested in eu"]
    (preview,) = await Watcher().preview(bench.preview_context(running=bench.source))
    assert preview.summary == "c0ffee becomes c0ffee"
    assert bench.plan_context().target.config == b"kind: Application"


async def test_every_context_brings_tools(tmp_path: Path) -> None:
    bench = StageBench(Watcher(), tmp_path, entry=ENTRY)
    bench.host.tools["helm-3.8.2"] = tmp_path / "helm"
    for context in (bench.plan_context(), bench.live_context(), bench.preview_context()):
        assert await context.tool("helm", "3.8.2", "curl …") == tmp_path / "helm"


class Unprepared(Watcher):
    """Misses something when it starts."""

    async def prepare(self, start: StartContext) -> None:
        await start.tool("helm", "1", "")


async def test_a_preparation_that_fails_is_told() -> None:
    server = PluginServer(Unprepared(), ENTRY, MemoryHost())
    with pytest.raises(PipecdError, match="the test did not put helm-1 into `tools`"):
        await server.prepare(AsyncExitStack())
