# SPDX-License-Identifier: Apache-2.0
"""Which manifests of functions are read and which are refused."""

from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.read import read_kind
from pipecd.config.report import ConfigMistake
from pipecd.plugins.aws_lambda.config import LambdaFunction

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


def read(spec: dict[str, Any]) -> LambdaFunction:
    return decode_plain(spec, LambdaFunction, what="function.yaml")


@pytest.mark.parametrize("spec", [IMAGE, S3, GIT], ids=["an image", "an object in S3", "Git"])
def test_a_function_is_read_from(spec: dict[str, Any]) -> None:
    assert read(spec).name == "hello"


def test_the_rest_is_optional() -> None:
    extras: dict[str, Any] = {
        "architectures": [{"name": "arm64"}],
        "ephemeralStorage": {"size": 1024},
        "tags": {"a": "b"},
        "environments": {"c": "d"},
        "vpcConfig": {"securityGroupIds": ["s"], "subnetIds": ["n"]},
        "layers": ["l"],
    }
    written = read({**IMAGE, **extras}).model_dump(mode="json", by_alias=True)
    assert {key: written[key] for key in extras} == extras
    assert read(IMAGE).vpc_config is None
    assert read(IMAGE).ephemeral_storage is None


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


@pytest.mark.parametrize(("spec", "told"), REFUSED)
def test_a_function_is_refused_with(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigMistake, match=told):
        read(spec)


def test_a_manifest_is_a_file_of_its_own_kind() -> None:
    text = """
apiVersion: pipecd.dev/v1beta1
kind: LambdaFunction
spec: {name: hello, role: arn, image: 'repo:v1', memory: 512, timeout: 30}
"""
    found = read_kind(text, file="function.yaml", kind="LambdaFunction", to=LambdaFunction)
    assert found is not None
    assert found.image == "repo:v1"
