# SPDX-License-Identifier: Apache-2.0
"""The stages, live state and previews with the real OpenTofu."""

from pipecd.sdk import StageStatus, SyncStatus
from plugins.terraform.testbed import PIPELINE, Application, data

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE


async def test_a_plan_is_shown_applied_and_rolled_back(tofu_application: Application) -> None:
    application = tofu_application
    application.stages = PIPELINE
    one, two = application.commit("one", data(web="v1")), application.commit("two", data(web="v2"))
    for bench in (one, two):
        planned = await bench.run("TERRAFORM_PLAN")
        assert planned.status is SUCCESS, planned.message
        assert planned.message.startswith("Plan: 0 to import, ")
        applied = await bench.run("TERRAFORM_APPLY", index=2)
        assert (applied.status, applied.message) == (SUCCESS, "The plan is applied")
    assert application.inputs == {"web": "v2"}
    two.running = one
    rolled_back = await two.run("TERRAFORM_ROLLBACK", is_rollback=True)
    assert rolled_back.message == "Applied: 0 to import, 0 to add, 1 to change, 0 to destroy"
    assert application.inputs == {"web": "v1"}
    commands = {line.split()[1] for line in application.host.lines if line.startswith("$ ")}
    assert commands == {"tofu"}


async def test_a_stale_plan_is_refused(tofu_application: Application) -> None:
    application = tofu_application
    application.stages = PIPELINE
    bench = application.commit("one", data(web="v1"))
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    application.stages = ()
    other = application.commit("two", data(web="v2"))
    assert (await other.run("TERRAFORM_APPLY")).status is SUCCESS
    refused = await bench.run("TERRAFORM_APPLY", index=2)
    assert refused.status is FAILURE
    assert refused.message.startswith("the plan is stale")


async def test_live_state_drift_and_preview(tofu_application: Application) -> None:
    application = tofu_application
    one = application.commit("one", data(web="v1"))
    assert (await one.run("TERRAFORM_APPLY")).status is SUCCESS
    live = await application.plugin.live_state(one.live_context())
    assert live.sync.status is SyncStatus.SYNCED
    [web] = live.resources
    assert (web.id, web.metadata["Provider"]) == (
        "terraform_data.web",
        "terraform.io/builtin/terraform",
    )
    head = application.commit("two", data(web="v2", new="v1"))
    drifted = await application.plugin.live_state(head.live_context())
    assert drifted.sync.summary == (
        "There are 2 manifests not synced (0 imports, 1 adds, 0 deletes, 1 changes)"
    )
    assert '~       input  = "v1" -> "v2"' in drifted.sync.details
    [preview] = await application.plugin.preview(head.preview_context())
    assert preview.details.startswith("# create terraform_data.new\n# change terraform_data.web\n")


async def test_files_that_need_another_version(tofu_application: Application) -> None:
    # It ignores versions in files of Terraform.
    files = {"versions.tofu": 'terraform {\n  required_version = ">= 99"\n}\n'}
    failed = await tofu_application.commit("one", "", files=files).run("TERRAFORM_APPLY")
    assert failed.message.startswith("tofu init: Incompatible module")
    assert failed.message.endswith("to a version that its files accept")


async def test_sensitive_values_are_masked(tofu_application: Application) -> None:
    application = tofu_application
    application.section = {"vars": ["key=very-secret"]}
    text = (
        'variable "key" {\n  sensitive = true\n}\n'
        'resource "terraform_data" "web" {\n  input = nonsensitive(var.key)\n}\n'
    )
    bench = application.commit("one", text)
    assert (await bench.run("TERRAFORM_APPLY")).status is SUCCESS
    assert "very-secret" not in "\n".join(application.host.lines)
    assert application.inputs == {"web": "very-secret"}
