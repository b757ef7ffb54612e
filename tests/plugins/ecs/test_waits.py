# SPDX-License-Identifier: Apache-2.0
"""Waits: a stage waits for what it has requested, and names why it does not come."""

from typing import Any

import pytest

from pipecd.plugins.ecs.rollouts import Progress, Rollout, judge_rollout
from pipecd.sdk import StageStatus
from plugins.ecs.testbed import EXTERNAL, ROLLING, Application

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
BREAKER: dict[str, Any] = {
    **ROLLING,
    "desiredCount": 1,
    "deploymentConfiguration": {"deploymentCircuitBreaker": {"enable": True, "rollback": True}},
}
NOT_FOUND = "CannotPullContainerError: web:2 not found"


def deployment(
    number: int, definition: str, state: str = "", *, is_primary: bool = False, reason: str = ""
) -> dict[str, Any]:
    return {
        "id": f"ecs-svc/{number}",
        "status": "PRIMARY" if is_primary else "ACTIVE",
        "taskDefinition": definition,
        **({"rolloutState": state} if state else {}),
        "rolloutStateReason": reason,
    }


def service(*deployments: dict[str, Any], running: int = 4, pending: int = 0) -> dict[str, Any]:
    return {
        "deployments": list(deployments),
        "desiredCount": 4,
        "runningCount": running,
        "pendingCount": pending,
    }


ROLLOUTS: dict[str, tuple[dict[str, Any], Rollout]] = {
    "it is completed": (
        service(deployment(2, "web:2", "COMPLETED", is_primary=True)),
        Rollout(Progress.COMPLETED, "ecs-svc/2"),
    ),
    "it goes on beside the old one": (
        service(
            deployment(2, "web:2", "IN_PROGRESS", is_primary=True),
            deployment(1, "web:1", "COMPLETED"),
        ),
        Rollout(Progress.WAITING, "ecs-svc/2"),
    ),
    "it is completed, and one that failed before is still listed": (
        service(
            deployment(3, "web:2", "COMPLETED", is_primary=True),
            deployment(2, "web:9", "FAILED", reason="tasks failed to start"),
        ),
        Rollout(Progress.COMPLETED, "ecs-svc/3"),
    ),
    "it failed": (
        service(deployment(2, "web:2", "FAILED", is_primary=True, reason="tasks failed to start")),
        Rollout(Progress.FAILED, "ecs-svc/2", "tasks failed to start"),
    ),
    "the circuit breaker deploys the old one": (
        service(
            deployment(3, "web:1", "IN_PROGRESS", is_primary=True, reason="rolling back"),
            deployment(2, "web:2", "FAILED", reason="tasks failed to start"),
        ),
        Rollout(Progress.FAILED, "ecs-svc/2", "tasks failed to start"),
    ),
    "somebody else deploys another one": (
        service(
            deployment(3, "web:7", "IN_PROGRESS", is_primary=True),
            deployment(2, "web:2", "IN_PROGRESS"),
        ),
        Rollout(Progress.REPLACED, "ecs-svc/2"),
    ),
    "the update is not visible yet": (
        service(deployment(1, "web:1", "COMPLETED", is_primary=True)),
        Rollout(Progress.WAITING),
    ),
    "tasks are missing": (
        service(deployment(2, "web:2", "COMPLETED", is_primary=True), running=3, pending=1),
        Rollout(Progress.WAITING, "ecs-svc/2"),
    ),
    "an old service without states, whose old tasks drain": (
        service(deployment(2, "web:2", is_primary=True), deployment(1, "web:1")),
        Rollout(Progress.WAITING, "ecs-svc/2"),
    ),
    "an old service without states": (
        service(deployment(2, "web:2", is_primary=True)),
        Rollout(Progress.COMPLETED, "ecs-svc/2"),
    ),
}


@pytest.mark.parametrize(("live", "expected"), ROLLOUTS.values(), ids=ROLLOUTS)
def test_a_rollout_is_judged_by_the_requested_task_definition(
    live: dict[str, Any], expected: Rollout
) -> None:
    assert judge_rollout(live, "web:2") == expected


@pytest.mark.parametrize("is_listed", [False, True], ids=["and gone", "and still listed"])
async def test_a_deployment_that_the_circuit_breaker_reverts_fails(
    application: Application, *, is_listed: bool
) -> None:
    one = application.commit("web:1", BREAKER)
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    application.failing["web:2"] = NOT_FOUND
    application.rules.rollouts.is_failed_one_listed = is_listed
    two = application.commit("web:2", BREAKER, running=one)
    application.next_stage()
    failed = await two.run("ECS_SYNC")
    assert failed.status is FAILURE
    assert "the service web was not updated: ECS deployment circuit breaker" in failed.message
    assert "check the image in the task definition" in failed.message
    # The deployment that failed is still listed, and does not concern the rollback.
    application.next_stage()
    rolled_back = await two.run("ECS_ROLLBACK", is_rollback=True)
    assert rolled_back.status is SUCCESS, rolled_back.message
    assert application.image(application.service["taskDefinition"]) == "web:1"


async def test_a_deployment_of_somebody_else_is_not_taken_for_this_one(
    application: Application,
) -> None:
    one = application.commit("web:1", ROLLING)
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    old = application.service["taskDefinition"]
    application.rules.rollouts.reads = 3
    ecs = application.amazon.client("ecs")

    def deploy_old() -> None:
        ecs.update_service(cluster="prod", service="web", taskDefinition=old)

    application.amazon.after("UpdateService", deploy_old)
    application.next_stage()
    failed = await application.commit("web:2", ROLLING).run("ECS_SYNC")
    assert failed.status is FAILURE
    assert "somebody else deploys another task definition" in failed.message


RECREATED = {key: EXTERNAL[key] for key in EXTERNAL if key != "desiredCount"}


async def test_a_recreate_whose_image_cannot_be_pulled_names_the_reason(
    application: Application,
) -> None:
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    application.quick_sync = {"recreate": True}
    application.failing["web:2"] = NOT_FOUND
    application.next_stage()
    failed = await application.commit("web:2", RECREATED).run("ECS_SYNC")
    assert failed.status is FAILURE
    assert failed.message.startswith(f"4 tasks of the service web stopped: {NOT_FOUND}; check the")


@pytest.mark.parametrize("which", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
@pytest.mark.parametrize("operation", ["ListTasks", "DescribeTasks"])
async def test_a_wait_needs_no_permission_to_explain(
    application: Application, which: dict[str, Any], operation: str
) -> None:
    application.amazon.refuse(operation, "AccessDeniedException", "not authorized")
    assert (await application.commit("web:1", which).run("ECS_SYNC")).status is SUCCESS
    application.failing["web:2"] = NOT_FOUND
    application.next_stage()
    failed = await application.commit("web:2", which).run("ECS_SYNC")
    assert "did not become stable in" in failed.message


async def test_stopped_tasks_of_other_task_sets_do_not_end_a_wait(
    application: Application,
) -> None:
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    application.failing["web:2"] = NOT_FOUND
    application.next_stage()
    assert (await application.commit("web:2").run("ECS_SYNC")).status is FAILURE
    application.next_stage()
    assert (await application.commit("web:3").run("ECS_SYNC")).status is SUCCESS
    assert application.task_sets == [("web:3", "PRIMARY", 100)]
