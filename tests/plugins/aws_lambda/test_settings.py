# SPDX-License-Identifier: Apache-2.0
"""Settings that a commit adds, changes or removes, and their rollback; code in S3 and layers."""

import asyncio
import io
import zipfile
from typing import Any

import pytest

from pipecd.sdk import StageStatus
from plugins.aws_lambda.testbed import IMAGE, Application
from servers.amazon import REGION, Call

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
OLD, NEW = "1111111aaaa", "2222222bbbb"
VPC = {"subnetIds": ["subnet-1"], "securityGroupIds": ["sg-1"]}
OTHER_VPC = {"subnetIds": ["subnet-2"], "securityGroupIds": ["sg-2"]}
NO_VPC: dict[str, Any] = {"SubnetIds": [], "SecurityGroupIds": []}

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a VPC is added": ({}, {"vpcConfig": VPC}, {"VpcConfig": ["subnet-1"]}, {"VpcConfig": []}),
    "a VPC is changed": (
        {"vpcConfig": VPC},
        {"vpcConfig": OTHER_VPC},
        {"VpcConfig": ["subnet-2"]},
        {"VpcConfig": ["subnet-1"]},
    ),
    "a VPC is removed": (
        {"vpcConfig": VPC},
        {},
        {"VpcConfig": []},
        {"VpcConfig": ["subnet-1"]},
    ),
    "storage is added": (
        {},
        {"ephemeralStorage": {"size": 1024}},
        {"EphemeralStorage": 1024},
        {"EphemeralStorage": 512},
    ),
    "storage is removed": (
        {"ephemeralStorage": {"size": 1024}},
        {},
        {"EphemeralStorage": 512},
        {"EphemeralStorage": 1024},
    ),
    "the architecture is added": (
        {},
        {"architectures": [{"name": "arm64"}]},
        {"Architectures": ["arm64"]},
        {"Architectures": ["x86_64"]},
    ),
}


def shown(application: Application, names: Any) -> dict[str, Any]:
    live = application.configuration()
    values: dict[str, Any] = {
        "VpcConfig": (live.get("VpcConfig") or NO_VPC).get("SubnetIds"),
        "EphemeralStorage": live["EphemeralStorage"]["Size"],
        "Architectures": live["Architectures"],
    }
    return {name: values[name] for name in names}


