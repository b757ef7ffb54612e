# SPDX-License-Identifier: Apache-2.0
"""Planning, plans as JSON, flags and errors."""

from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.terraform.configuration import modules_of
from pipecd.plugins.terraform.errors import explain
from pipecd.plugins.terraform.flags import split_planning_flags
from pipecd.plugins.terraform.plan import ResourceChange, is_approved_before, read_plan
from pipecd.plugins.terraform.plugin import TerraformPlugin
from pipecd.plugins.terraform.sensitive import masked
from pipecd.sdk import ArtifactKind, DeployTarget, PluginEntry, RequestedStage, UserMistake, Version
from pipecd.sdk.testing import StageBench


def change(address: str, *actions: str, **fields: Any) -> dict[str, Any]:
    return {"address": address, "change": {"actions": [*actions], **fields}}


def old_object(address: str) -> dict[str, Any]:
    """The change of a resource whose replacement exists already."""
    return {**change(address, "delete"), "deposed": "1f"}


PLAN = {
    "resource_changes": [
        change("a.create", "create"),
        change("a.update", "update"),
        change("a.delete", "delete"),
        change("a.replace", "delete", "create"),
        change("a.same", "no-op"),
        change("data.a.read", "read"),
        change("a.import", "no-op", importing={"id": "1"}),
    ],
    "output_changes": {"x": {"actions": ["create"]}, "y": {"actions": ["no-op"]}},
}


def test_a_replacement_counts_as_an_add_and_a_destroy() -> None:
    plan = read_plan(PLAN)
    assert plan.summary == "1 to import, 2 to add, 1 to change, 2 to destroy"
    assert plan.signs == "+2 ~1 -2 1 imported"
    assert plan.outputs == ("x",)
    assert [str(each) for each in plan.changes] == [
        "create a.create",
        "change a.update",
        "destroy a.delete",
        "replace a.replace",
        "import a.import",
    ]


def test_the_digest_depends_on_values_but_not_on_secrets() -> None:
    def digest(value: str, *, is_secret: bool) -> str:
        after = {"after": {"x": value}, "after_sensitive": {"x": is_secret}}
        return read_plan({"resource_changes": [change("a.b", "create", **after)]}).digest

    assert digest("1", is_secret=False) != digest("2", is_secret=False)
    assert digest("1", is_secret=True) == digest("2", is_secret=True)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        pytest.param([], True, id="nothing"),
        pytest.param([change("a", "create")], True, id="a part"),
        pytest.param([change("a", "delete", "create")], True, id="a tainted one"),
        pytest.param([change("a", "delete")], False, id="another action"),
        pytest.param([change("r", "create")], True, id="a replaced one that is destroyed"),
        pytest.param([change("r", "delete")], False, id="only to destroy a replaced one"),
        pytest.param([old_object("r")], True, id="the old object of a replaced one"),
        pytest.param([old_object("a")], False, id="an old object of another one"),
        pytest.param([change("c", "create")], False, id="another resource"),
    ],
)
def test_the_remainder_of_an_interrupted_apply(rest: list[Any], expected: bool) -> None:
    shown = (
        ResourceChange("a", ("create",)),
        ResourceChange("b", ("update",)),
        ResourceChange("r", ("create", "delete")),
    )
    assert read_plan({"resource_changes": rest}).is_remainder_of(shown) is expected


def test_marks_cover_what_is_below_them() -> None:
    value = {"a": {"b": "1"}, "c": ["2", "3"], "d": "4"}
    marks = {"a": True, "c": [False, True]}
    hidden = "(sensitive value)"
    assert masked(value, marks) == {"a": hidden, "c": ["2", hidden], "d": "4"}


def test_flags_of_planning_are_told_from_the_others() -> None:
    flags = ("-var", "a=b", "-parallelism=1", "-target=x", "--var-file=f", "-lock-timeout", "5s")
    planning, others = split_planning_flags(flags)
    assert planning == ["-var", "a=b", "-target=x", "--var-file=f"]
    assert others == ["-parallelism=1", "-lock-timeout", "5s"]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ("TERRAFORM_PLAN WAIT_APPROVAL TERRAFORM_APPLY", True),
        ("WAIT_APPROVAL TERRAFORM_PLAN TERRAFORM_APPLY", False),
        ("WAIT_APPROVAL TERRAFORM_APPLY", False),
        ("TERRAFORM_PLAN WAIT_APPROVAL TERRAFORM_PLAN TERRAFORM_APPLY", False),
        ("", False),
    ],
)
def test_an_approval_counts_after_the_plan(stages: str, expected: bool) -> None:
    names = stages.split()
    assert is_approved_before(names, len(names) - 1) is expected


MODULES = """
module "web" {
  source  = "terraform-aws-modules/alb/aws"
  version = "9.1.0"
}
module "db" {
  source = "./db"
}
resource "terraform_data" "x" {}
"""


def test_modules_are_versions() -> None:
    assert modules_of(MODULES) == [
        Version("9.1.0", "web", "terraform-aws-modules/alb/aws", ArtifactKind.TERRAFORM_MODULE),
        Version("", "db", "./db", ArtifactKind.TERRAFORM_MODULE),
    ]


