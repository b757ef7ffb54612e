# SPDX-License-Identifier: Apache-2.0
"""What the Lambda plugin is told, in both generations."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.aws_lambda.config import CONFIG, LambdaApplication, LambdaTarget


def test_an_empty_section_names_the_usual_file() -> None:
    section = decode_plain({}, LambdaApplication, what="lambda")
    assert section.input.function_manifest_file == "function.yaml"


def test_a_v0_application_becomes_a_section(read_v0: Callable[..., ApplicationSpec]) -> None:
    given = {"functionManifestFile": "f.yaml", "autoRollback": False}
    read = read_v0("LambdaApp", {"input": given, "quickSync": {}})
    assert read.plugins == {
        "lambda": {"input": {"functionManifestFile": "f.yaml"}, "quickSync": {}}
    }
    assert read.planner.auto_rollback is False


def test_a_v0_application_rolls_back_unless_told(read_v0: Callable[..., ApplicationSpec]) -> None:
    assert read_v0("LambdaApp", {}).planner.auto_rollback is True


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"quickSync": {"a": 1}}, id="quick sync"),
        pytest.param({"input": {"architectures": []}}, id="input"),
    ],
)
def test_a_v0_file_is_refused_for_an_unknown_key_of(
    read_v0: Callable[..., ApplicationSpec], spec: dict[str, Any]
) -> None:
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
    read_v0: Callable[..., ApplicationSpec],
    name: str,
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    [stage] = read_v0("LambdaApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_) == (name, expected)
    assert decode_plain(stage.with_, CONFIG.stages[name], what=name)


def test_an_account_is_asked_every_15_seconds_unless_told() -> None:
    target = decode_plain({"region": "r"}, LambdaTarget, what="target")
    assert target.aws_api_polling_interval == Duration(15)
    rest = target.model_dump(exclude={"region", "aws_api_polling_interval"})
    assert set(rest) == {"profile", "credentials_file", "role_arn", "token_file"}
    assert not any(rest.values())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        pytest.param({}, "region must be set", id="no region"),
        pytest.param(
            {"region": "r", "awsAPIPollingInterval": "-1s"},
            "must be greater than or equal to 0",
            id="a negative interval",
        ),
    ],
)
def test_an_account_is_refused_with(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigMistake, match=told):
        decode_plain(config, LambdaTarget, what="target")
