# SPDX-License-Identifier: Apache-2.0
"""What fails a deployment to a cloud through a whole piped: its stage says why and what to do.

The rollback leaves the version before serving.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from plugins.ecs.testbed import EXTERNAL
from servers.amazon import ACCOUNT, REGION, Amazon, Call
from servers.amazon_ecs import EcsRules
from servers.amazon_lambda import LambdaRules
from servers.cloud_run import CloudRun
from servers.clouds import SECONDS, Cloud, add_application, cloud_run_cloud, open_cloud
from servers.control_plane import StartControlPlane
from servers.deployment_watch import DeploymentWatch, statuses
from servers.origin import Origin
from servers.piped import killed_piped
from servers.web import Answer, Request

EXPIRED = ("ExpiredTokenException", "The token is expired")
RENEW = ("the AWS credentials have expired", "renew the credentials that this process uses")
THROTTLED = ("AWS throttles the requests", "try again later, or ask AWS for a higher request rate")
# How often a request is sent that AWS throttles.
ATTEMPTS = 5
# The image with this tag is the one that crashes on Cloud Run.
CRASHING = "v3"


@dataclass(frozen=True)
class Scene:
    """The application, and the servers that stand for clouds."""

    cloud: Cloud
    amazon: Amazon
    cloud_run: CloudRun


@dataclass(frozen=True)
class Failure:
    """What happens before the deployment of a tag, and what a stage says then."""

    happens: Callable[[Scene, str], None]
    cause: str
    remedy: str
    service: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the service definition on ECS has more."""


def expire(operation: str) -> Callable[[Scene, str], None]:
    return lambda scene, _: scene.amazon.refuse(operation, *EXPIRED, times=1)


def throttle(operation: str, code: str, status: int) -> Callable[[Scene, str], None]:
    return lambda scene, _: scene.amazon.refuse(
        operation, code, "Rate exceeded", times=ATTEMPTS, status=status
    )


def stop_tasks(reason: str) -> Callable[[Scene, str], None]:
    def stop(scene: Scene, tag: str) -> None:
        rules = scene.amazon.rules["ecs"]
        assert isinstance(rules, EcsRules)
        rules.failing[f"shop:{tag}"] = reason

    return stop


def leave(_: Scene, __: str) -> None:
    """Nothing but the commit itself is wrong."""


def edit_rule(scene: Scene, _: str) -> None:
    """Takes the canary out of a rule when the new tasks have become the primary ones."""
    elb = scene.amazon.client("elbv2")
    [balancer] = elb.describe_load_balancers()["LoadBalancers"]
    [listener] = elb.describe_listeners(LoadBalancerArn=balancer["LoadBalancerArn"])["Listeners"]
    conditions: Any = [{"Field": "path-pattern", "Values": ["/shop"]}]
    made = elb.create_rule(
        ListenerArn=listener["ListenerArn"],
        Priority=1,
        Conditions=conditions,
        Actions=listener["DefaultActions"],
    )
    [forward] = listener["DefaultActions"]
    primary, _canary = forward["ForwardConfig"]["TargetGroups"]
    only = {"Type": "forward", "ForwardConfig": {"TargetGroups": [{**primary, "Weight": 1}]}}
    rule = made["Rules"][0]["RuleArn"]
    scene.amazon.after(
        "UpdateServicePrimaryTaskSet", lambda: elb.modify_rule(RuleArn=rule, Actions=[only])
    )


def fail_function(scene: Scene, tag: str) -> None:
    rules = scene.amazon.rules["lambda"]
    assert isinstance(rules, LambdaRules)
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop:{tag}"
    rules.failing[image] = "The image does not exist"


def delete_alias(scene: Scene, _: str) -> None:
    """Deletes the alias when the new version is published."""

    def delete(call: Call) -> None:
        if call.operation == "PublishVersion":
            scene.amazon.on_answer = None
            name = call.parameters["FunctionName"]
            scene.amazon.client("lambda").delete_alias(FunctionName=name, Name="Service")

    scene.amazon.on_answer = delete


def crash(scene: Scene, _: str) -> None:
    scene.cloud.fail()


def refuse_promotion(code: int, status: str, message: str) -> Callable[[Scene, str], None]:
    """Refuses what gives all traffic to the new revision, until its stage has failed."""
    said = {"error": {"code": code, "status": status, "message": message}}
    answer = Answer(code, json.dumps(said).encode())

    def happen(scene: Scene, tag: str) -> None:
        def refuse(request: Request) -> Answer | None:
            if request.method != "PUT":
                return None
            traffic = json.loads(request.body)["spec"]["traffic"]
            first = traffic[0]
            is_promotion = first["percent"] == 100 and f"-{tag}-" in first["revisionName"]
            return answer if is_promotion else None

        scene.cloud_run.refuse = refuse

    return happen


