# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Lambda plugin in both generations, and the kind LambdaFunction."""

from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.read import read_kind
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.aws_lambda.config import (
    CONFIG,
    LambdaApplication,
    LambdaFunction,
    LambdaTarget,
)
from plugins.conftest import ReadV0


def test_the_default_function_manifest() -> None:
    section = decode_plain({}, LambdaApplication, what="lambda")
    assert section.input.function_manifest_file == "function.yaml"


def test_a_v0_application_becomes_a_section(read_v0: ReadV0) -> None:
    fields = {"functionManifestFile": "f.yaml", "autoRollback": False}
    read = read_v0("LambdaApp", {"input": fields, "quickSync": {}})
    assert read.plugins == {
        "lambda": {"input": {"functionManifestFile": "f.yaml"}, "quickSync": {}}
    }
    assert read.planner.auto_rollback is False


def test_a_v0_application_rolls_back_by_default(read_v0: ReadV0) -> None:
    assert read_v0("LambdaApp", {}).planner.auto_rollback is True


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"quickSync": {"a": 1}}, id="quick sync"),
        pytest.param({"input": {"architectures": []}}, id="input"),
    ],
)
def test_a_v0_file_is_refused_for_an_unknown_key_of(read_v0: ReadV0, spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigMistake, match="unknown field"):
        read_v0("LambdaApp", spec)


STAGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("LAMBDA_SYNC", {}, {}),
    ("LAMBDA_CANARY_ROLLOUT", {}, {}),
    ("LAMBDA_PROMOTE", {"percent": 30}, {"percent": "30"}),
    ("LAMBDA_PROMOTE", {}, {"percent": "0"}),
]


@pytest.mark.parametrize(("name", "options", "expected"), STAGES)
def test_a_v0_stage_is_a_stage_of_the_plugin(
    read_v0: ReadV0,
    name: str,
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    [stage] = read_v0("LambdaApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_) == (name, expected)
    assert decode_plain(stage.with_, CONFIG.stages[name], what=name)


def test_the_defaults_of_a_target() -> None:
    target = decode_plain({"region": "r"}, LambdaTarget, what="target")
    assert target.aws_api_polling_interval == Duration(15)
    rest = target.model_dump(exclude={"region", "aws_api_polling_interval"})
    assert set(rest) == {"profile", "credentials_file", "role_arn", "token_file", "endpoint"}
    assert not any(rest.values())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({}, "region must be set", id="no region"),
        pytest.param(
            {"region": "r", "awsAPIPollingInterval": "-1s"},
            "must be greater than or equal to 0",
            id="a negative interval",
        ),
    ],
)
def test_an_invalid_target_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        decode_plain(config, LambdaTarget, what="target")


IMAGE: dict[str, Any] = {
    "name": "hello",
    "role": "arn",
    "image": "repo:v1",
    "memory": 512,
    "timeout": 30,
}
CODE: dict[str, Any] = {
    **{key: value for key, value in IMAGE.items() if key != "image"},
    "handler": "app.handler",
    "runtime": "python3.12",
}
S3 = {**CODE, "s3Bucket": "b", "s3Key": "k", "s3ObjectVersion": "1"}
GIT = {**CODE, "source": {"git": "git@x:y", "ref": "v1", "path": "src"}}


def read_function(spec: dict[str, Any]) -> LambdaFunction:
    return decode_plain(spec, LambdaFunction, what="function.yaml")


@pytest.mark.parametrize("spec", [IMAGE, S3, GIT], ids=["an image", "an object in S3", "Git"])
def test_a_function_has_code_from(spec: dict[str, Any]) -> None:
    assert read_function(spec).name == "hello"


def test_optional_fields_of_a_function() -> None:
    extras: dict[str, Any] = {
        "architectures": [{"name": "arm64"}],
        "ephemeralStorage": {"size": 1024},
        "tags": {"a": "b"},
        "environments": {"c": "d"},
        "vpcConfig": {"securityGroupIds": ["s"], "subnetIds": ["n"]},
        "layers": ["l"],
    }
    dumped = read_function({**IMAGE, **extras}).model_dump(mode="json", by_alias=True)
    assert {key: dumped[key] for key in extras} == extras
    assert read_function(IMAGE).vpc_config is None
    assert read_function(IMAGE).ephemeral_storage is None


REFUSED = [
    pytest.param({**IMAGE, "name": ""}, "lambda function is missing", id="no name"),
    pytest.param({**IMAGE, "role": ""}, "role is missing", id="no role"),
    pytest.param({**IMAGE, "memory": 0}, "memory is missing", id="no memory"),
    pytest.param({**IMAGE, "timeout": 0}, "timeout is missing or out of range", id="no timeout"),
    pytest.param({**IMAGE, "timeout": 901}, "timeout is missing or out of range", id="too long"),
    pytest.param({**CODE}, "remote git source is missing", id="no code"),
    pytest.param({**CODE, "source": {"git": "g"}}, "source ref is missing", id="no ref"),
    pytest.param({**S3, "handler": ""}, "handler is missing", id="no handler"),
    pytest.param({**S3, "runtime": ""}, "runtime is missing", id="no runtime"),
    pytest.param(
        {**IMAGE, "architectures": [{"name": "sparc"}]},
        "architecture is invalid",
        id="an architecture that does not exist",
    ),
    pytest.param(
        {**IMAGE, "ephemeralStorage": {"size": 511}}, "out of range", id="too little storage"
    ),
    pytest.param(
        {**IMAGE, "ephemeralStorage": {"size": 10241}}, "out of range", id="too much storage"
    ),
]


@pytest.mark.parametrize(("spec", "message"), REFUSED)
def test_an_invalid_function_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        read_function(spec)


def test_a_function_manifest_is_read_by_its_kind() -> None:
    text = """
apiVersion: pipecd.dev/v1beta1
kind: LambdaFunction
spec: {name: hello, role: arn, image: 'repo:v1', memory: 512, timeout: 30}
"""
    function = read_kind(text, file="function.yaml", kind="LambdaFunction", to=LambdaFunction)
    assert function is not None
    assert function.image == "repo:v1"
