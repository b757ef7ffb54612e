# SPDX-License-Identifier: Apache-2.0
"""The layer over moto for Lambda: it refuses what AWS refuses, and takes its time."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from servers.amazon import ACCOUNT, REGION, Amazon
from servers.amazon_lambda import LambdaRules

ROLE = f"arn:aws:iam::{ACCOUNT}:role/tests"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop"


class Function:
    """A function with an image, which is idle, and its client."""

    def __init__(self, amazon: Amazon) -> None:
        self.name, self.client = f"web-{uuid4().hex[:8]}", amazon.client("lambda")
        rules = amazon.rules["lambda"]
        assert isinstance(rules, LambdaRules)
        self.rules = rules
        self.client.create_function(
            FunctionName=self.name,
            Role=ROLE,
            PackageType="Image",
            Code={"ImageUri": f"{IMAGE}:v1"},
        )
        self.settle()

    def settle(self) -> None:
        for _ in range(self.rules.reads + 1):
            self.read()

    def read(self) -> dict[str, Any]:
        return self.client.get_function_configuration(FunctionName=self.name)

    def publish(self) -> str:
        return self.client.publish_version(FunctionName=self.name)["Version"]

    def update(self, tag: str) -> dict[str, Any]:
        return self.client.update_function_code(FunctionName=self.name, ImageUri=f"{IMAGE}:{tag}")

    def alias(self, operation: str, version: str, **weights: float) -> None:
        getattr(self.client, operation)(
            FunctionName=self.name,
            Name="Service",
            FunctionVersion=version,
            RoutingConfig={
                "AdditionalVersionWeights": {k.removeprefix("v"): w for k, w in weights.items()}
            },
        )


@pytest.fixture
def function(amazon: Amazon) -> Function:
    iam = amazon.client("iam")
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="tests", AssumeRolePolicyDocument="{}")
    return Function(amazon)


REFUSED: dict[str, tuple[str, Callable[[Function], object]]] = {
    "a zip file for an image": (
        "InvalidParameterValueException",
        lambda f: f.client.update_function_code(FunctionName=f.name, ZipFile=b"x"),
    ),
    "a runtime of an image": (
        "InvalidParameterValueException",
        lambda f: f.client.update_function_configuration(FunctionName=f.name, Runtime="python3.12"),
    ),
    "a function that exists": (
        "ResourceConflictException",
        lambda f: f.client.create_function(
            FunctionName=f.name, Role=ROLE, PackageType="Image", Code={"ImageUri": IMAGE}
        ),
    ),
    "a zip file without a handler": (
        "InvalidParameterValueException",
        lambda f: f.client.create_function(
            FunctionName="other", Role=ROLE, Code={"S3Bucket": "bucket", "S3Key": "k"}
        ),
    ),
    "weights of two other versions": (
        "InvalidParameterValueException",
        lambda f: f.alias("create_alias", f.publish(), v2=0.1, v3=0.1),
    ),
    "a weight of more than everything": (
        "InvalidParameterValueException",
        lambda f: f.alias("create_alias", f.publish(), v2=1.1),
    ),
    "a weight of the version itself": (
        "InvalidParameterValueException",
        lambda f: f.alias("create_alias", f.publish(), v1=0.1),
    ),
    "a weight of a version that does not exist": (
        "ResourceNotFoundException",
        lambda f: f.alias("create_alias", f.publish(), v7=0.1),
    ),
}


@pytest.mark.parametrize(("code", "call"), REFUSED.values(), ids=REFUSED)
def test_lambda_refuses(function: Function, code: str, call: Callable[[Function], object]) -> None:
    with pytest.raises(ClientError) as refused:
        call(function)
    assert refused.value.response.get("Error", {}).get("Code") == code


def test_an_alias_is_created_once(function: Function) -> None:
    function.alias("create_alias", function.publish())
    with pytest.raises(ClientError, match="Alias already exists"):
        function.alias("create_alias", "1")


def test_a_change_is_in_progress_for_some_reads(function: Function) -> None:
    function.rules.reads = 2
    assert function.update("v2")["LastUpdateStatus"] == "InProgress"
    with pytest.raises(ClientError, match="An update is in progress"):
        function.publish()
    assert function.read()["LastUpdateStatus"] == "InProgress"
    assert function.read()["LastUpdateStatus"] == "Successful"
    assert function.publish() == "1"


def test_a_change_of_a_failing_image_fails_until_the_next_one(function: Function) -> None:
    function.rules.failing[f"{IMAGE}:v2"] = "The image cannot be pulled."
    function.update("v2")
    function.settle()
    shown = function.read()
    assert (shown["LastUpdateStatus"], shown["LastUpdateStatusReason"]) == (
        "Failed",
        "The image cannot be pulled.",
    )
    function.update("v3")
    function.settle()
    assert function.read()["LastUpdateStatus"] == "Successful"


def test_a_version_has_the_code_of_its_time(function: Function) -> None:
    assert function.publish() == "1"
    function.update("v2")
    function.settle()
    assert function.publish() == "2"
    images = [
        function.client.get_function(FunctionName=function.name, Qualifier=version)["Code"]
        for version in ("1", "2")
    ]
    assert [each["ImageUri"] for each in images] == [f"{IMAGE}:v1", f"{IMAGE}:v2"]


def test_settings_that_are_updated_are_shown(function: Function) -> None:
    function.client.update_function_configuration(
        FunctionName=function.name, EphemeralStorage={"Size": 1024}
    )
    function.settle()
    function.client.update_function_code(
        FunctionName=function.name, ImageUri=f"{IMAGE}:v1", Architectures=["arm64"]
    )
    shown = function.read()
    assert (shown["EphemeralStorage"], shown["Architectures"]) == ({"Size": 1024}, ["arm64"])
