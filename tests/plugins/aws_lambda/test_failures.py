# SPDX-License-Identifier: Apache-2.0
"""Whatever fails a deployment, the stage says why, and the running version serves afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pipecd.sdk import StageStatus
from plugins.aws_lambda.testbed import IMAGE, Application

OLD, NEW = "1111111", "2222222"
PIPELINE: list[tuple[str, dict[str, Any]]] = [
    ("LAMBDA_CANARY_ROLLOUT", {}),
    ("LAMBDA_PROMOTE", {"percent": 10}),
    ("LAMBDA_PROMOTE", {"percent": 100}),
]


def refuse(
    operation: str, code: str, said: str, status: int = 400
) -> Callable[[Application], object]:
    return lambda application: application.amazon.refuse(operation, code, said, status=status)


def fail_image(reason: str) -> Callable[[Application], object]:
    return lambda application: application.rules.failing.update({f"{IMAGE}:v2": reason})


def delete_alias(application: Application) -> None:
    application.aws.delete_alias(FunctionName=application.name, Name="Service")


@dataclass(frozen=True)
class Failure:
    """What happens before a stage, and what the stage says then."""

    stage: int
    happens: Callable[[Application], object]
    cause: str
    remedy: str


FAILURES = {
    "expired credentials": Failure(
        2,
        refuse("UpdateAlias", "ExpiredTokenException", "The token is expired", 403),
        "the AWS credentials have expired",
        "renew the credentials that this process uses",
    ),
    "a throttled API": Failure(
        2,
        refuse("UpdateAlias", "TooManyRequestsException", "Rate exceeded", 429),
        "AWS throttles the requests",
        "try again later, or ask AWS for a higher request rate",
    ),
    "an image that cannot be pulled": Failure(
        0,
        fail_image("The image with tag v2 does not exist"),
        "The image with tag v2 does not exist",
        "correct the function manifest, its role or its code",
    ),
    "an image that is refused": Failure(
        0,
        refuse(
            "UpdateFunctionCode",
            "InvalidParameterValueException",
            "Source image shop:v2 does not exist. Provide a valid source image.",
        ),
        "AWS rejected the request for function",
        "Provide a valid source image",
    ),
    "a deleted alias": Failure(
        1,
        delete_alias,
        "has no alias Service",
        "create the alias for the running version, or deploy with a quick sync",
    ),
}


@pytest.mark.parametrize("kind", ["Application", "LambdaApp"])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_the_running_version_serves_after_the_rollback_of(
    application: Application, failure: Failure, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecd.sdk.aws._MAX_ATTEMPTS", 2)
    application.kind = kind
    old = await application.deploy(OLD)
    new = application.commit(NEW, application.function("v2"), running=old)
    for index, (name, options) in enumerate(PIPELINE[: failure.stage]):
        done = await new.run(name, options, index=index)
        assert done.status is StageStatus.SUCCESS, done.message
    failure.happens(application)
    name, options = PIPELINE[failure.stage]
    failed = await new.run(name, options, index=failure.stage)
    assert failed.status is StageStatus.FAILURE
    assert failure.cause in failed.message
    assert failure.remedy in failed.message

    for operation in ("UpdateAlias", "UpdateFunctionCode"):
        application.amazon.allow(operation)
    rolled_back = await application.rollback(new)
    assert rolled_back.status is StageStatus.SUCCESS, rolled_back.message
    version, weights = application.traffic()
    served = application.aws.get_function(FunctionName=application.name, Qualifier=version)
    assert (served["Code"]["ImageUri"], weights) == (f"{IMAGE}:v1", {})


async def test_an_alias_that_somebody_else_edited_gets_its_traffic_back_by_the_rollback(
    application: Application,
) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, application.function("v2"), running=old)
    for index, (name, options) in enumerate(PIPELINE[:2]):
        assert (await new.run(name, options, index=index)).status is StageStatus.SUCCESS
    application.aws.update_alias(
        FunctionName=application.name,
        Name="Service",
        FunctionVersion="2",
        RoutingConfig={"AdditionalVersionWeights": {}},
    )
    assert (await application.rollback(new)).status is StageStatus.SUCCESS
    assert application.traffic() == ("1", {})
