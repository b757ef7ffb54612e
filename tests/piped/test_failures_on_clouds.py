# SPDX-License-Identifier: Apache-2.0
"""What fails a deployment to a cloud through a whole piped: its stage says why and what to do.

The rollback leaves the version before serving.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from plugins.ecs.testbed import EXTERNAL
from servers.amazon import ACCOUNT, REGION, Amazon, Call
from servers.amazon_ecs import EcsRules
from servers.amazon_lambda import LambdaRules
from servers.clouds import SECONDS, Cloud, add_application, open_cloud
from servers.control_plane import StartControlPlane
from servers.deployment_watch import DeploymentWatch, statuses
from servers.origin import Origin
from servers.piped import killed_piped

EXPIRED = ("ExpiredTokenException", "The token is expired")
RENEW = ("the AWS credentials have expired", "renew the credentials that this process uses")


@dataclass(frozen=True)
class Failure:
    """What happens before the deployment of a tag, and what a stage says then."""

    happens: Callable[[Cloud, Amazon, str], None]
    cause: str
    remedy: str


def expire(operation: str) -> Callable[[Cloud, Amazon, str], None]:
    return lambda _, amazon, __: amazon.refuse(operation, *EXPIRED, times=1)


def fail_tasks(_: Cloud, amazon: Amazon, tag: str) -> None:
    rules = amazon.rules["ecs"]
    assert isinstance(rules, EcsRules)
    rules.failing[f"shop:{tag}"] = "CannotPullContainerError: not found"


def fail_function(_: Cloud, amazon: Amazon, tag: str) -> None:
    rules = amazon.rules["lambda"]
    assert isinstance(rules, LambdaRules)
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop:{tag}"
    rules.failing[image] = "The image does not exist"


def delete_alias(_: Cloud, amazon: Amazon, __: str) -> None:
    """Deletes the alias when the new version is published."""

    def delete(call: Call) -> None:
        if call.operation == "PublishVersion":
            amazon.on_answer = None
            name = call.parameters["FunctionName"]
            amazon.client("lambda").delete_alias(FunctionName=name, Name="Service")

    amazon.on_answer = delete


def crash(cloud: Cloud, _: Amazon, __: str) -> None:
    cloud.fail()


FAILURES: dict[str, dict[str, Failure]] = {
    "ecs": {
        "expired credentials": Failure(expire("UpdateServicePrimaryTaskSet"), *RENEW),
        "an image that cannot be pulled": Failure(
            fail_tasks,
            "stopped: CannotPullContainerError: not found",
            "check the image in the task definition",
        ),
    },
    "lambda": {
        "expired credentials": Failure(expire("UpdateAlias"), *RENEW),
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
        "a container that crashes": Failure(
            crash, "is not ready: it crashes", "correct the service manifest or the image"
        ),
    },
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", ["first", "second"])
@pytest.mark.parametrize("platform", FAILURES)
async def test_a_failure_has_its_cause_and_its_remedy_and_the_version_before_serves(
    request: pytest.FixtureRequest,
    start_plane: StartControlPlane,
    origin: Origin,
    amazon: Amazon,
    platform: str,
    generation: str,
    tmp_path: Path,
) -> None:
    cloud = open_cloud(platform, tmp_path, amazon, request)
    # A canary of half of them has as many tasks as must stop before a wait ends early.
    more = {"shop/service.json": json.dumps({**EXTERNAL, "desiredCount": 6})}
    origin.commit({**cloud.files("v1"), **more})
    async with start_plane() as plane:
        config, _ = await add_application(plane, origin, cloud, generation, tmp_path)
        watch = DeploymentWatch(plane)
        async with killed_piped(config, "--log-level=error"):
            done = await watch.ended(1, seconds=SECONDS)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            for number, (name, failure) in enumerate(FAILURES[platform].items(), start=2):
                # The image with this tag is the one that crashes on Cloud Run.
                tag = "v3" if platform == "cloudrun" else f"v{number}"
                failure.happens(cloud, amazon, tag)
                origin.commit({**cloud.files(tag), **more})
                failed = await watch.ended(number, seconds=SECONDS)
                assert DeploymentStatus(failed.status) is DeploymentStatus.FAILURE, name
                [stage] = [each for each in failed.stages if each.status == StageStatus.FAILURE]
                assert failure.cause in stage.status_reason, name
                assert failure.remedy in stage.status_reason, name
                assert statuses(failed)[cloud.rollback.stage] is StageStatus.SUCCESS, name
                assert cloud.state() == cloud.expected[0], name
