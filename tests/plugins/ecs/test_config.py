# SPDX-License-Identifier: Apache-2.0
"""The configuration of the ECS plugin, in both generations."""

from operator import attrgetter
from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.plugins.ecs.config import (
    CONFIG,
    EcsApplication,
    EcsCanaryRolloutOptions,
    EcsTrafficRoutingOptions,
)
from pipecd.sdk.aws import AwsTarget
from plugins.conftest import ReadV0


def app(section: dict[str, Any]) -> EcsApplication:
    return decode_plain(section, EcsApplication, what="ecs")


DEFAULTS = [
    ("input.task_definition_file", "taskdef.json"),
    ("input.service_definition_file", ""),
    ("input.run_standalone_task", False),
    ("input.cluster_arn", ""),
    ("input.launch_type", "FARGATE"),
    ("input.access_type", "ELB"),
    ("input.awsvpc_configuration.subnets", ()),
    ("input.awsvpc_configuration.assign_public_ip", ""),
    ("input.awsvpc_configuration.security_groups", ()),
    ("input.target_groups.primary", None),
    ("input.target_groups.canary", None),
    ("quick_sync.recreate", False),
]


@pytest.mark.parametrize("section", [{}, {"input": None}, {"input": {}}], ids=str)
@pytest.mark.parametrize(("attribute", "expected"), DEFAULTS, ids=[name for name, _ in DEFAULTS])
def test_the_default_of(section: dict[str, Any], attribute: str, expected: object) -> None:
    assert attrgetter(attribute)(app(section)) == expected


GROUP = {
    "targetGroupArn": "arn",
    "containerName": "web",
    "containerPort": 80,
    "loadBalancerName": "lb",
}
WHOLE: dict[str, Any] = {
    "input": {
        "taskDefinitionFile": "task.yaml",
        "serviceDefinitionFile": "service.yaml",
        "clusterArn": "arn",
        "launchType": "EC2",
        "awsvpcConfiguration": {
            "subnets": ["a"],
            "assignPublicIp": "ENABLED",
            "securityGroups": ["b"],
        },
        "accessType": "SERVICE_DISCOVERY",
        "targetGroups": {"primary": GROUP, "canary": GROUP},
        "runStandaloneTask": False,
    },
    "quickSync": {"recreate": True},
}


def test_every_key_of_a_section_is_read() -> None:
    assert app(WHOLE).model_dump(mode="json", by_alias=True) == WHOLE


def test_a_v0_application_becomes_a_section(read_v0: ReadV0) -> None:
    spec = {**WHOLE, "input": {**WHOLE["input"], "autoRollback": False}}
    read = read_v0("ECSApp", spec)
    assert read.plugins == {"ecs": WHOLE}
    assert read.planner.auto_rollback is False


def test_a_v0_application_runs_a_standalone_task_and_rolls_back_by_default(
    read_v0: ReadV0,
) -> None:
    read = read_v0("ECSApp", {})
    assert app(dict(read.plugins["ecs"])).input.run_standalone_task is True
    assert read.planner.auto_rollback is True


def test_access_types_are_case_sensitive(read_v0: ReadV0) -> None:
    with pytest.raises(ConfigMistake, match="invalid accessType: elb"):
        read_v0("ECSApp", {"input": {"accessType": "elb"}})


STAGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ECS_SYNC", {"recreate": True}, {}),
    ("ECS_CANARY_ROLLOUT", {"scale": "30%"}, {"scale": 30}),
    ("ECS_CANARY_ROLLOUT", {}, {"scale": 0}),
    ("ECS_PRIMARY_ROLLOUT", {}, {}),
    ("ECS_TRAFFIC_ROUTING", {"canary": "20%"}, {"primary": 0, "canary": 20}),
    ("ECS_CANARY_CLEAN", {}, {}),
]


@pytest.mark.parametrize(("name", "options", "expected"), STAGES)
def test_a_v0_stage_has_plain_numbers(
    read_v0: ReadV0,
    name: str,
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    [stage] = read_v0("ECSApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_) == (name, expected)
    assert decode_plain(stage.with_, CONFIG.stages[name], what=name)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(12.5, 12.5), (0, 0), ("30%", 30), ("30", 30)],
    ids=["a fraction", "nothing", "a percentage", "text"],
)
def test_the_scale_of_a_canary(scale: object, expected: float) -> None:
    options = decode_plain({"scale": scale}, EcsCanaryRolloutOptions, what="stage")
    assert options.scale == expected


@pytest.mark.parametrize("scale", [-1, 101, "x", True])
def test_an_invalid_scale_is_refused(scale: object) -> None:
    with pytest.raises(ConfigMistake):
        decode_plain({"scale": scale}, EcsCanaryRolloutOptions, what="stage")


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        pytest.param({"primary": 70}, (70, 30), id="by the share of primary"),
        pytest.param({"canary": "20%"}, (80, 20), id="by the share of canary"),
        pytest.param({"primary": 60, "canary": 10}, (60, 40), id="by primary if both are set"),
        pytest.param(
            {"primary": 101, "canary": 10}, (90, 10), id="by canary if primary is invalid"
        ),
        pytest.param({}, (100, 0), id="all to primary by default"),
        pytest.param({"canary": 100}, (0, 100), id="all to canary"),
    ],
)
def test_the_traffic_split(options: dict[str, Any], shares: tuple[int, int]) -> None:
    assert decode_plain(options, EcsTrafficRoutingOptions, what="stage").shares() == shares


def test_the_default_credentials_are_used_without_settings() -> None:
    target = decode_plain({"region": "r"}, AwsTarget, what="target")
    rest = target.model_dump(exclude={"region"})
    assert set(rest) == {"profile", "credentials_file", "role_arn", "token_file", "endpoint"}
    assert not any(rest.values())


def test_a_target_requires_a_region() -> None:
    with pytest.raises(ConfigMistake, match="region must be set"):
        decode_plain({}, AwsTarget, what="target")
