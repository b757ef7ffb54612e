# SPDX-License-Identifier: Apache-2.0
"""Sensitive values are in no output: not in logs, differences, errors and trees."""

import json

import pytest

from pipecd.plugins.terraform.sensitive import Secrets, plan_secrets, state_secrets
from pipecd.sdk import StageStatus
from plugins.terraform.testbed import PIPELINE, Application

# Terraform shows all of it: it was told that the value is public.
LEAKS = """
variable "key" {
  sensitive = true
}
resource "terraform_data" "web" {
  input = nonsensitive(var.key)
}
output "leak" {
  value = nonsensitive(var.key)
}
"""
FAILS = """
variable "key" {
  sensitive = true
}
resource "terraform_data" "web" {
  input = file("/nowhere/${nonsensitive(var.key)}")
}
"""
SECRET = "very-secret"


@pytest.mark.parametrize("given", ["vars", "varFiles", "commandEnvs", "commandFlags"])
async def test_no_value_of_a_sensitive_variable_is_shown(
    application: Application, given: str
) -> None:
    application.stages = PIPELINE
    application.section = {
        "vars": {"vars": [f"key={SECRET}"]},
        "varFiles": {"varFiles": ["a.tfvars"]},
        "commandEnvs": {"commandEnvs": {"shared": [f"TF_VAR_key={SECRET}"]}},
        "commandFlags": {"commandFlags": {"plan": [f"-var=key={SECRET}"]}},
    }[given]
    files = {"a.tfvars": f'key = "{SECRET}"\n'} if given == "varFiles" else {}
    bench = application.commit("one", LEAKS, files=files)
    assert (await bench.run("TERRAFORM_PLAN")).status is StageStatus.SUCCESS
    assert (await bench.run("TERRAFORM_APPLY", index=2)).status is StageStatus.SUCCESS
    log = "\n".join(application.host.lines)
    assert SECRET not in log
    assert 'leak = "(sensitive value)"' in log
    assert application.inputs == {"web": SECRET}


async def test_an_error_shows_none_either(application: Application) -> None:
    application.section = {"vars": [f"key={SECRET}"]}
    failed = await application.commit("one", FAILS).run("TERRAFORM_APPLY")
    assert failed.status is StageStatus.FAILURE
    assert "(sensitive value)" in failed.message
    assert SECRET not in failed.message + "\n".join(application.host.lines)


def test_a_secret_is_masked_quoted_and_by_line() -> None:
    secrets = Secrets(['say "hello"', "-----BEGIN KEY-----\nabcdefgh\nshort\n-----END KEY-----"])
    assert secrets.hide(r'x = "say \"hello\""') == 'x = "(sensitive value)"'
    assert secrets.hide("      + abcdefgh\n      + short") == (
        "      + (sensitive value)\n      + short"
    )


def test_a_short_text_is_not_masked_everywhere() -> None:
    assert Secrets(["80"]).hide("port 8080") == "port 8080"


def test_secrets_of_a_plan_and_of_a_state_are_found() -> None:
    change = {"before": {"a": "secret-1"}, "before_sensitive": {"a": True}}
    output = {"after": "secret-2", "after_sensitive": True, "actions": ["create"]}
    plan = {
        "resource_changes": [{"change": change}],
        "output_changes": {"x": output, "y": {"after": "public", "after_sensitive": False}},
        "configuration": {"root_module": {"variables": {"v": {"sensitive": True}, "w": {}}}},
        "variables": {"v": {"value": {"k": ["secret-3"]}}, "w": {"value": "public"}},
    }
    assert plan_secrets(plan) == {"secret-1", "secret-2", "secret-3"}
    resource = {"values": {"a": "secret-4", "b": "x"}, "sensitive_values": {"a": True}}
    state = {
        "values": {
            "root_module": {"child_modules": [{"resources": [resource]}]},
            "outputs": {"x": {"value": "secret-5", "sensitive": True}},
        }
    }
    assert state_secrets(json.loads(json.dumps(state))) == {"secret-4", "secret-5"}