FAILURES: dict[str, dict[str, Failure]] = {
    "ecs": {
        "expired credentials": Failure(expire("UpdateServicePrimaryTaskSet"), *RENEW),
        "a throttled API": Failure(
            throttle("UpdateServicePrimaryTaskSet", "ThrottlingException", 400), *THROTTLED
        ),
        "a missing cluster": Failure(
            leave,
            "the cluster none does not exist",
            "create it, or correct the cluster",
            {"cluster": "none"},
        ),
        "unhealthy targets": Failure(
            stop_tasks("Task failed ELB health checks in (target-group lb-canary)"),
            "stopped: Task failed ELB health checks in (target-group lb-canary)",
            "check the health check of the target group",
        ),
        "an image that cannot be pulled": Failure(
            stop_tasks("CannotPullContainerError: not found"),
            "stopped: CannotPullContainerError: not found",
            "check the image in the task definition",
        ),
        "a rule that somebody else edited": Failure(
            edit_rule,
            "somebody else has edited the rule",
            "let it forward to both target groups again",
        ),
    },
    "lambda": {
        "expired credentials": Failure(expire("UpdateAlias"), *RENEW),
        "a throttled API": Failure(
            throttle("UpdateAlias", "TooManyRequestsException", 429), *THROTTLED
        ),
        "a deleted alias": Failure(
            delete_alias,
            "has no alias Service",
            "create the alias for the running version, or deploy with a quick sync",
        ),
        "an image that cannot be pulled": Failure(
            fail_function,
            "The image does not exist",
            "correct the function manifest, its role or its code",
        ),
    },
    "cloudrun": {
        "expired credentials": Failure(
            refuse_promotion(401, "UNAUTHENTICATED", "the key was deleted"),
            "Google Cloud does not accept the credentials of deploy target cloud",
            "renew credentialsFile of the deploy target",
        ),
        "a throttled API": Failure(
            refuse_promotion(429, "RESOURCE_EXHAUSTED", "Quota exceeded"),
            "Cloud Run throttles the requests",
            "raise the quota of the Cloud Run Admin API",
        ),
        "a container that crashes": Failure(
            crash, "is not ready: it crashes", "correct the service manifest or the image"
        ),
    },
}


@pytest.fixture
def cloud_run(tmp_path: Path) -> Iterator[CloudRun]:
    server = CloudRun(tmp_path)
    yield server
    server.close()


@pytest.fixture(params=FAILURES)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, amazon: Amazon, cloud_run: CloudRun
) -> Scene:
    is_google = request.param == "cloudrun"
    cloud = (
        cloud_run_cloud(cloud_run)
        if is_google
        else open_cloud(request.param, tmp_path, amazon, request)
    )
    return Scene(cloud, amazon, cloud_run)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", ["first", "second"])
async def test_a_failure_has_its_cause_and_its_remedy_and_the_version_before_serves(
    start_plane: StartControlPlane, origin: Origin, scene: Scene, generation: str, tmp_path: Path
) -> None:
    cloud = scene.cloud

    def files(tag: str, more: dict[str, Any]) -> dict[str, str]:
        # A canary of half of them has as many tasks as must stop before a wait ends early.
        service = {**EXTERNAL, "desiredCount": 6, **more}
        return {**cloud.files(tag), "shop/service.json": json.dumps(service)}

    origin.commit(files("v1", {}))
    async with start_plane() as plane:
        config, _ = await add_application(plane, origin, cloud, generation, tmp_path)
        watch = DeploymentWatch(plane)
        async with killed_piped(config, "--log-level=error"):
            done = await watch.ended(1, seconds=SECONDS)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            for number, (name, failure) in enumerate(FAILURES[cloud.plugin].items(), start=2):
                tag = CRASHING if failure.happens is crash else f"v2-{number}"
                failure.happens(scene, tag)
                origin.commit(files(tag, failure.service))
                failed = await watch.ended(number, seconds=SECONDS)
                assert DeploymentStatus(failed.status) is DeploymentStatus.FAILURE, name
                [stage] = [each for each in failed.stages if each.status == StageStatus.FAILURE]
                assert failure.cause in stage.status_reason, name
                assert failure.remedy in stage.status_reason, name
                assert statuses(failed)[cloud.rollback.stage] is StageStatus.SUCCESS, name
                assert cloud.state() == cloud.expected[0], name
