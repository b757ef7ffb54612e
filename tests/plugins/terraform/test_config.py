# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Terraform plugin, in both generations."""

from operator import attrgetter
from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.plugins.terraform.config import (
    CONFIG,
    PlanOptions,
    TerraformApplication,
    TerraformTarget,
)
from plugins.conftest import ReadV0

COMMANDS = ("shared", "init", "plan", "apply")
DEFAULTS: list[tuple[str, object]] = [
    ("tool", ""),
    ("workspace", ""),
    ("terraform_version", ""),
    ("vars", ()),
    ("var_files", ()),
    *((f"command_flags.{command}", ()) for command in COMMANDS),
    *((f"command_envs.{command}", ()) for command in COMMANDS),
    ("require_approval_for_destroy", False),
]


@pytest.mark.parametrize(("attribute", "expected"), DEFAULTS, ids=[name for name, _ in DEFAULTS])
def test_the_default_of(attribute: str, expected: object) -> None:
    section = decode_plain({}, TerraformApplication, what="terraform")
    assert attrgetter(attribute)(section) == expected


WHOLE: dict[str, Any] = {
    "tool": "opentofu",
    "workspace": "prod",
    "terraformVersion": "1.9.0",
    "vars": ["a=b"],
    "varFiles": ["prod.tfvars"],
    "commandFlags": {command: [f"-{command}"] for command in COMMANDS},
    "commandEnvs": {command: [f"{command}=1"] for command in COMMANDS},
    "requireApprovalForDestroy": True,
}


def test_every_key_of_a_section_is_read() -> None:
    section = decode_plain(WHOLE, TerraformApplication, what="terraform")
    assert section.model_dump(mode="json", by_alias=True) == WHOLE


def test_the_input_of_a_v0_application_is_the_section(
    read_v0: ReadV0,
) -> None:
    read = read_v0("TerraformApp", {"input": {**WHOLE, "autoRollback": True}, "quickSync": {}})
    assert read.plugins == {"terraform": WHOLE}
    assert read.planner.auto_rollback is True


def test_a_v0_application_does_not_roll_back_by_default(
    read_v0: ReadV0,
) -> None:
    assert read_v0("TerraformApp", {}).planner.auto_rollback is False


def test_a_v0_application_uses_its_pipeline_also_the_first_time(read_v0: ReadV0) -> None:
    stages = [{"name": "TERRAFORM_PLAN"}, {"name": "TERRAFORM_APPLY"}]
    assert read_v0("TerraformApp", {}, stages).planner.always_use_pipeline is True


def test_quick_sync_has_no_options(read_v0: ReadV0) -> None:
    with pytest.raises(ConfigMistake, match="unknown field"):
        read_v0("TerraformApp", {"quickSync": {"a": 1}})


STAGES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("TERRAFORM_SYNC", {}, "TERRAFORM_APPLY", {}),
    ("TERRAFORM_PLAN", {"exitOnNoChanges": True}, "TERRAFORM_PLAN", {"exitOnNoChanges": True}),
    ("TERRAFORM_PLAN", {}, "TERRAFORM_PLAN", {"exitOnNoChanges": False}),
    ("TERRAFORM_APPLY", {}, "TERRAFORM_APPLY", {}),
]


@pytest.mark.parametrize(("name", "options", "translated", "expected"), STAGES)
def test_a_v0_stage_is_a_stage_of_the_plugin(
    read_v0: ReadV0,
    name: str,
    options: dict[str, Any],
    translated: str,
    expected: dict[str, Any],
) -> None:
    [stage] = read_v0("TerraformApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_) == (translated, expected)
    assert decode_plain(stage.with_, CONFIG.stages[translated], what=name)


def test_a_plan_without_changes_continues_by_default() -> None:
    assert decode_plain({}, PlanOptions, what="stage").exit_on_no_changes is False


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({}, True, id="by default"),
        pytest.param({"driftDetectionEnabled": None}, True, id="with null"),
        pytest.param({"driftDetectionEnabled": False}, False, id="disabled"),
    ],
)
def test_drift_detection_of_a_target(config: dict[str, Any], expected: bool) -> None:
    target = decode_plain(config, TerraformTarget, what="target")
    assert (target.drift_detection_enabled, target.vars) == (expected, ())
