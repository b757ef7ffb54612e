# SPDX-License-Identifier: Apache-2.0
"""The stages of the plugin, with the real Terraform."""

import asyncio
import json
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipecd.sdk import DISPLAY_KEY, StageStatus
from pipecd.sdk.testing import StageBench
from plugins.terraform.testbed import (
    KILLED,
    PIPELINE,
    Application,
    data,
    has_begun,
    kill_terraform,
)

SUCCESS, FAILURE, EXITED = StageStatus.SUCCESS, StageStatus.FAILURE, StageStatus.EXITED


def saved_plans(application: Application) -> list[Path]:
    return [p for p in application.host.private_directory("terraform").rglob("plan") if p.is_file()]


async def test_the_shown_plan_is_applied(application: Application) -> None:
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1"))
    planned = await bench.run("TERRAFORM_PLAN")
    summary = "0 to import, 1 to add, 0 to change, 0 to destroy"
    assert (planned.status, planned.message) == (SUCCESS, f"Plan: {summary}")
    assert application.host.stage_metadata[DISPLAY_KEY] == "+1"
    [file] = saved_plans(application)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    log = "\n".join(application.host.lines)
    assert "terraform_data.web" in log
    assert str(file) not in log
    # What is in Git when the plan is applied does not matter.
    (bench.directory / "main.tf").write_text((bench.directory / "main.tf").read_text() + "\n#")
    applied = await bench.run("TERRAFORM_APPLY", index=2)
    assert (applied.status, applied.message) == (SUCCESS, "The plan is applied")
    assert application.inputs == {"web": "v1"}
    assert saved_plans(application) == []


async def test_a_stale_plan_is_refused(application: Application) -> None:
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1"))
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    # Somebody else applies in the meantime.
    application.stages = ()
    assert (
        await application.commit("two", data(web="v2")).run("TERRAFORM_APPLY")
    ).status is SUCCESS
    refused = await bench.run("TERRAFORM_APPLY", index=2)
    assert refused.status is FAILURE
    assert refused.message == (
        "the plan is stale: the state was changed after it was shown, and nothing was applied; "
        "start a new deployment, which shows a new plan"
    )
    assert application.inputs == {"web": "v2"}


@pytest.mark.parametrize("exits", [True, False])
async def test_a_plan_without_changes(application: Application, exits: bool) -> None:
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1"))
    application.stages = ()
    assert (
        await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    ).status is SUCCESS
    planned = await bench.run("TERRAFORM_PLAN", {"exitOnNoChanges": exits})
    assert planned.status is (EXITED if exits else SUCCESS)
    assert planned.message == "No changes: the infrastructure is as it is defined in Git"
    if not exits:
        serial = application.state["serial"]
        assert (await bench.run("TERRAFORM_APPLY", index=2)).message == planned.message
        assert application.state["serial"] == serial


async def test_without_a_plan_stage_it_applies_only_changes(application: Application) -> None:
    bench = application.commit("one", data(web="v1"))
    applied = await bench.run("TERRAFORM_APPLY")
    assert applied.message == "Applied: 0 to import, 1 to add, 0 to change, 0 to destroy"
    serial = application.state["serial"]
    again = await bench.run("TERRAFORM_APPLY")
    assert again.message == "No changes: the infrastructure is as it is defined in Git"
    assert application.state["serial"] == serial


async def test_a_lost_plan_is_made_again(application: Application) -> None:
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1"))
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    shutil.rmtree(application.host.private_directory("terraform") / "plans")
    applied = await bench.run("TERRAFORM_APPLY", index=2)
    assert applied.status is SUCCESS
    assert "Planning again, because the saved plan is lost" in application.host.lines
    assert application.inputs == {"web": "v1"}


async def test_a_lost_plan_that_has_become_another_is_refused(application: Application) -> None:
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1"))
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    shutil.rmtree(application.host.private_directory("terraform") / "plans")
    application.stages = ()
    other = application.commit("two", data(web="v2"))
    assert (await other.run("TERRAFORM_APPLY")).status is SUCCESS
    refused = await bench.run("TERRAFORM_APPLY", index=2)
    assert refused.status is FAILURE
    assert refused.message == (
        "the saved plan is lost, and planning again finds other changes than those shown "
        "(0 to import, 0 to add, 1 to change, 0 to destroy); they were not applied; "
        "start a new deployment, which shows a new plan"
    )
    assert application.inputs == {"web": "v2"}


async def test_an_interrupted_apply_does_the_rest(application: Application) -> None:
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1", db="v1"))
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    # The first part is done, and piped is killed.
    application.stages = ()
    assert (
        await application.commit("part", data(web="v1")).run("TERRAFORM_APPLY")
    ).status is SUCCESS
    application.host.stage_metadata["apply-started"] = "true"
    assert (await bench.run("TERRAFORM_APPLY", index=2)).status is SUCCESS
    assert application.inputs == {"web": "v1", "db": "v1"}


