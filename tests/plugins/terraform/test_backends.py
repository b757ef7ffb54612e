# SPDX-License-Identifier: Apache-2.0
"""Backends that cannot save plans, and backends that refuse the credentials of piped."""

import os
from pathlib import Path

import pytest

from pipecd.plugins.terraform.plan import read_plan_text
from pipecd.sdk import StageStatus, SyncStatus
from plugins.terraform.testbed import PIPELINE, Application, data
from servers.terraform_states import TerraformStates

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE

# As the backend `remote`, which runs plans itself.
REMOTE = """#!/bin/sh
for argument in "$@"; do
  case "$argument" in -out=*)
    echo "Error: Saving a generated plan is currently not supported"
    echo
    echo 'The "remote" backend does not support saving the generated execution plan locally.'
    exit 1;;
  esac
done
exec {terraform} "$@"
"""


@pytest.fixture
def remote(
    application: Application, terraform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Application:
    """The application with a Terraform that cannot save plans."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "terraform").write_text(REMOTE.format(terraform=terraform))
    (programs / "terraform").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    application.stages = PIPELINE
    application.section = {"vars": ["suffix=x"], "commandFlags": {"plan": ["-var=more=y"]}}
    return application


VARIABLES = 'variable "suffix" {}\nvariable "more" {}\n'


async def test_a_plan_that_cannot_be_saved_is_made_again(remote: Application) -> None:
    bench = remote.commit("one", VARIABLES + data(web="${var.suffix}${var.more}"))
    planned = await bench.run("TERRAFORM_PLAN")
    assert planned.message == "Plan: 0 to import, 1 to add, 0 to change, 0 to destroy"
    applied = await bench.run("TERRAFORM_APPLY", index=2)
    assert applied.status is SUCCESS, applied.message
    assert "Planning again, because the backend saves no plans" in remote.host.lines
    assert remote.inputs == {"web": "xy"}


async def test_other_changes_than_those_shown_are_refused(remote: Application) -> None:
    bench = remote.commit("one", VARIABLES + data(web="v1", db="v1"))
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    remote.stages = ()
    other = remote.commit("two", VARIABLES + data(web="v2"))
    assert (await other.run("TERRAFORM_APPLY")).status is SUCCESS
    refused = await bench.run("TERRAFORM_APPLY", index=2)
    assert refused.status is FAILURE
    assert refused.message.startswith(
        "the backend saves no plans, and planning again finds other changes than those shown"
    )
    assert remote.inputs == {"web": "v2"}


async def test_drift_and_previews_of_such_a_backend(remote: Application) -> None:
    remote.stages = ()
    one = remote.commit("one", VARIABLES + data(web="v1"))
    assert (await one.run("TERRAFORM_APPLY")).status is SUCCESS
    assert (await remote.plugin.live_state(one.live_context())).sync.status is SyncStatus.SYNCED
    two = remote.commit("two", VARIABLES + data(db="v1"))
    live = await remote.plugin.live_state(two.live_context())
    assert live.sync.summary == (
        "There are 2 manifests not synced (0 imports, 1 adds, 1 deletes, 0 changes)"
    )
    [preview] = await remote.plugin.preview(two.preview_context())
    assert preview.summary == "0 to import, 1 to add, 0 to change, 1 to destroy"


TEXT = """\
a.read: Refreshing state... [id=1]

Note: Objects have changed outside of Terraform

  # a.other has changed
  ~ resource "a" "other" {
    }

Terraform will perform the following actions:

  # a.create will be created
  # a.update will be updated in-place
  # a.delete will be destroyed
  # (because a.delete is not in configuration)
  # module.m["x y"].a.replace must be replaced
  # a.tainted is tainted, so must be replaced
  # a.forced will be replaced, as requested
  # a.old (deposed object 1234) will be destroyed
  # a.import will be imported
  # data.a.b will be read during apply

Plan: 1 to import, 4 to add, 1 to change, 5 to destroy.

Changes to Outputs:
  + x = 1
  ~ y = "a" -> "b"
"""


def test_a_plan_is_read_from_its_text() -> None:
    plan = read_plan_text(TEXT)
    assert plan.summary == "1 to import, 4 to add, 1 to change, 5 to destroy"
    assert [str(change) for change in plan.changes] == [
        "create a.create",
        "change a.update",
        "destroy a.delete",
        'replace module.m["x y"].a.replace',
        "replace a.tainted",
        "replace a.forced",
        "destroy a.old (deposed object 1234)",
        "import a.import",
    ]
    assert plan.outputs == ("x", "y")
    assert plan.digest != read_plan_text(TEXT.replace("+ x = 1", "+ x = 2")).digest
    assert plan.digest == read_plan_text(TEXT.replace("[id=1]", "[id=2]")).digest


@pytest.mark.parametrize(
    ("refusal", "said"),
    [(401, "HTTP remote state endpoint requires auth"), (403, "invalid auth")],
)
async def test_refused_credentials_are_explained(
    application: Application, terraform_states: TerraformStates, refusal: int, said: str
) -> None:
    application.backend = terraform_states.backend
    terraform_states.refusal = refusal
    failed = await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    assert failed.status is FAILURE
    assert said in failed.message
    assert failed.message.endswith(
        "the credentials are missing, expired or wrong: renew those that piped uses"
    )
