# SPDX-License-Identifier: Apache-2.0
"""Services with rolling updates, and standalone tasks."""

import asyncio
from typing import Any

import pytest

from pipecd.sdk import StageStatus
from plugins.ecs.testbed import EXTERNAL, ROLLING, Application, Balancer
from servers.amazon import Call

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE


@pytest.mark.parametrize("stage", ["ECS_SYNC", "ECS_PRIMARY_ROLLOUT"])
async def test_ecs_replaces_the_tasks_itself(application: Application, stage: str) -> None:
    for image in ("web:1", "web:2"):
        application.next_stage()
        deployed = await application.commit(image, ROLLING).run(stage)
        assert (deployed.status, deployed.message) == (SUCCESS, "The service web is deployed")
        assert application.image(application.service["taskDefinition"]) == image
    assert application.service["runningCount"] == 4
    assert {"key": "pipecd-dev-commit-hash", "value": "web-2"} in application.service["tags"]


async def test_the_target_group_of_primary_is_that_of_the_service(
    application: Application, balancer: Balancer
) -> None:
    balancer.listener(80)
    assert (await application.commit("web:1", ROLLING).run("ECS_SYNC")).status is SUCCESS
    [group] = application.service["loadBalancers"]
    assert group["targetGroupArn"] == balancer.primary


async def test_rolling_updates_leave_the_number_of_tasks_to_autoscaling(
    application: Application,
) -> None:
    without_count = {key: ROLLING[key] for key in ROLLING if key != "desiredCount"}
    assert (await application.commit("web:1", ROLLING).run("ECS_SYNC")).status is SUCCESS
    application.amazon.client("ecs").update_service(cluster="prod", service="web", desiredCount=7)
    application.next_stage()
    two = application.commit("web:2", without_count)
    assert (await two.run("ECS_SYNC")).status is SUCCESS
    assert (application.service["desiredCount"], application.service["runningCount"]) == (7, 7)
    # Autoscaling goes on while the next commit is deployed.
    application.rules.rollouts.reads = 3
    application.amazon.after(
        "DescribeServices",
        lambda: application.amazon.client("ecs").update_service(
            cluster="prod", service="web", desiredCount=9
        ),
    )
    application.next_stage()
    three = application.commit("web:3", without_count, running=two)
    assert (await three.run("ECS_SYNC")).status is SUCCESS
    assert (application.service["desiredCount"], application.service["runningCount"]) == (9, 9)


async def test_rolling_updates_have_no_canary(application: Application) -> None:
    failed = await application.commit("web:1", ROLLING).run("ECS_CANARY_ROLLOUT", {"scale": 10})
    assert failed.status is FAILURE
    assert failed.message.startswith("the service web has rolling updates, which have no canary; ")


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
async def test_the_controller_of_a_service_cannot_change(
    application: Application, service: dict[str, Any]
) -> None:
    other = ROLLING if service is EXTERNAL else EXTERNAL
    assert (await application.commit("web:1", service).run("ECS_SYNC")).status is SUCCESS
    application.next_stage()
    failed = await application.commit("web:2", other).run("ECS_SYNC")
    assert failed.status is FAILURE
    assert "deployment controller" in failed.message


async def test_code_deploy_is_refused(application: Application) -> None:
    service = {**ROLLING, "deploymentController": {"type": "CODE_DEPLOY"}}
    failed = await application.commit("web:1", service).run("ECS_SYNC")
    assert failed.message == (
        "the service web has the deployment controller CODE_DEPLOY; "
        "set deploymentController.type in the service definition to EXTERNAL or ECS"
    )


def standalone(application: Application, **given: Any) -> None:
    application.input = {
        "clusterArn": "prod",
        "runStandaloneTask": True,
        "awsvpcConfiguration": {"subnets": ["subnet-1"], "assignPublicIp": "ENABLED"},
        **given,
    }


async def test_a_standalone_task_is_run_once(application: Application) -> None:
    standalone(application)
    bench = application.commit("job:1", None)
    ran = await bench.run("ECS_SYNC")
    assert ran.status is SUCCESS
    assert ran.message.endswith(" runs")
    [call] = [call for call in application.amazon.calls if call.operation == "RunTask"]
    tags = {tag["key"]: tag["value"] for tag in call.parameters["tags"]}
    assert tags["pipecd-dev-application"] == "application-1"
    assert call.parameters["launchType"] == "FARGATE"
    assert call.parameters["networkConfiguration"] == {
        "awsvpcConfiguration": {"subnets": ["subnet-1"], "assignPublicIp": "ENABLED"}
    }
    # The stage runs again after a restart of piped.
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    assert application.amazon.operations("RunTask") == ["RunTask"]