async def test_an_interrupted_apply_does_nothing_that_was_not_shown(
    application: Application,
) -> None:
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1"))
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    application.stages = ()
    other = application.commit("other", data(other="v1"))
    assert (await other.run("TERRAFORM_APPLY")).status is SUCCESS
    application.host.stage_metadata["apply-started"] = "true"
    refused = await bench.run("TERRAFORM_APPLY", index=2)
    assert refused.status is FAILURE
    assert "planning again finds other changes than those shown" in refused.message
    assert application.inputs == {"other": "v1"}


async def test_a_rollback_applies_the_running_commit(application: Application) -> None:
    one, two = application.commit("one", data(web="v1")), application.commit("two", data(web="v2"))
    assert (await one.run("TERRAFORM_APPLY")).status is SUCCESS
    assert (await two.run("TERRAFORM_APPLY")).status is SUCCESS
    two.running = one
    rolled_back = await two.run("TERRAFORM_ROLLBACK", is_rollback=True)
    assert rolled_back.message == "Applied: 0 to import, 0 to add, 1 to change, 0 to destroy"
    assert application.inputs == {"web": "v1"}


async def test_a_first_deployment_cannot_be_rolled_back(application: Application) -> None:
    bench = application.commit("one", data(web="v1"))
    failed = await bench.run("TERRAFORM_ROLLBACK", is_rollback=True)
    assert failed.status is FAILURE
    assert failed.message.startswith("There is no commit to roll back to")


@pytest.mark.parametrize("where", ["application", "target"])
@pytest.mark.parametrize(
    ("stages", "is_refused"),
    [
        pytest.param((), True, id="without a pipeline"),
        pytest.param(("TERRAFORM_PLAN", "TERRAFORM_APPLY"), True, id="without an approval"),
        pytest.param(PIPELINE, False, id="with an approval"),
        pytest.param(
            ("WAIT_APPROVAL", "TERRAFORM_PLAN", "TERRAFORM_APPLY"), True, id="approved too early"
        ),
    ],
)
async def test_the_guard_against_destroys(
    application: Application, where: str, stages: tuple[str, ...], is_refused: bool
) -> None:
    both = application.commit("both", data(web="v1", db="v1"))
    assert (await both.run("TERRAFORM_APPLY")).status is SUCCESS
    guard = {"requireApprovalForDestroy": True}
    application.section, application.target = (guard, {}) if where == "application" else ({}, guard)
    application.stages = stages
    bench = application.commit("less", data(web="v1"))
    if "TERRAFORM_PLAN" in stages:
        assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    result = await bench.run("TERRAFORM_APPLY", index=max(len(stages) - 1, 0))
    if is_refused:
        assert "the plan destroys terraform_data.db, and nobody was asked" in result.message
    assert result.status is (FAILURE if is_refused else SUCCESS)
    assert ("db" in application.inputs) is is_refused


@pytest.mark.parametrize(
    "skipped", [pytest.param({0}, id="no plan was shown"), pytest.param({1}, id="no approval")]
)
async def test_a_skipped_stage_does_not_lift_the_guard(
    application: Application, skipped: set[int]
) -> None:
    both = application.commit("both", data(web="v1", db="v1"))
    assert (await both.run("TERRAFORM_APPLY")).status is SUCCESS
    application.section, application.stages = {"requireApprovalForDestroy": True}, PIPELINE
    bench = application.commit("less", data(web="v1"))
    if 0 not in skipped:
        assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    bench.skipped_stages = skipped
    refused = await bench.run("TERRAFORM_APPLY", index=2)
    assert refused.status is FAILURE
    assert "the plan destroys terraform_data.db, and nobody was asked" in refused.message
    assert "db" in application.inputs


async def test_variables_flags_and_environment_reach_the_plan(application: Application) -> None:
    application.target = {"vars": ["a=target", "b=target"]}
    application.section = {
        "vars": ['b=it\'s "b" $HOME; x'],
        "varFiles": ["c.tfvars"],
        "commandFlags": {"shared": ["-lock-timeout=5s"], "apply": ["-var=d=flag"]},
        "commandEnvs": {"shared": ["TF_VAR_e=env"], "apply": ["TF_VAR_f=env"]},
    }
    variables = "".join(f'variable "{name}" {{}}\n' for name in "abcdef")
    resources = "\n".join(
        f'resource "terraform_data" "{name}" {{\n  input = var.{name}\n}}' for name in "abcdef"
    )
    files = {"c.tfvars": 'c = "file"\n'}
    bench = application.commit("one", variables + resources, files=files)
    applied = await bench.run("TERRAFORM_APPLY")
    assert applied.status is SUCCESS, applied.message
    assert application.inputs == {
        "a": "target",
        "b": 'it\'s "b" $HOME; x',
        "c": "file",
        "d": "flag",
        "e": "env",
        "f": "env",
    }
    commands = [line for line in application.host.lines if line.startswith("$ ")]
    assert [line.split()[2] for line in commands] == ["init", "plan", "apply"]
    assert "-var=b=…" in commands[1]
    assert not any("flag" in line or "HOME" in line for line in commands)