@pytest.mark.parametrize(
    ("before", "after", "deployed", "restored"), SETTINGS.values(), ids=SETTINGS
)
async def test_settings_are_deployed_and_rolled_back(
    application: Application,
    before: dict[str, Any],
    after: dict[str, Any],
    deployed: dict[str, Any],
    restored: dict[str, Any],
) -> None:
    old = await application.deploy(OLD, application.function("v1", **before))
    new = application.commit(NEW, application.function("v2", **after), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert shown(application, deployed) == deployed
    assert (await application.rollback(new)).status is SUCCESS
    assert shown(application, restored) == restored


async def test_settings_that_no_commit_declares_stay(application: Application) -> None:
    old = await application.deploy(OLD)
    application.aws.update_function_configuration(
        FunctionName=application.name, EphemeralStorage={"Size": 2048}
    )
    new = application.commit(NEW, application.function("v2", memory=256), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert shown(application, ["EphemeralStorage"]) == {"EphemeralStorage": 2048}


def zipped(text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.py", text)
    return buffer.getvalue()


def put_packages(application: Application) -> tuple[str, list[str]]:
    """Stores two versions of an object; returns the bucket and the ids of the versions."""
    s3 = application.amazon.client("s3")
    bucket = f"bucket-{application.name}"
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    stored = [
        s3.put_object(Bucket=bucket, Key="code.zip", Body=zipped(f"def b(*_): return {number}"))
        for number in (1, 2)
    ]
    return bucket, [each["VersionId"] for each in stored]


async def test_an_object_in_s3_is_deployed_by_its_version_and_rolled_back(
    application: Application,
) -> None:
    bucket, versions = put_packages(application)

    def function(version: str) -> dict[str, Any]:
        place = {"s3Bucket": bucket, "s3Key": "code.zip", "s3ObjectVersion": version}
        return application.function(**place, handler="a.b", runtime="python3.12")

    old = await application.deploy(OLD, function(versions[0]))
    new = application.commit(NEW, function(versions[1]), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert (await application.rollback(new)).status is SUCCESS
    sent = [
        {key: call.parameters.get(key) for key in ("S3Bucket", "S3Key", "S3ObjectVersion")}
        for call in application.amazon.calls
        if call.operation == "UpdateFunctionCode"
    ]
    place = {"S3Bucket": bucket, "S3Key": "code.zip"}
    assert sent == [{**place, "S3ObjectVersion": version} for version in reversed(versions)]
    assert application.traffic() == ("1", {})


async def test_layers_are_added_removed_and_rolled_back(application: Application) -> None:
    bucket, versions = put_packages(application)
    layer = application.aws.publish_layer_version(
        LayerName=f"layer-{application.name}", Content={"ZipFile": zipped("x = 1")}
    )["LayerVersionArn"]

    def function(version: str, *layers: str) -> dict[str, Any]:
        place = {"s3Bucket": bucket, "s3Key": "code.zip", "s3ObjectVersion": version}
        return application.function(
            **place, handler="a.b", runtime="python3.12", layers=list(layers)
        )

    def live() -> list[str]:
        return [each["Arn"] for each in application.configuration().get("Layers", ())]

    old = await application.deploy(OLD, function(versions[0], layer))
    assert live() == [layer]
    new = application.commit(NEW, function(versions[1]), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert live() == []
    assert (await application.rollback(new)).status is SUCCESS
    assert live() == [layer]


async def test_an_alias_that_a_killed_stage_created_is_not_the_original_traffic(
    application: Application,
) -> None:
    old = await application.deploy(OLD)
    application.aws.delete_alias(FunctionName=application.name, Name="Service")
    new = application.commit(NEW, application.function("v2"), running=old)
    loop = asyncio.get_running_loop()

    def kill(call: Call) -> None:
        if call.operation == "CreateAlias":
            loop.call_soon_threadsafe(running.cancel)

    application.amazon.on_answer = kill
    running = asyncio.create_task(new.run("LAMBDA_SYNC"))
    await asyncio.wait({running})
    assert running.cancelled()
    application.amazon.on_answer = None
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert (await application.rollback(new)).status is SUCCESS
    version, weights = application.traffic()
    served = application.aws.get_function(FunctionName=application.name, Qualifier=version)
    assert (served["Code"]["ImageUri"], weights) == (f"{IMAGE}:v1", {})


@pytest.mark.parametrize("after", ["UpdateFunctionCode", "PublishVersion", "UpdateAlias"])
async def test_a_stage_that_is_killed_publishes_one_version(
    application: Application, after: str
) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, application.function("v2"), running=old)
    loop = asyncio.get_running_loop()

    def kill(call: Call) -> None:
        if call.operation == after:
            loop.call_soon_threadsafe(running.cancel)

    application.amazon.on_answer = kill
    running = asyncio.create_task(new.run("LAMBDA_SYNC"))
    await asyncio.wait({running})
    assert running.cancelled()
    application.amazon.on_answer = None
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    listed = application.aws.list_versions_by_function(FunctionName=application.name)["Versions"]
    assert [each["Version"] for each in listed] == ["$LATEST", "1", "2"]
    assert application.traffic() == ("2", {})


async def test_a_change_of_others_that_fails_while_it_is_waited_for_is_repaired(
    application: Application,
) -> None:
    old = await application.deploy(OLD)
    application.rules.make_busy(application.name, 3, failure="The role cannot be assumed.")
    new = application.commit(NEW, application.function("v2"), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    # What AWS shows after a failure is not what it runs, so all of it is sent again.
    assert "UpdateFunctionConfiguration" in application.amazon.operations()
