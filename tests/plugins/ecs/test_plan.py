# SPDX-License-Identifier: Apache-2.0
"""Planning and plan preview, which need no account."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.ecs.plugin import EcsPlugin
from pipecd.sdk import (
    DISPLAY_KEY,
    DeployTarget,
    PluginEntry,
    RequestedStage,
    SyncStrategy,
    UserMistake,
    Version,
)
from pipecd.sdk.testing import StageBench

QUICK, PIPELINE = SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE


def commit(
    directory: Path, *images: str, kind: str = "Application", service: dict[str, Any] | None = None
) -> StageBench:
    directory.mkdir()
    containers = [
        {"name": f"c{number}", "image": image} for number, image in enumerate(images) if image
    ]
    document = {"family": "web", "containerDefinitions": containers}
    (directory / "taskdef.json").write_text(json.dumps(document))
    given = {}
    if service is not None:
        (directory / "service.yaml").write_text(json.dumps(service))
        given = {"serviceDefinitionFile": "service.yaml"}
    section = {"input": given}
    spec = {"plugins": {"ecs": section}} if kind == "Application" else section
    config = {"apiVersion": "pipecd.dev/v1beta1", "kind": kind, "spec": spec}
    entry = PluginEntry("ecs", {}, (DeployTarget("aws", {}, {"region": "eu-west-1"}),))
    return StageBench(EcsPlugin(), directory, config=json.dumps(config), entry=entry)


async def test_versions_are_the_images(tmp_path: Path) -> None:
    bench = commit(tmp_path / "a", "r.io:5000/shop/web:v1", "db@sha256:ab", "r.io:5000/shop/web:v1")
    plugin: Any = bench.plugin
    assert await plugin.versions(bench.plan_context()) == [
        Version("v1", name="web", url="r.io:5000/shop/web:v1"),
        Version("sha256:ab", name="db", url="db@sha256:ab"),
    ]


CHANGES: dict[str, tuple[list[str], list[str], SyncStrategy, str]] = {
    "nothing": (
        ["web:v1"],
        ["web:v1"],
        QUICK,
        "Quick sync because no container image change was detected",
    ),
    "a tag": (
        ["a/web:v1"],
        ["b/web:v2"],
        PIPELINE,
        "Sync progressively because of updating image web from v1 to v2",
    ),
    "another image": (
        ["web:v1"],
        ["shop:v1"],
        PIPELINE,
        "Sync progressively because of updating image web:v1 to shop:v1",
    ),
    "containers": (
        ["web:v1", "old:v1", ""],
        ["web:v1", "", "new:v1"],
        PIPELINE,
        "Sync progressively because of updating added container c2 with image new:v1, "
        "removed container c1",
    ),
}


@pytest.mark.parametrize(("before", "after", "strategy", "summary"), CHANGES.values(), ids=CHANGES)
async def test_the_strategy_for(
    tmp_path: Path, before: list[str], after: list[str], strategy: SyncStrategy, summary: str
) -> None:
    running, target = commit(tmp_path / "a", *before), commit(tmp_path / "b", *after)
    plugin: Any = target.plugin
    chosen = await plugin.strategy(target.plan_context(running=running.source))
    assert (chosen.strategy, chosen.summary) == (strategy, summary)


async def test_an_ecs_app_always_uses_its_pipeline(tmp_path: Path) -> None:
    running = commit(tmp_path / "a", "web:v1", kind="ECSApp")
    for name, image in (("b", "web:v2"), ("c", "web:v1")):
        target = commit(tmp_path / name, image, kind="ECSApp")
        plugin: Any = target.plugin
        chosen = await plugin.strategy(target.plan_context(running=running.source))
        tag = image.partition(":")[2]
        assert chosen.strategy is PIPELINE
        assert chosen.summary == f"Sync with pipeline to update image from v1 to {tag}"


async def test_a_running_commit_that_cannot_be_read_is_replaced_by_the_pipeline(
    tmp_path: Path,
) -> None:
    running, target = commit(tmp_path / "a", "web:v1"), commit(tmp_path / "b", "web:v2")
    (running.directory / "taskdef.json").unlink()
    plugin: Any = target.plugin
    chosen = await plugin.strategy(target.plan_context(running=running.source))
    assert (chosen.strategy, chosen.summary) == (PIPELINE, "Sync with the specified pipeline")


async def test_stages_of_a_pipeline_and_their_rollback() -> None:
    requested = [
        RequestedStage("ECS_CANARY_ROLLOUT", 1, "", b'{"scale": 30}'),
        RequestedStage("ECS_TRAFFIC_ROUTING", 2, "", b'{"canary": 20}'),
        RequestedStage("ECS_PRIMARY_ROLLOUT", 4, "", b"{}"),
    ]
    planned = await EcsPlugin().plan_pipeline(requested, rollback=True)
    shown = [(stage.name, stage.index, stage.metadata.get(DISPLAY_KEY)) for stage in planned]
    assert shown == [
        ("ECS_CANARY_ROLLOUT", 1, "canary 30%"),
        ("ECS_TRAFFIC_ROUTING", 2, "primary 80%, canary 20%"),
        ("ECS_PRIMARY_ROLLOUT", 4, None),
        ("ECS_ROLLBACK", 1, None),
    ]
    assert [stage.is_rollback for stage in planned] == [False, False, False, True]
    with pytest.raises(UserMistake):
        wrong = RequestedStage("ECS_CANARY_ROLLOUT", 0, "", b'{"scale": 300}')
        await EcsPlugin().plan_pipeline([wrong], rollback=False)


async def test_the_stages_of_a_quick_sync() -> None:
    planned = await EcsPlugin().quick_sync(rollback=True)
    assert [stage.name for stage in planned] == ["ECS_SYNC", "ECS_ROLLBACK"]
    [alone] = await EcsPlugin().quick_sync(rollback=False)
    assert alone.name == "ECS_SYNC"


SERVICE = {"cluster": "prod", "serviceName": "web", "desiredCount": 2}


async def test_the_preview_of_a_change(tmp_path: Path) -> None:
    running = commit(tmp_path / "a", "web:v1", service=SERVICE)
    target = commit(tmp_path / "b", "web:v2", service={**SERVICE, "desiredCount": 3})
    plugin: Any = target.plugin
    [shown] = await plugin.preview(target.preview_context(running=running.source))
    assert shown.summary == "task definition changed, service definition changed"
    assert shown.details == (
        "--- taskdef (running)\n+++ taskdef (target)\n"
        "@@ -1,4 +1,4 @@\n"
        " ContainerDefinitions:\n"
        "-- Image: web:v1\n"
        "+- Image: web:v2\n"
        "   Name: c0\n"
        " Family: web\n"
        "\n"
        "--- servicedef (running)\n+++ servicedef (target)\n"
        "@@ -1,3 +1,3 @@\n"
        " ClusterArn: prod\n"
        "-DesiredCount: 2\n"
        "+DesiredCount: 3\n"
        " ServiceName: web\n"
    )


async def test_the_preview_without_a_change(tmp_path: Path) -> None:
    running = commit(tmp_path / "a", "web:v1", service=SERVICE)
    target = commit(tmp_path / "b", "web:v1", service=SERVICE)
    plugin: Any = target.plugin
    [shown] = await plugin.preview(target.preview_context(running=running.source))
    assert (shown.summary, shown.no_change) == ("No changes were detected", True)


async def test_the_preview_of_a_first_deployment(tmp_path: Path) -> None:
    target = commit(tmp_path / "a", "web:v1")
    plugin: Any = target.plugin
    [shown] = await plugin.preview(target.preview_context())
    assert shown.summary == "task definition changed"
    assert "+- Image: web:v1\n" in shown.details