async def test_init_is_skipped_when_nothing_that_it_reads_changed(
    application: Application,
) -> None:
    files = {"m/main.tf": data(inner="v1")}
    text = 'module "m" {\n  source = "./m"\n}\n'

    def inits() -> int:
        return sum(line.startswith("$ terraform init") for line in application.host.lines)

    assert (
        await application.commit("one", text, files=files).run("TERRAFORM_APPLY")
    ).status is SUCCESS
    assert inits() == 1
    same = application.commit("two", text, files={**files, "README.md": "x"})
    assert (await same.run("TERRAFORM_APPLY")).status is SUCCESS
    assert inits() == 1
    changed = application.commit("three", text, files={"m/main.tf": data(inner="v2")})
    assert (await changed.run("TERRAFORM_APPLY")).status is SUCCESS
    assert inits() == 2


async def test_a_workspace_is_selected(application: Application) -> None:
    application.section = {"workspace": "prod"}
    bench = application.commit("one", data(web="v1"))
    missing = await bench.run("TERRAFORM_APPLY")
    assert missing.message == (
        'workspace "prod" does not exist; create it with `terraform workspace new prod`, or correct '
        "the workspace of the application"
    )


async def test_a_workspace_that_exists_has_a_state_of_its_own(
    application: Application, terraform: str
) -> None:
    application.section = {"workspace": "prod"}
    bench = application.commit("one", data(web="v1"))
    for arguments in (["init"], ["workspace", "new", "prod"], ["workspace", "select", "default"]):
        command = [terraform, *arguments]
        await asyncio.to_thread(subprocess.run, command, cwd=bench.directory, check=True)
    assert (await bench.run("TERRAFORM_APPLY")).status is SUCCESS
    [state] = bench.directory.glob("terraform.tfstate.d/prod/*")
    assert json.loads(state.read_bytes())["resources"][0]["name"] == "web"
    assert not (application.directory / "state").exists()


async def test_a_state_without_a_backend_is_worth_a_warning(application: Application) -> None:
    bench = application.commit("one", data(web="v1"), backend=False)
    assert (await bench.run("TERRAFORM_APPLY")).status is SUCCESS
    warning = "No backend is configured: the state is lost with this working copy."
    assert warning in application.host.lines


async def test_a_cancelled_stage_ends_terraform(application: Application) -> None:
    text = 'resource "terraform_data" "slow" {\n  provisioner "local-exec" {\n    command = "echo begun; sleep 60"\n  }\n}'
    running = asyncio.ensure_future(application.commit("one", text).run("TERRAFORM_APPLY"))
    await application.host.until(lambda: has_begun(application))
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    # Terraform had the time to store what it did, and to unlock the state.
    assert [r["name"] for r in application.state["resources"]] == ["slow"]
    assert not list((application.directory / "state").glob(".*.lock.info"))


async def test_an_apply_that_was_killed_is_continued(application: Application) -> None:
    application.stages = PIPELINE
    text = KILLED.replace("FLAG", str(application.directory / "flag"))
    bench = application.commit("one", text)
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    applying = asyncio.ensure_future(bench.run("TERRAFORM_APPLY", index=2))
    await application.host.until(lambda: has_begun(application))
    kill_terraform(bench.directory)
    killed = await applying
    assert killed.message == (
        "terraform apply was ended by signal 9; check whether the machine of piped has too little "
        "memory, and deploy again"
    )
    # The stage of a killed piped runs again from its start.
    continued = await bench.run("TERRAFORM_APPLY", index=2)
    assert continued.status is SUCCESS, continued.message
    assert "Planning again, because its apply was interrupted" in application.host.lines
    assert application.inputs == {"first": "v1", "slow": "v1"}


async def test_a_locked_state_is_explained(application: Application) -> None:
    text = 'resource "terraform_data" "slow" {\n  provisioner "local-exec" {\n    command = "echo begun; sleep 60"\n  }\n}'
    running = asyncio.ensure_future(application.commit("one", text).run("TERRAFORM_APPLY"))
    await application.host.until(lambda: has_begun(application))
    other = replace(application.commit("two", data(web="v1")), application_id="application-2")
    locked = await other.run("TERRAFORM_APPLY")
    running.cancel()
    await asyncio.wait({running})
    assert locked.status is FAILURE
    assert locked.message.startswith("the state is locked by ")
    assert " for apply since " in locked.message
    assert "force-unlock" in locked.message


async def test_sensitive_values_are_not_in_the_log(application: Application) -> None:
    text = 'variable "key" {\n  sensitive = true\n}\nresource "terraform_data" "web" {\n  input = var.key\n}'
    application.section = {"vars": ["key=very-secret"]}
    bench: StageBench = application.commit("one", text)
    assert (await bench.run("TERRAFORM_APPLY")).status is SUCCESS
    assert "very-secret" not in json.dumps(application.host.lines)
    assert application.inputs == {"web": "very-secret"}
