# SPDX-License-Identifier: Apache-2.0
"""The stages of the plugin, with moto behind a layer that is as strict as AWS."""

import json
from typing import Any

import pytest

from pipecd.sdk import DISPLAY_KEY, Backoff, StageStatus
from pipecd.sdk.aws import Polling
from plugins.aws_lambda.testbed import IMAGE, Application
from servers.amazon import REGION

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
OLD, NEW = "1111111aaaa", "2222222bbbb"


async def test_a_quick_sync_creates_a_function_with_all_traffic(application: Application) -> None:
    function = application.function(
        environments={"LEVEL": 3, "DEBUG": True},
        tags={"team": "shop"},
        ephemeralStorage={"size": 1024},
        architectures=[{"name": "arm64"}],
        vpcConfig={"subnetIds": ["subnet-1"], "securityGroupIds": ["sg-1"]},
    )
    result = await application.commit(OLD, function).run("LAMBDA_SYNC")
    assert (result.status, result.message) == (SUCCESS, "Version 1 gets all traffic")
    assert application.traffic() == ("1", {})
    shown = application.aws.get_function(FunctionName=application.name)
    assert shown["Code"]["ImageUri"] == f"{IMAGE}:v1"
    assert shown["Tags"] == {
        "team": "shop",
        "pipecd-dev-managed-by": "piped",
        "pipecd-dev-piped": "piped-1",
        "pipecd-dev-application": "application-1",
        "pipecd-dev-commit-hash": OLD,
    }
    configuration = shown["Configuration"]
    assert configuration["Environment"]["Variables"] == {"LEVEL": "3", "DEBUG": "true"}
    assert configuration["EphemeralStorage"] == {"Size": 1024}
    assert configuration["Architectures"] == ["arm64"]
    assert configuration["VpcConfig"]["SubnetIds"] == ["subnet-1"]
    assert application.host.stage_metadata[DISPLAY_KEY] == "version 1 100%"


async def test_a_canary_gets_a_growing_share(application: Application) -> None:
    old = await application.deploy(OLD)
    new = application.commit(NEW, application.function("v2"), running=old)
    rolled_out = await new.run("LAMBDA_CANARY_ROLLOUT")
    assert rolled_out.message == "Version 2 is published, without traffic"
    assert application.traffic() == ("1", {})
    assert application.host.plugin_metadata[f"{application.name}-rollout"] == "2"
    promoted = await new.run("LAMBDA_PROMOTE", {"percent": "10%"}, index=1)
    assert promoted.message == "The traffic goes to version 2 10%, version 1 90%"
    assert application.traffic() == ("2", {"1": 0.9})
    assert application.host.stage_metadata["promote-percentage"] == "10"
    assert (await new.run("LAMBDA_PROMOTE", {"percent": 60}, index=2)).status is SUCCESS
    assert application.traffic() == ("2", {"1": 0.4})
    # A stage that is repeated changes nothing.
    assert (await new.run("LAMBDA_PROMOTE", {"percent": 60}, index=2)).status is SUCCESS
    assert application.traffic() == ("2", {"1": 0.4})
    assert (await new.run("LAMBDA_PROMOTE", {"percent": 100}, index=3)).status is SUCCESS
    assert application.traffic() == ("2", {})
    # The version before the deployment is known also after all traffic has left it.
    assert (await new.run("LAMBDA_PROMOTE", {"percent": 30}, index=4)).status is SUCCESS
    assert application.traffic() == ("2", {"1": 0.7})
    assert (await new.run("LAMBDA_PROMOTE", {}, index=5)).status is SUCCESS
    assert application.traffic() == ("1", {})


async def test_a_rollback_of_a_canary_restores_traffic_and_function(
    application: Application,
) -> None:
    old = await application.deploy(OLD, application.function(environments={"A": "1"}))
    changed = application.function("v2", environments={"A": "2"}, memory=256, tags={"new": "x"})
    new = application.commit(NEW, changed, running=old)
    assert (await new.run("LAMBDA_CANARY_ROLLOUT")).status is SUCCESS
    assert (await new.run("LAMBDA_PROMOTE", {"percent": 30})).status is SUCCESS
    result = await application.rollback(new)
    assert (result.status, result.message) == (SUCCESS, "The traffic goes to version 1 100%")
    assert application.traffic() == ("1", {})
    shown = application.aws.get_function(FunctionName=application.name)
    assert shown["Configuration"]["MemorySize"] == 128
    assert shown["Configuration"]["Environment"]["Variables"] == {"A": "1"}
    assert shown["Code"]["ImageUri"] == f"{IMAGE}:v1"
    assert shown["Tags"]["pipecd-dev-commit-hash"] == OLD
    assert "new" not in shown["Tags"]