def test_a_computed_source_is_a_mistake() -> None:
    with pytest.raises(UserMistake, match="source of module web must be a plain text"):
        modules_of('module "web" {\n  source = var.source\n}\n')


async def test_an_application_without_files_is_a_mistake(tmp_path: Path) -> None:
    entry = PluginEntry("terraform", {}, (DeployTarget("dev", {}, {}),))
    bench = StageBench(TerraformPlugin(), tmp_path, entry=entry)
    with pytest.raises(UserMistake, match="there are no Terraform files"):
        await TerraformPlugin().versions(bench.plan_context())


async def test_stages_of_quick_sync_and_pipeline() -> None:
    plugin = TerraformPlugin()
    quick = await plugin.quick_sync(rollback=True)
    assert [(stage.name, stage.is_rollback, stage.description) for stage in quick] == [
        ("TERRAFORM_APPLY", False, "Sync by applying any detected changes"),
        ("TERRAFORM_ROLLBACK", True, "Rollback the deployment"),
    ]
    requested = [
        RequestedStage("TERRAFORM_PLAN", 1, "", b""),
        RequestedStage("TERRAFORM_APPLY", 3, "", b""),
    ]
    planned = await plugin.plan_pipeline(requested, rollback=True)
    assert [(stage.name, stage.index) for stage in planned] == [
        ("TERRAFORM_PLAN", 1),
        ("TERRAFORM_APPLY", 3),
        ("TERRAFORM_ROLLBACK", 1),
    ]


LOCKED = """\
\x1b[31m╷\x1b[0m
│ Error: Error acquiring the state lock
│
│ Error message: resource temporarily unavailable
│ Lock Info:
│   ID:        4cd0ae13
│   Path:      s3://bucket/key
│   Operation: OperationTypeApply
│   Who:       ann@laptop
│   Version:   1.5.7
│   Created:   2026-11-16 13:00:00 UTC
╵
"""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param(
            LOCKED,
            "the state is locked by ann@laptop for apply since 2026-11-16 13:00:00 UTC; wait until "
            "that has ended and deploy again, or run `terraform force-unlock 4cd0ae13` if it runs "
            "no more",
            id="locked",
        ),
        pytest.param(
            "Error: Error acquiring the state lock\n\n"
            "Error message: HTTP remote state endpoint requires auth",
            "terraform plan: Error acquiring the state lock: Error message: HTTP remote state "
            "endpoint requires auth; the credentials are missing, expired or wrong: renew those "
            "that piped uses",
            id="expired credentials for a lock",
        ),
        pytest.param(
            "Error: Error acquiring the state lock\n\nError message: connection refused",
            "terraform plan: Error acquiring the state lock: Error message: connection refused; "
            "check that piped can reach the backend of the state and that nobody else uses it, and "
            "deploy again",
            id="a lock that nobody holds",
        ),
        pytest.param(
            "Error: error configuring S3 Backend\n\nExpiredToken: The provided token has expired.",
            "terraform plan: error configuring S3 Backend: ExpiredToken: The provided token has "
            "expired.; the credentials are missing, expired or wrong: renew those that piped uses",
            id="expired credentials",
        ),
        pytest.param(
            "Error: Unsupported Terraform Core version\n\n  on main.tf line 2, in terraform:\n"
            '   2:   required_version = ">= 9"\n\nThis configuration does not support 1.5.7.',
            "terraform plan: Unsupported Terraform Core version: on main.tf line 2, in terraform: "
            '2: required_version = ">= 9": This configuration does not support 1.5.7.; set '
            "terraformVersion of the application to a version that its files accept",
            id="wrong version",
        ),
        pytest.param(
            "Error: one\n\nError: two",
            "terraform plan failed: one (and 1 more error)",
            id="two",
        ),
        pytest.param(
            "Error: one\n\nError: two\n\nError: three",
            "terraform plan failed: one (and 2 more errors)",
            id="several",
        ),
        pytest.param(
            "╷\n│ Error: Terraform encountered problems during initialisation, including problems\n"
            "│ with the configuration, described below.\n│ \n"
            "│ The Terraform configuration must be valid before initialization so that\n"
            "│ Terraform can determine which modules and providers need to be installed.\n│ \n"
            "│ \n╵\n╷\n│ Error: Missing name for resource\n│ \n"
            '│   on main.tf line 10, in resource "terraform_data":\n'
            '│   10: resource "terraform_data" {\n│ \n'
            "│ All resource blocks must have 2 labels (type, name).\n╵\n",
            "terraform plan failed: Missing name for resource: on main.tf line 10, in resource "
            '"terraform_data": 10: resource "terraform_data" {: All resource blocks must have 2 '
            "labels (type, name).",
            id="the mistake after the introduction of it",
        ),
        pytest.param(
            "Error: Terraform encountered problems during initialisation\n",
            "terraform plan failed: Terraform encountered problems during initialisation",
            id="an introduction without a mistake",
        ),
        pytest.param("", "terraform plan failed: it ended with 1", id="nothing"),
    ],
)
def test_errors_say_what_to_do(output: str, expected: str) -> None:
    assert str(explain("terraform", "plan", output, 1)) == expected
