# SPDX-License-Identifier: Apache-2.0
"""Whatever fails a deployment, the stage says why, and the running version serves afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipecd.sdk import StageStatus
from plugins.ecs.testbed import EXTERNAL, Application, Balancer

PIPELINE: list[tuple[str, dict[str, Any]]] = [
    ("ECS_CANARY_ROLLOUT", {"scale": 50}),
    ("ECS_TRAFFIC_ROUTING", {"canary": 50}),
    ("ECS_PRIMARY_ROLLOUT", {}),
    ("ECS_TRAFFIC_ROUTING", {"primary": 100}),
    ("ECS_CANARY_CLEAN", {}),
]


@dataclass
class Scene:
    """The application behind a listener and a rule with a canary."""

    application: Application
    balancer: Balancer
    listener: str
    rule: str


def refuse(operation: str, code: str, said: str) -> Callable[[Scene], None]:
    return lambda scene: scene.application.amazon.refuse(operation, code, said)


def stop_tasks(reason: str) -> Callable[[Scene], None]:
    return lambda scene: scene.application.failing.update({"web:2": reason})


def edit_rule(scene: Scene) -> None:
    forward = scene.balancer.forward((scene.balancer.primary, 1))
    scene.application.amazon.client("elbv2").modify_rule(RuleArn=scene.rule, Actions=[forward])


def leave(_: Scene) -> None:
    """Nothing but the commit itself is wrong."""


@dataclass(frozen=True)
class Failure:
    """What happens before a stage, and what the stage says then."""

    stage: int
    happens: Callable[[Scene], None]
    cause: str
    remedy: str
    service: dict[str, Any] = field(default_factory=dict[str, Any])


FAILURES = {
    "expired credentials": Failure(
        2,
        refuse("UpdateServicePrimaryTaskSet", "ExpiredTokenException", "The token is expired"),
        "the AWS credentials have expired",
        "renew the credentials that this process uses",
    ),
    "a throttled API": Failure(
        1,
        refuse("ModifyListener", "ThrottlingException", "Rate exceeded"),
        "AWS throttles the requests",
        "try again later, or ask AWS for a higher request rate",
    ),
    "a missing cluster": Failure(
        0,
        leave,
        "the cluster none does not exist",
        "create it, or correct the cluster",
        {"cluster": "none"},
    ),
    "unhealthy targets": Failure(
        0,
        stop_tasks("Task failed ELB health checks in (target-group lb-canary)"),
        "stopped: Task failed ELB health checks in (target-group lb-canary)",
        "check the health check of the target group",
    ),
    "a rule that somebody else edited": Failure(
        3, edit_rule, "somebody else has edited the rule", "let it forward to both target groups"
    ),
    "an image that cannot be pulled": Failure(
        0,
        stop_tasks("CannotPullContainerError: web:2 not found"),
        "stopped: CannotPullContainerError: web:2 not found",
        "check the image in the task definition",
    ),
    "an image that cannot be pulled any more": Failure(
        2,
        stop_tasks("CannotPullContainerError: web:2 not found"),
        "stopped: CannotPullContainerError: web:2 not found",
        "check the image in the task definition",
    ),
}


@pytest.mark.parametrize("kind", ["Application", "ECSApp"])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_the_running_version_serves_after_the_rollback_of(
    application: Application,
    balancer: Balancer,
    failure: Failure,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipecd.sdk.aws._MAX_ATTEMPTS", 2)
    application.kind = kind
    listener = balancer.listener(80)
    scene = Scene(application, balancer, listener, balancer.rule(listener, 1, balancer.split))
    one = application.commit("web:1", {**EXTERNAL, "desiredCount": 6})
    assert (await one.run("ECS_SYNC")).status is StageStatus.SUCCESS
    two = application.commit(
        "web:2", {**EXTERNAL, "desiredCount": 6, **failure.service}, running=one
    )
    for index, (name, options) in enumerate(PIPELINE[: failure.stage]):
        application.next_stage()
        done = await two.run(name, options, index=index)
        assert done.status is StageStatus.SUCCESS, done.message
    failure.happens(scene)
    application.next_stage()
    name, options = PIPELINE[failure.stage]
    failed = await two.run(name, options, index=failure.stage)
    assert failed.status is StageStatus.FAILURE
    assert failure.cause in failed.message
    assert failure.remedy in failed.message

    for operation in ("UpdateServicePrimaryTaskSet", "ModifyListener"):
        application.amazon.allow(operation)
    application.next_stage()
    rolled_back = await two.run("ECS_ROLLBACK", is_rollback=True)
    assert rolled_back.status is StageStatus.SUCCESS, rolled_back.message
    assert application.task_sets == [("web:1", "PRIMARY", 100)]
    assert application.service["runningCount"] == 6
    assert balancer.weights(listener) == {"primary": 100, "canary": 0}
    assert balancer.rule_weights(scene.rule).get("canary", 0) == 0