async def test_a_rollback_of_a_quick_sync_restores_the_traffic(application: Application) -> None:
    # Upstream leaves the traffic with the version that failed.
    old = await application.deploy(OLD)
    new = application.commit(NEW, application.function("v2"), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    # Piped was killed after the traffic was changed: the stage stores its own traffic not.
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert (await application.rollback(new)).status is SUCCESS
    assert application.traffic() == ("1", {})


async def test_a_rollback_restores_the_shares_of_two_versions(application: Application) -> None:
    old = await application.deploy(OLD)
    await application.deploy("3333333", application.function("v2"))
    application.aws.update_alias(
        FunctionName=application.name,
        Name="Service",
        FunctionVersion="2",
        RoutingConfig={"AdditionalVersionWeights": {"1": 0.25}},
    )
    new = application.commit(NEW, application.function("v3"), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert application.traffic() == ("3", {})
    assert (await application.rollback(new)).status is SUCCESS
    assert application.traffic() == ("2", {"1": 0.25})


async def test_a_rollback_without_changed_traffic_restores_the_function(
    application: Application,
) -> None:
    old = await application.deploy(OLD)
    bad = f"{IMAGE}:v2"
    application.rules.failing[bad] = "The image cannot be pulled."
    new = application.commit(NEW, application.function("v2"), running=old)
    result = await new.run("LAMBDA_SYNC")
    assert result.status is FAILURE
    assert result.message == (
        f"AWS could not update function {application.name}: The image cannot be pulled.; "
        "correct the function manifest, its role or its code"
    )
    assert application.traffic() == ("1", {})
    assert (await application.rollback(new)).status is SUCCESS
    assert application.traffic() == ("1", {})
    shown = application.aws.get_function(FunctionName=application.name)
    assert shown["Code"]["ImageUri"] == f"{IMAGE}:v1"


async def test_a_canary_of_upstream_is_continued_and_rolled_back(application: Application) -> None:
    old = await application.deploy(OLD)
    await application.deploy("other", application.function("v2"))
    # What upstream's piped stores; it keeps a version without traffic in the alias.
    original = {"primary": {"version": "1", "percent": 100}}
    application.host.plugin_metadata |= {
        f"{application.name}-rollout": "2",
        "original-traffic-": json.dumps(original),
    }
    application.aws.update_alias(
        FunctionName=application.name,
        Name="Service",
        FunctionVersion="2",
        RoutingConfig={"AdditionalVersionWeights": {"1": 0.9}},
    )
    new = application.commit(NEW, application.function("v2"), running=old)
    assert (await new.run("LAMBDA_PROMOTE", {"percent": 50})).status is SUCCESS
    assert application.traffic() == ("2", {"1": 0.5})
    assert (await application.rollback(new)).status is SUCCESS
    assert application.traffic() == ("1", {})


async def test_a_first_deployment_by_pipeline_gets_all_traffic(application: Application) -> None:
    first = application.commit(OLD)
    assert (await first.run("LAMBDA_CANARY_ROLLOUT")).status is SUCCESS
    assert (await first.run("LAMBDA_PROMOTE", {"percent": 10}, index=1)).status is SUCCESS
    assert application.traffic() == ("1", {})
    failed = await application.rollback(first)
    assert failed.status is FAILURE
    assert "There is no commit to roll back to" in failed.message


async def test_a_deleted_alias_fails_the_promotion_and_is_restored_by_the_rollback(
    application: Application,
) -> None:
    old = await application.deploy(OLD)
    application.aws.delete_alias(FunctionName=application.name, Name="Service")
    new = application.commit(NEW, application.function("v2"), running=old)
    assert (await new.run("LAMBDA_CANARY_ROLLOUT")).status is SUCCESS
    result = await new.run("LAMBDA_PROMOTE", {"percent": 10}, index=1)
    assert result.status is FAILURE
    assert f"function {application.name} has no alias Service" in result.message
    assert "deploy with a quick sync" in result.message
    assert (await application.rollback(new)).status is SUCCESS
    version, weights = application.traffic()
    served = application.aws.get_function(FunctionName=application.name, Qualifier=version)
    assert (served["Code"]["ImageUri"], weights) == (f"{IMAGE}:v1", {})


async def test_a_rollback_of_a_renamed_function_leaves_the_old_one(
    application: Application,
) -> None:
    old = await application.deploy(OLD)
    await application.deploy("3333333", application.function("v2"))
    renamed: dict[str, Any] = application.function("v3")
    renamed["spec"]["name"] += "-new"
    new = application.commit(NEW, renamed, running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    result = await application.rollback(new)
    assert (result.status, result.message) == (
        SUCCESS,
        f"Function {application.name} is unchanged; function {application.name}-new is left as it is",
    )
    assert application.traffic() == ("2", {})


async def test_a_promotion_needs_a_rollout(application: Application) -> None:
    result = await application.commit(OLD).run("LAMBDA_PROMOTE", {"percent": 10})
    assert result.status is FAILURE
    assert "put the stage LAMBDA_CANARY_ROLLOUT before LAMBDA_PROMOTE" in result.message


async def test_only_what_differs_is_changed(application: Application) -> None:
    old = await application.deploy(OLD)
    assert (await old.run("LAMBDA_SYNC")).status is SUCCESS
    changes = application.amazon.operations("UpdateFunctionConfiguration", "TagResource")
    assert changes == []
    assert application.traffic() == ("2", {})


async def test_another_change_in_progress_is_waited_for(application: Application) -> None:
    old = await application.deploy(OLD)
    application.rules.reads = 4
    application.rules.make_busy(application.name, 5)
    new = application.commit(NEW, application.function("v2", memory=512), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert application.traffic() == ("2", {})
    assert any("Waiting for function" in line for line in application.host.lines)


async def test_a_change_that_never_ends_is_named(application: Application) -> None:
    await application.deploy(OLD)
    application.plugin._polling = Polling(within=0.1, backoff=Backoff(0.01, 0.01))
    application.rules.make_busy(application.name, 1000)
    result = await application.commit(NEW, application.function("v2")).run("LAMBDA_SYNC")
    assert result.status is FAILURE
    assert "was not updated within" in result.message
    assert "InProgress" in result.message


async def test_a_conflict_without_a_visible_change_is_retried(application: Application) -> None:
    await application.deploy(OLD)
    message = "The operation cannot be performed at this time."
    application.amazon.refuse(
        "UpdateFunctionCode", "ResourceConflictException", message, times=2, status=409
    )
    result = await application.commit(NEW, application.function("v2")).run("LAMBDA_SYNC")
    assert result.status is SUCCESS
    assert any("another change of function" in line for line in application.host.lines)
    application.plugin._polling = Polling(within=0.05, backoff=Backoff(0.01, 0.01))
    application.amazon.refuse(
        "UpdateFunctionCode", "ResourceConflictException", message, status=409
    )
    result = await application.commit("3333333", application.function("v3")).run("LAMBDA_SYNC")
    assert result.status is FAILURE
    assert "is in progress all the time" in result.message
    assert application.traffic() == ("2", {})


async def test_a_function_of_another_package_type_is_refused(application: Application) -> None:
    await application.deploy(OLD)
    other = application.function(s3Bucket="b", s3Key="k", handler="a.b", runtime="python3.12")
    result = await application.commit(NEW, other).run("LAMBDA_SYNC")
    assert result.status is FAILURE
    assert "exists with the package type Image, which cannot be changed to Zip" in result.message


BROKEN: dict[str, tuple[str, str, str]] = {
    "expired": ("GetFunction", "ExpiredTokenException", "expired"),
    "denied": ("UpdateFunctionCode", "AccessDeniedException", "denies"),
    "throttled": ("GetAlias", "TooManyRequestsException", "throttles"),
    "invalid": ("UpdateFunctionCode", "InvalidParameterValueException", "rejected the request"),
}


@pytest.mark.parametrize(("operation", "code", "text"), BROKEN.values(), ids=BROKEN)
async def test_errors_of_aws_are_named(
    application: Application, operation: str, code: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecd.sdk.aws._MAX_ATTEMPTS", 2)
    old = await application.deploy(OLD)
    application.amazon.refuse(
        operation,
        code,
        "because of the tests",
        status=429 if text == "throttles" else 403 if text != "rejected the request" else 400,
    )
    new = application.commit(NEW, application.function("v2"), running=old)
    result = await new.run("LAMBDA_SYNC")
    assert result.status is FAILURE
    assert text in result.message
    assert "because of the tests" in result.message
    application.amazon.allow(operation)
    assert application.traffic() == ("1", {})


async def test_a_package_in_s3(application: Application) -> None:
    s3 = application.amazon.client("s3")
    bucket = f"bucket-{application.name}"
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_object(Bucket=bucket, Key="code.zip", Body=_zip())
    function = application.function(
        s3Bucket=bucket, s3Key="code.zip", handler="a.b", runtime="python3.12"
    )
    await application.deploy(OLD, function)
    shown = application.configuration()
    assert (shown["Handler"], shown["Runtime"]) == ("a.b", "python3.12")
    changed: dict[str, Any] = {**function, "spec": {**function["spec"], "handler": "c.d"}}
    assert (await application.commit(NEW, changed).run("LAMBDA_SYNC")).status is SUCCESS
    assert application.configuration()["Handler"] == "c.d"


def _zip() -> bytes:
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.py", "def b(*_): pass")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("kind: Deployment", "function.yaml must be a LambdaFunction of pipecd.dev/v1beta1"),
        ("a: [", "not valid YAML"),
        (
            "{apiVersion: pipecd.dev/v1beta1, kind: LambdaFunction, spec: {name: x}}",
            "role is missing",
        ),
    ],
)
async def test_a_manifest_with_mistakes(
    application: Application, function: str, error: str
) -> None:
    result = await application.commit(OLD, function).run("LAMBDA_SYNC")
    assert result.status is FAILURE
    assert error in result.message
