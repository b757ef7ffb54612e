# SPDX-License-Identifier: Apache-2.0
"""Upstream's ECS plugin and ours do the same to the same account, stage by stage."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.piped import DeployTargetSpec
from pipecd.model.deployment import StageStatus
from pipecd.plugins.ecs.plugin import EcsPlugin
from pipecd.sdk import PluginEntry, StartContext
from pipecd.sdk.testing import MemoryHost, StageBench
from plugins.ecs.testbed import EXTERNAL, Application, Balancer
from servers.amazon import REGION, Amazon
from servers.comparison import write_comparison
from servers.upstream_plugin import RunStage, upstream_plugin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TARGET = DeployTargetSpec(name="aws", config={"region": REGION})
STAGES: list[tuple[str, dict[str, Any]]] = [
    ("ECS_CANARY_ROLLOUT", {"scale": 50}),
    ("ECS_TRAFFIC_ROUTING", {"canary": 20}),
    ("ECS_PRIMARY_ROLLOUT", {}),
    ("ECS_TRAFFIC_ROUTING", {"primary": 100}),
    ("ECS_CANARY_CLEAN", {}),
]
SERVICE = {
    **EXTERNAL,
    "enableExecuteCommand": True,
    "propagateTags": "SERVICE",
    "tags": [{"key": "team", "value": "shop"}],
}


@asynccontextmanager
async def ours() -> AsyncGenerator[RunStage, None]:
    """Our plugin in this process."""
    plugin, host = EcsPlugin(), MemoryHost()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("ecs"), host, lifetime))

        async def run(bench: StageBench, name: str, options: dict[str, Any], index: int) -> None:
            host.stage_metadata.clear()
            bench.plugin, bench.host = plugin, host
            done = await bench.run(name, options, index=index, is_rollback=name == "ECS_ROLLBACK")
            assert done.status is StageStatus.SUCCESS, done.message

        yield run


def primary_arn(application: Application) -> str:
    sets = application.service["taskSets"]
    return next(each["taskSetArn"] for each in sets if each["status"] == "PRIMARY")


def resources(
    application: Application, balancer: Balancer, listener: str, first: str
) -> dict[str, Any]:
    """Everything in the account, without the names that AWS makes up.

    `first` is the task set of the first deployment.
    """
    ecs = application.amazon.client("ecs")
    service = application.service
    sets = ecs.describe_task_sets(cluster="prod", service="web", include=["TAGS"])["taskSets"]
    active = ecs.list_task_definitions(status="ACTIVE")["taskDefinitionArns"]

    def tags(document: dict[str, Any]) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in document["tags"]}

    return {
        "service": {
            key: service.get(key)
            for key in (
                *("status", "desiredCount", "runningCount", "deploymentController"),
                *("enableExecuteCommand", "propagateTags", "loadBalancers"),
            )
        },
        "service tags": tags(service),
        "task sets": sorted(
            (
                application.image(each["taskDefinition"]),
                each["status"],
                each["scale"],
                each["launchType"],
                [group["targetGroupArn"] for group in each["loadBalancers"]],
                sorted(tags(each).items()),
            )
            for each in sets
        ),
        "tasks of the first deployment serve": primary_arn(application) == first,
        # A registration that a client repeats leaves a revision that nothing uses.
        "active task definitions": sorted({application.image(arn) for arn in active}),
        "traffic": balancer.weights(listener),
    }


@pytest.fixture
def application(amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Application:
    # Upstream's deploy targets have no endpoint.
    monkeypatch.setenv("AWS_ENDPOINT_URL", amazon.url)
    return Application(tmp_path, EcsPlugin(), MemoryHost(), amazon)


def reset(application: Application) -> None:
    """Empties the account; upstream deletes task sets with tasks and without force."""
    application.amazon.reset()
    application.rules.requires_force = False


async def deployed(
    application: Application, run: RunStage, *, until: int, rolled_back: bool
) -> list[dict[str, Any]]:
    """Returns the resources after each stage, beginning with an empty account."""
    reset(application)
    application.amazon.client("ecs").create_cluster(clusterName="prod")
    balancer = Balancer(application.amazon).create()
    application.input = balancer.input
    listener = balancer.listener(80)
    one = application.commit("web:1", SERVICE)
    two = application.commit("web:2", {**SERVICE, "desiredCount": 6}, running=one)
    await run(one, "ECS_SYNC", {}, 0)
    first = primary_arn(application)
    states = [resources(application, balancer, listener, first)]
    for index, (name, options) in enumerate(STAGES[:until]):
        await run(two, name, options, index)
        states.append(resources(application, balancer, listener, first))
    if rolled_back:
        await run(two, "ECS_ROLLBACK", {}, 0)
        states.append(resources(application, balancer, listener, first))
    return [_named(state, balancer) for state in states]


def _named(state: dict[str, Any], balancer: Balancer) -> dict[str, Any]:
    text = json.dumps(state)
    text = text.replace(balancer.primary, "primary").replace(balancer.canary, "canary")
    return json.loads(text)


async def test_the_resources_after_each_stage_are_the_same(
    upstream_plugins: Path, application: Application, tmp_path: Path
) -> None:
    async with upstream_plugin(upstream_plugins / "ecs", tmp_path, TARGET) as run:
        theirs = await deployed(application, run, until=len(STAGES), rolled_back=False)
    async with ours() as run:
        own = await deployed(application, run, until=len(STAGES), rolled_back=False)
    names = ["ECS_SYNC", *(name for name, _ in STAGES)]
    write_comparison("upstream-ecs.txt", names, theirs, own)
    for name, their, our in zip(names, theirs, own, strict=True):
        assert our == their, name


@pytest.mark.parametrize("until", [1, 2, 3])
async def test_the_resources_after_a_rollback_are_the_same(
    upstream_plugins: Path, application: Application, tmp_path: Path, until: int
) -> None:
    async with upstream_plugin(upstream_plugins / "ecs", tmp_path, TARGET) as run:
        *_, theirs = await deployed(application, run, until=until, rolled_back=True)
    async with ours() as run:
        *_, own = await deployed(application, run, until=until, rolled_back=True)
    names = [f"ECS_ROLLBACK after {STAGES[until - 1][0]}"]
    write_comparison(f"upstream-ecs-rollback-{until}.txt", names, [theirs], [own])
    # Upstream's rollback marks the tasks of the old commit with the failed one, and replaces those
    # that serve by new ones.
    is_replaced = STAGES[until - 1][0] == "ECS_PRIMARY_ROLLOUT"
    corrected = json.loads(json.dumps(theirs).replace("web-2", "web-1"))
    assert corrected.pop("tasks of the first deployment serve") is False
    assert own.pop("tasks of the first deployment serve") is not is_replaced
    assert own == corrected


async def test_ours_replaces_task_sets_of_the_first_generation(
    upstream_plugins: Path, application: Application, tmp_path: Path
) -> None:
    async def synced(run: RunStage) -> dict[str, Any]:
        reset(application)
        application.amazon.client("ecs").create_cluster(clusterName="prod")
        balancer = Balancer(application.amazon).create()
        application.input, application.kind = balancer.input, "ECSApp"
        listener = balancer.listener(80)
        async with ours() as run_first_generation:
            await run_first_generation(application.commit("web:1", SERVICE), "ECS_SYNC", {}, 0)
        first, application.kind = primary_arn(application), "Application"
        await run(application.commit("web:2", SERVICE), "ECS_SYNC", {}, 0)
        return _named(resources(application, balancer, listener, first), balancer)

    async with upstream_plugin(upstream_plugins / "ecs", tmp_path, TARGET) as run:
        theirs = await synced(run)
    async with ours() as run:
        own = await synced(run)
    names = ["ECS_SYNC over a task set of the first generation"]
    write_comparison("upstream-ecs-first-generation.txt", names, [theirs], [own])
    # Upstream's plugin takes only its own task sets for managed, so the old tasks run for ever.
    images = [[(image, status) for image, status, *_ in s["task sets"]] for s in (theirs, own)]
    assert images == [[("web:1", "ACTIVE"), ("web:2", "PRIMARY")], [("web:2", "PRIMARY")]]


@pytest.mark.parametrize("rolled_back", [False, True], ids=["continued", "rolled back"])
@pytest.mark.parametrize("until", [1, 2, 3, 4])
async def test_what_upstream_began_is_completed_by_ours(
    upstream_plugins: Path,
    application: Application,
    tmp_path: Path,
    until: int,
    rolled_back: bool,
) -> None:
    async with upstream_plugin(upstream_plugins / "ecs", tmp_path, TARGET) as run:
        await deployed(application, run, until=until, rolled_back=False)
    one, two = (application.commit(image, SERVICE) for image in ("web:1", "web:2"))
    two.running = one
    stages = [("ECS_ROLLBACK", {})] if rolled_back else STAGES[until:]
    async with ours() as run:
        for index, (name, options) in enumerate(stages):
            await run(two, name, options, until + index)
    expected = "web:1" if rolled_back else "web:2"
    assert application.task_sets == [(expected, "PRIMARY", 100)]
