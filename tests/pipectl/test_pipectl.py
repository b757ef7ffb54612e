# SPDX-License-Identifier: Apache-2.0
"""pipectl on the command line, against a real control plane."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pipecd.commandline.main import run
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.piped_connections import PipedConnections
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.command import TRIGGERED_KEY, CommandStatus
from pipecd.model.document import to_json
from pipecd.pipectl.cli import tree
from pipecd.pipectl.plan_preview import as_json, as_text, sorted_results
from pipecd.proto.model.command_pb2 import COMMAND_SUCCEEDED, Command
from pipecd.proto.model.common_pb2 import SyncStrategy
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
    PluginPlanPreviewResult,
)
from servers.control_plane import StartControlPlane


async def test_an_application_is_added_listed_disabled_and_deleted(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed = typed_at(plane)
        piped = await piped_with_repository(plane)
        add = f"application add --app-name web --app-kind ECS --piped-id {piped} --platform-provider p --repo-id repo --app-dir apps/web"
        code, out, err = await typed(add)
        assert (code, out) == (0, "")
        application_id = err.split("id = ")[1].strip()

        code, out, _ = await typed("application list")
        listed = json.loads(out)["applications"]
        assert [(a["name"], a["kind"], a["piped_id"]) for a in listed] == [("web", 5, piped)]
        code, out, _ = await typed(f"application get --app-id {application_id}")
        assert json.loads(out)["git_path"]["config_filename"] == "app.pipecd.yaml"

        code, _, err = await typed(f"application disable --app-id {application_id}")
        assert f"Successfully disable application id = {application_id}" in err
        assert json.loads((await typed("application list"))[1]) == {}
        code, out, _ = await typed("application list --disabled")
        assert len(json.loads(out)["applications"]) == 1
        code, _, err = await typed(f"application delete --app-id {application_id}")
        assert f"Successfully deleted application id = {application_id}" in err


async def test_an_application_of_plugins_is_added_without_kind_and_provider(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        add = f"application add --piped-id {piped} --repo-id repo --app-name web --app-dir apps/web"
        code, _, err = await typed(f"{add} --deploy-target kubernetes=a,kubernetes=b,vm=c")
        assert code == 0, err
        (listed,) = json.loads((await typed("application list"))[1])["applications"]
        assert "platform_provider" not in listed
        assert listed["deploy_targets_by_plugin"] == {
            "kubernetes": {"deploy_targets": ["a", "b"]},
            "vm": {"deploy_targets": ["c"]},
        }
        assert "write it as PLUGIN=TARGET" in (await typed(f"{add} --deploy-target kubernetes"))[2]


async def test_the_kind_of_an_application_is_that_of_its_platform_provider(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)

        def describe(registered: Piped) -> None:
            registered.platform_providers.add(name="aws", type="ECS")

        await plane.running.stores.pipeds.update(piped, describe)
        add = f"application add --piped-id {piped} --repo-id repo --app-name web --app-dir apps/web"
        assert "set --platform-provider to one of: aws (ECS)" in (await typed(add))[2]
        code, _, err = await typed(f"{add} --platform-provider aws")
        assert code == 0, err
        (listed,) = json.loads((await typed("application list"))[1])["applications"]
        assert (listed["kind"], listed["platform_provider"]) == (5, "aws")


async def test_a_name_that_is_too_long_is_refused_at_once(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        add = f"application add --piped-id {piped} --repo-id repo --app-dir apps/web"
        code, _, err = await typed(f"{add} --app-name {'n' * 37}")
        assert code == 1
        assert "the name of an application has at most 36 characters, this one has 37" in err
        assert (await typed(f"{add} --app-name {'n' * 36}"))[0] == 0


async def test_sync_checks_at_once_and_then_with_growing_delays(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    """A piped needs well under a second; the check interval is only the longest delay."""
    async with start_plane() as plane:
        typed, commands = typed_at(plane), plane.running.stores.commands
        piped = await piped_with_repository(plane)
        add = f"application add --app-name web --app-kind ECS --piped-id {piped} --platform-provider p --repo-id repo --app-dir apps/web"
        application_id = (await typed(add))[2].split("id = ")[1].strip()

        def handle(command: Command) -> None:
            command.status = COMMAND_SUCCEEDED
            command.metadata[TRIGGERED_KEY] = "deployment-1"

        async with asyncio.timeout(10):
            sync = asyncio.create_task(
                typed(
                    f"application sync --app-id {application_id} --check-interval 1h --timeout 8s"
                )
            )
            while not (unhandled := await commands.list_unhandled(piped)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            await commands.update(unhandled[0].id, handle)
            code, _, err = await sync
    assert code == 0
    assert err.count("...\n") >= 2
    assert "Successfully triggered deployment deployment-1" in err


async def test_events_and_pipeds(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed = typed_at(plane)
        piped = await piped_with_repository(plane)
        code, _, err = await typed("event register --name image --data v2 --labels env=dev,app=web")
        assert code == 0
        assert "Successfully registered event" in err
        code, out, _ = await typed(f"piped disable --piped-id {piped}")
        assert out == f"Successfully disabled Piped {piped}\n"
        assert (await plane.running.stores.pipeds.get(piped)).disabled
        code, out, _ = await typed("deployment list --status DEPLOYMENT_SUCCESS")
        assert (code, json.loads(out)) == (0, {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("application get --app-id nobody", "failed to get application: rpc error: code = NotFound", id="an unknown application"),
        pytest.param("application list --app-kind FOO", "invalid application kind FOO; use one of", id="an unknown kind"),
        pytest.param("application sync --app-id x", "failed to sync application rpc error: code = NotFound desc = Application is not found", id="a sync of an unknown application"),
        pytest.param("deployment logs --deployment-id x", "failed to get stage log: rpc error: code = NotFound", id="the logs of an unknown deployment"),
        pytest.param("deployment wait-status --deployment-id x --status DEPLOYMENT_SUCCESS", 'rpc error: code = NotFound desc = deployment "x" not found', id="waiting for an unknown deployment"),
        pytest.param("deployment list --status DONE", "DONE is invalid deployment status", id="a list of an unknown status"),
        pytest.param("deployment cancel --deployment-id x --force-rollback --force-no-rollback", "--force-rollback and --force-no-rollback exclude each other", id="a cancellation with and without a rollback"),
        pytest.param("deployment list --app-kind FOO", "FOO is invalid application kind", id="a list of an unknown kind of applications"),
        pytest.param("encrypt --piped-id x --input-file /nowhere", 'failed to read file "/nowhere": No such file', id="a secret in a file that is not there"),
        pytest.param("deployment wait-status --deployment-id x --status DONE", "invalid status DONE", id="an unknown status"),
        pytest.param("event register --name a --data b --contexts a_b=c", "invalid format key 'a_b', should be ^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$", id="a context key with an underscore"),
    ],
)  # fmt: skip
async def test_a_refusal_is_one_sentence_and_exit_1(
    line: str, words: str, start_plane: StartControlPlane, typed_at: Any
) -> None:
    async with start_plane() as plane:
        code, _, err = await typed_at(plane)(line)
        assert code == 1
        assert words in err
        assert "Traceback" not in err


async def test_a_refusal_that_is_a_result_is_on_both_outputs(
    start_plane: StartControlPlane, typed_at: Any
) -> None:
    async with start_plane() as plane:
        code, out, err = await typed_at(plane)("piped disable --piped-id x")
    error_text = "rpc error: code = NotFound desc = Piped is not found"
    assert (code, out) == (1, f"Failed to disable Piped x ({error_text})\n")
    assert err.endswith(f" {error_text}\n")


async def test_a_plan_preview_without_affected_applications_is_written_too(
    start_plane: StartControlPlane, tmp_path: Path, typed_at: Any
) -> None:
    line = f"plan-preview --repo-remote-url r --head-branch h --head-commit c --base-branch b --out {tmp_path}/o"
    async with start_plane() as plane:
        code, out, _ = await typed_at(plane)(line)
    assert (code, out) == (0, "There is no piped that is handling the given Git repository\n")
    assert json.loads((tmp_path / "o").read_text())["Applications"] is None


async def test_a_preview_prints_where_the_console_shows_it(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any, tmp_path: Path
) -> None:
    line = (
        "plan-preview --repo-remote-url file:///tmp/repo --head-branch h --head-commit c"
        f" --base-branch main --comment-out {tmp_path}/comment"
    )
    async with start_plane() as plane:
        piped = await piped_with_repository(plane)
        caller = PipedCaller(plane.admin.project, piped)
        await PipedConnections(plane.running.stores.cache).report(piped, b"")
        typed = asyncio.create_task(typed_at(plane)(line))
        while not (unhandled := await plane.cases.commands.list_unhandled(by=caller)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        [command] = unhandled
        app = ApplicationPlanPreviewResult(application_id="a", application_name="web")
        output = to_json(PlanPreviewCommandResult(results=[app])).encode()
        result = CommandResult(
            command.id, CommandStatus.SUCCEEDED, to_unix(utc_now()), output=output
        )
        await plane.cases.commands.report_handled(result, by=caller)
        code, _, err = await typed
        url = f"{plane.cases.address.rstrip('/')}/plan-previews/{command.id}"
        assert (code, f"See {url}\n" in err) == (0, True)
        comment = (tmp_path / "comment").read_text()
        assert f"See it in the console: [p]({url})" in comment


async def test_who_waits_for_a_preview_outlasts_a_restart_of_the_control_plane(
    start_plane: StartControlPlane,
    piped_with_repository: Any,
    typed_at: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "plan-preview --repo-remote-url file:///tmp/repo --head-branch h --head-commit c --base-branch main"
    async with start_plane() as plane:
        piped = await piped_with_repository(plane)
        await PipedConnections(plane.running.stores.cache).report(piped, b"")
        typed = asyncio.create_task(typed_at(plane)(line))
        while not await plane.running.stores.commands.list_unhandled(piped):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    while "retrying in" not in capsys.readouterr().out:
        assert not typed.done()
        await asyncio.sleep(0.01)
    # A control plane that just started has not seen the piped yet and reports it as offline.
    async with start_plane(port=plane.running.port):
        code, out, _ = await typed
    assert (code, "Maybe Piped is offline currently." in out) == (0, True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("application list", "address must be set", id="no address"),
        pytest.param("application list --address localhost:1", "either api-key or api-key-file must be set", id="no key"),
        pytest.param("application list --address localhost:1 --api-key-file /nowhere", "cannot read the API key file", id="a key file that is not there"),
        pytest.param("application get --address localhost:1", 'required flag(s) "app-id" not set', id="a required flag"),
    ],
)  # fmt: skip
def test_missing_flags_are_reported_before_connecting(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree(), line.split()) == 1
    assert words in capsys.readouterr().err


def test_lint_reports_every_mistake_of_every_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    head = "apiVersion: pipecd.dev/v1beta1\n"
    good.write_text(head + "kind: Application\nspec: {name: a}\n")
    bad.write_text(head + "kind: TerraformApp\nspec:\n  nam: a\n  timeout: 10x\n")
    assert run(tree(), ["lint", str(good)]) == 0
    assert run(tree(), ["lint", str(good), str(bad)]) == 1
    shown = capsys.readouterr()
    assert f"{bad}:4:3: spec.nam" in shown.out
    assert f"{bad}:5:12: spec.timeout" in shown.out
    assert "1 of 2 files cannot be used" in shown.err


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree(), ["schema", "KubernetesApp"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "PipeCD KubernetesApp"


V0 = ApplicationPlanPreviewResult(
    application_id="1", application_name="b", labels={"env": "dev"}, sync_strategy=SyncStrategy.QUICK_SYNC,
    plan_summary=b"2 changes", plan_details=b"+ x",
)  # fmt: skip
V1 = ApplicationPlanPreviewResult(
    application_id="2", application_name="a", sync_strategy=SyncStrategy.PIPELINE, plugin_names=["kubernetes", "wait"],
    plugin_plan_results=[
        PluginPlanPreviewResult(plugin_name="kubernetes", deploy_target="c1", plan_summary=b"1 change", plan_details=b"- y"),
    ],
)  # fmt: skip
FAILED = ApplicationPlanPreviewResult(
    application_id="3", application_name="c", error="no such file"
)


def test_a_preview_is_readable_and_sorted() -> None:
    results = sorted_results(
        [
            PlanPreviewCommandResult(piped_id="2", piped_name="far", error="it is offline"),
            PlanPreviewCommandResult(piped_id="1", results=[V0, V1, FAILED]),
        ],
        (),
    )
    assert as_text(results) == (
        "\nHere are plan-preview for 2 applications:\n"
        "\n1. app: a, plan plugin(s): kubernetes\n  sync strategy: PIPELINE\n  plugin(s): kubernetes, wait\n"
        "  summary:\n  - kubernetes(c1): 1 change\n  details:\n\n  - kubernetes(c1):\n"
        "  ---DETAILS_BEGIN---\n- y\n  ---DETAILS_END---\n\n"
        "\n2. app: b, env: dev, kind: KUBERNETES\n  sync strategy: QUICK_SYNC\n  summary: 2 changes\n"
        "  details:\n\n  ---DETAILS_BEGIN---\n+ x\n  ---DETAILS_END---\n"
        "\nNOTE: An error occurred while building plan-preview for the following application:\n"
        "\n1. app: c, kind: KUBERNETES\n  reason: no such file\n"
        "\nNOTE: An error occurred while building plan-preview for applications of the following Piped:\n"
        "\n1. piped: far (2)\n  reason: it is offline\n"
    )
    written = json.loads(as_json(results))
    assert [a["ApplicationName"] for a in written["Applications"]] == ["a", "b"]
    assert written["Applications"][0]["PluginPlanResults"][0]["plan_details"] == "LSB5"
    assert written["FailurePipeds"][0]["Reason"] == "it is offline"


def test_a_preview_of_nothing_says_so_and_has_no_lists() -> None:
    assert "There are no updated applications" in as_text([])
    assert json.loads(as_json([])) == {
        "Applications": None, "FailureApplications": None, "FailurePipeds": None,
    }  # fmt: skip