async def test_a_standalone_task_that_does_not_start(application: Application) -> None:
    standalone(application)
    application.failing["job:1"] = "CannotPullContainerError: not found"
    failed = await application.commit("job:1", None).run("ECS_SYNC")
    assert failed.status is FAILURE
    assert "stopped: CannotPullContainerError: not found; check the image" in failed.message


async def test_only_the_task_definition_is_registered(application: Application) -> None:
    standalone(application, runStandaloneTask=False)
    registered = await application.commit("job:1", None).run("ECS_SYNC")
    assert registered.status is SUCCESS
    assert registered.message.endswith(" is registered")
    assert application.amazon.operations("RunTask") == []


async def test_a_task_that_finds_no_place(application: Application) -> None:
    standalone(application)
    application.amazon.answers["RunTask"] = {
        "tasks": [],
        "failures": [{"reason": "RESOURCE:MEMORY"}],
    }
    failed = await application.commit("job:1", None).run("ECS_SYNC")
    assert failed.message.startswith("the task was not started: RESOURCE:MEMORY; check the capacit")


@pytest.mark.parametrize("stage", ["ECS_CANARY_ROLLOUT", "ECS_PRIMARY_ROLLOUT", "ECS_CANARY_CLEAN"])
async def test_a_standalone_task_has_no_variants(application: Application, stage: str) -> None:
    failed = await application.commit("job:1", None).run(stage)
    assert failed.message == (
        f"the stage {stage} needs a service; "
        "set serviceDefinitionFile in the input of the application"
    )


_START = ("RegisterTaskDefinition", "UpdateService", "TagResource", "CreateTaskSet")
_END = ("DeleteTaskSet", "DeregisterTaskDefinition")
KILLED: dict[str, tuple[str, ...]] = {
    "ECS_SYNC": (*_START, "UpdateServicePrimaryTaskSet", *_END),
    "ECS_CANARY_ROLLOUT": _START,
    "ECS_PRIMARY_ROLLOUT": (*_START, "UpdateServicePrimaryTaskSet", *_END),
    "ECS_CANARY_CLEAN": _END,
    "ECS_ROLLBACK": ("UpdateService", "TagResource", *_END),
}
OPTIONS: dict[str, dict[str, Any]] = {"ECS_CANARY_ROLLOUT": {"scale": 50}}


@pytest.mark.parametrize(
    ("stage", "after"), [(stage, after) for stage, changes in KILLED.items() for after in changes]
)
async def test_a_stage_that_is_killed_continues(
    application: Application, stage: str, after: str
) -> None:
    """The stage ends after a request that AWS has carried out, and then runs again."""
    one = application.commit("web:1")
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    two = application.commit("web:2", running=one)
    if stage in ("ECS_CANARY_CLEAN", "ECS_ROLLBACK"):
        application.next_stage()
        assert (await two.run("ECS_CANARY_ROLLOUT", {"scale": 50})).status is SUCCESS
    application.next_stage()
    loop, is_killed = asyncio.get_running_loop(), False
    is_rollback, options = stage == "ECS_ROLLBACK", OPTIONS.get(stage, {})

    def kill(call: Call) -> None:
        nonlocal is_killed
        if call.operation == after and not is_killed:
            is_killed = True
            loop.call_soon_threadsafe(running.cancel)

    application.amazon.on_answer = kill
    running = asyncio.create_task(two.run(stage, options, is_rollback=is_rollback))
    await asyncio.wait({running})
    assert is_killed
    again = await two.run(stage, options, is_rollback=is_rollback)
    assert again.status is SUCCESS
    expected = {
        "ECS_SYNC": [("web:2", "PRIMARY", 100)],
        "ECS_CANARY_ROLLOUT": [("web:1", "PRIMARY", 100), ("web:2", "ACTIVE", 50)],
        "ECS_PRIMARY_ROLLOUT": [("web:2", "PRIMARY", 100)],
        "ECS_CANARY_CLEAN": [("web:1", "PRIMARY", 100)],
        "ECS_ROLLBACK": [("web:1", "PRIMARY", 100)],
    }
    assert application.task_sets == expected[stage]
