# SPDX-License-Identifier: Apache-2.0
"""Live state, drift and plan preview, with the real Terraform."""

import json
from pathlib import Path

import pytest

from pipecd.plugins.terraform.livestate import LiveStates
from pipecd.plugins.terraform.terraform import Planned, Terraform
from pipecd.sdk import Health, PipecdError, StageStatus, SyncStatus
from plugins.terraform.testbed import Application, data

MODULE = 'module "m" {\n  source = "./m"\n}\n'
FILES = {"m/main.tf": data(inner="v1")}
SECRET = """
variable "key" {
  sensitive = true
}
resource "terraform_data" "web" {
  input            = var.key
  triggers_replace = "%s"
}
output "leak" {
  value = nonsensitive(var.key)
}
"""
NEEDS_FILE = """
resource "terraform_data" "web" {
  input = file(%s)
}
"""


async def test_the_state_is_a_tree_of_modules_and_resources(application: Application) -> None:
    bench = application.commit("one", MODULE + data(web="v1"), files=FILES)
    assert (await bench.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
    live = await application.plugin.live_state(bench.live_context())
    assert live.sync.status is SyncStatus.SYNCED
    assert {(each.id, each.kind, each.name, each.parents) for each in live.resources} == {
        ("terraform_data.web", "terraform_data", "terraform_data.web", ()),
        ("module.m", "module", "m", ()),
        ("module.m.terraform_data.inner", "terraform_data", "terraform_data.inner", ("module.m",)),
    }
    assert {each.health for each in live.resources} == {Health.HEALTHY}
    assert {each.target for each in live.resources} == {"dev"}


async def test_warnings_of_the_machine_are_no_part_of_the_state(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", "/nowhere/terraformrc")
    bench = application.commit("one", data(web="v1"))
    assert (await bench.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
    live = await application.plugin.live_state(bench.live_context())
    assert [each.id for each in live.resources] == ["terraform_data.web"]


async def test_a_change_in_git_is_drift(application: Application) -> None:
    assert (
        await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    ).status is StageStatus.SUCCESS
    head = application.commit("two", data(web="v2", db="v1"))
    live = await application.plugin.live_state(head.live_context())
    assert live.sync.status is SyncStatus.OUT_OF_SYNC
    assert (
        live.sync.summary
        == "There are 2 manifests not synced (0 imports, 1 adds, 0 deletes, 1 changes)"
    )
    assert live.sync.details.startswith(
        "Diff between the defined state in Git at commit two and actual live state:\n\n"
        "--- Actual   (LiveState)\n+++ Expected (Git)\n\n"
    )
    assert '~       input  = "v1" -> "v2"' in live.sync.details
    [web] = live.resources
    assert (web.id, web.health) == ("terraform_data.web", Health.HEALTHY)
    assert web.health_text == "differs from Git: the next apply changes it"


async def test_a_plan_counts_for_ten_minutes_or_until_the_next_stage(
    application: Application,
) -> None:
    now = 0.0
    application.plugin._live_states.clock = lambda: now  # pyright: ignore[reportPrivateUsage]
    one = application.commit("one", data(web="v1"))
    assert (await one.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
    plugin = application.plugin
    assert (await plugin.live_state(one.live_context())).sync.status is SyncStatus.SYNCED
    # Somebody changes the infrastructure behind the back of piped.
    state = application.directory / "state" / "tf.json"
    state.write_text(state.read_text().replace("v1", "v0"))
    assert (await plugin.live_state(one.live_context())).sync.status is SyncStatus.SYNCED
    now = 661.0
    assert (await plugin.live_state(one.live_context())).sync.status is SyncStatus.OUT_OF_SYNC
    assert (await one.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
    assert (await plugin.live_state(one.live_context())).sync.status is SyncStatus.SYNCED


async def test_a_failed_plan_is_retried_with_backoff(
    application: Application, tmp_path: Path
) -> None:
    now = 0.0
    application.plugin._live_states.clock = lambda: now  # pyright: ignore[reportPrivateUsage]
    flag, plugin = tmp_path / "credentials", application.plugin
    one = application.commit("one", NEEDS_FILE % json.dumps(str(flag)))

    async def fails() -> bool:
        try:
            await plugin.live_state(one.live_context())
        except PipecdError as e:
            assert "no file exists" in str(e)
            return True
        return False

    assert await fails()
    flag.touch()
    now = 12.0
    assert await fails(), "no plan is made at once"
    flag.unlink()
    now = 17.0
    assert await fails()
    flag.touch()
    now = 42.0
    assert await fails(), "after the second failure none is made for twice as long"
    other = application.commit("two", NEEDS_FILE % json.dumps(str(flag)))
    assert (await plugin.live_state(other.live_context())).sync.status is SyncStatus.OUT_OF_SYNC
    flag.unlink()
    now = 900.0
    assert await fails()
    flag.touch()
    now = 917.0
    assert not await fails(), "the failures before a success do not count"
    flag.unlink()
    assert not await fails()


async def test_a_failed_plan_is_forgotten_after_a_stage(
    application: Application, tmp_path: Path
) -> None:
    flag = tmp_path / "credentials"
    one = application.commit("one", NEEDS_FILE % json.dumps(str(flag)))
    with pytest.raises(PipecdError, match="no file exists"):
        await application.plugin.live_state(one.live_context())
    flag.touch()
    assert (await one.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
    live = await application.plugin.live_state(one.live_context())
    assert live.sync.status is SyncStatus.SYNCED


async def test_the_tree_is_there_while_a_stage_runs(application: Application) -> None:
    one = application.commit("one", data(web="v1"))
    assert (await one.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
    states = application.plugin._live_states  # pyright: ignore[reportPrivateUsage]
    two = application.commit("two", data(web="v2"))
    with states.deploying(two.live_context().application_id):
        live = await application.plugin.live_state(two.live_context())
    assert [each.id for each in live.resources] == ["terraform_data.web"]
    # No plan is made meanwhile.
    assert live.sync.status is SyncStatus.UNKNOWN
    assert (
        await application.plugin.live_state(two.live_context())
    ).sync.status is SyncStatus.OUT_OF_SYNC


async def test_a_plan_that_a_stage_overtakes_is_made_again(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = application.plugin._live_states  # pyright: ignore[reportPrivateUsage]
    one = application.commit("one", data(web="v1"))
    plan = states._plan  # pyright: ignore[reportPrivateUsage]

    async def plan_while_a_stage_runs(terraform: Terraform) -> Planned:
        planned = await plan(terraform)
        monkeypatch.undo()
        assert (await one.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
        return planned

    monkeypatch.setattr(states, "_plan", plan_while_a_stage_runs)
    for _ in range(2):
        live = await application.plugin.live_state(one.live_context())
        assert live.sync.status is SyncStatus.SYNCED, live.sync.summary


async def test_drift_detection_can_be_disabled(application: Application) -> None:
    application.target = {"driftDetectionEnabled": False}
    head = application.commit("one", data(web="v1"))
    live = await application.plugin.live_state(head.live_context())
    assert live.sync.status is SyncStatus.UNKNOWN
    assert live.sync.summary == "Drift detection is disabled for deploy target dev"


async def test_a_preview_names_the_resources(application: Application) -> None:
    assert (
        await application.commit("one", data(web="v1", db="v1")).run("TERRAFORM_APPLY")
    ).status is StageStatus.SUCCESS
    head = application.commit("two", data(web="v2", new="v1"))
    [preview] = await application.plugin.preview(head.preview_context())
    assert preview.summary == "0 to import, 1 to add, 1 to change, 1 to destroy"
    assert preview.language == "hcl"
    assert preview.details.startswith(
        "# destroy terraform_data.db\n# create terraform_data.new\n# change terraform_data.web\n"
    )
    assert "\x1b" not in preview.details
    assert not preview.no_change


async def test_a_preview_without_changes(application: Application) -> None:
    bench = application.commit("one", data(web="v1"))
    assert (await bench.run("TERRAFORM_APPLY")).status is StageStatus.SUCCESS
    [preview] = await application.plugin.preview(bench.preview_context())
    assert (preview.no_change, preview.details) == (True, "")


async def test_previews_can_be_disabled_for_a_target(application: Application) -> None:
    application.target = {"planPreviewEnabled": False}
    # Terraform would fail with this.
    head = application.commit("one", "not a configuration")
    [preview] = await application.plugin.preview(head.preview_context())
    assert preview.summary == "Plan preview is disabled for deploy target dev"


async def test_secrets_are_in_no_diff_and_no_tree(application: Application) -> None:
    application.section = {"vars": ["key=very-secret"]}
    assert (
        await application.commit("one", SECRET % "1").run("TERRAFORM_APPLY")
    ).status is StageStatus.SUCCESS
    # The plan shows the output, whose value Terraform was told to be public.
    application.section = {"vars": ["key=other-secret"]}
    head = application.commit("two", SECRET % "2")
    live = await application.plugin.live_state(head.live_context())
    [preview] = await application.plugin.preview(head.preview_context())
    assert live.sync.status is SyncStatus.OUT_OF_SYNC
    for text in (live.sync.details, preview.details, repr(live.resources)):
        assert "very-secret" not in text
        assert "other-secret" not in text
    assert isinstance(application.plugin._live_states, LiveStates)  # pyright: ignore[reportPrivateUsage]
