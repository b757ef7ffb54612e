# SPDX-License-Identifier: Apache-2.0
"""pipectl for people: forms of output, contexts, running deployments, errors in words."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.shell_completion import ShellComplete

from pipecd.commandline.builtin import add_common
from pipecd.commandline.main import run
from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_piped
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.model.deployment import StageStatus
from pipecd.pipectl.application import unknown_targets
from pipecd.pipectl.cli import tree
from pipecd.pipectl.contexts import Context, Contexts, save_contexts
from pipecd.pipectl.output import age, print_table
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import (
    Commit,
    Deployment,
    DeploymentTrigger,
    DeployTargets,
    ManualOperation,
    PipelineStage,
)
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure
from servers.control_plane import StartControlPlane

ADD = "application add --app-name web --app-kind ECS --piped-id {piped} --platform-provider p --repo-id repo --app-dir apps/web"


def stage(id: str, name: str, status: StageStatus, **more: Any) -> PipelineStage:
    times = {"created_at": 1, "updated_at": 1}
    return PipelineStage(id=id, name=name, status=status.value, **times, **more)  # pyright: ignore[reportArgumentType]


async def add_deployment(plane: Any, piped: str, *stages: PipelineStage) -> str:
    deployment = Deployment(
        id="deployment-1",
        application_id="application-1",
        application_name="web",
        piped_id=piped,
        project_id=plane.admin.project,
        git_path=ApplicationGitPath(repo=ApplicationGitRepository(id="repo"), path="apps/web"),
        trigger=DeploymentTrigger(
            commit=Commit(
                hash="0123456789", message="m", author="ann", branch="main", created_at=1
            ),
            timestamp=1,
        ),
        status=2,  # pyright: ignore[reportArgumentType]
        stages=stages,
        created_at=1,
        updated_at=1,
    )
    await plane.running.stores.deployments.add(deployment)
    return deployment.id


async def test_results_have_four_forms(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        await typed(ADD.format(piped=piped))
        plain = (await typed("application list"))[1]
        assert (await typed("application list --output json"))[1] == plain
        document = json.loads(plain)
        assert yaml.safe_load((await typed("application list --output yaml"))[1]) == document
        id = document["applications"][0]["id"]
        assert (await typed("application list --output name"))[1] == f"{id}\n"
        table = (await typed("application list --output table"))[1].splitlines()
        assert table[0].split() == ["NAME", "ID", "KIND", "STATUS", "LABELS"]
        assert table[1].split() == ["web", id, "ECS", "UNKNOWN", "-"]
        assert (await typed("application list --app-kind ecs --output name"))[1] == f"{id}\n"
        table = (await typed(f"application get --app-id {id} --output table"))[1].splitlines()
        assert id in table[1]
        assert table[3].split("  ")[0] == "REPOSITORY"
        assert table[4].split() == ["repo", "apps/web/app.pipecd.yaml", piped, "-"]


async def test_the_id_of_what_was_created_is_printed(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        code, out, err = await typed(f"{ADD.format(piped=piped)} --output name")
        assert code == 0
        assert err.endswith(f"id = {out}")
        event = "event register --name image --data v2 --output"
        assert list(json.loads((await typed(f"{event} json"))[1])) == ["event_id"]
        assert list(yaml.safe_load((await typed(f"{event} yaml"))[1])) == ["event_id"]
        assert (await typed(f"{event} table"))[1].startswith("EVENT ID\n")


def test_a_table_is_aligned_and_passes_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["A", "B"], [["x\x1b[2J", "1"], ["longer", ""]])
    assert capsys.readouterr().out == "A       B\nx       1\nlonger  -\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, ""), (1000, "0s"), (940, "1m"), (-6200, "2h"), (-200000, "2d")]
)
def test_ages_are_short(seconds: int, text: str) -> None:
    assert age(seconds, now=datetime.fromtimestamp(1000, UTC)) == text


async def test_a_piped_is_registered_with_a_configuration(
    start_plane: StartControlPlane, typed_at: Any, tmp_path: Path
) -> None:
    async with start_plane() as plane:
        file = tmp_path / "piped.yaml"
        line = f"piped register --name dev --config-out {file}"
        code, out, err = await typed_at(plane)(line)
        registered = json.loads(out)
        assert code == 0
        assert f"piped run --config-file {file} --insecure" in err
        config = read_piped(file.read_bytes(), file=str(file), catalog=load_catalog())
        assert (config.spec.piped_id, config.spec.project_id) == (registered["id"], "demo")
        assert config.spec.api_address == plane.address
        assert file.stat().st_mode & 0o777 == 0o600
        assert "exists already" in (await typed_at(plane)(line))[2]
        shown = (await typed_at(plane)(f"piped get --piped-id {registered['id']} --output table"))[
            1
        ]
        assert shown.splitlines()[1].split()[:2] == ["dev", registered["id"]]


async def test_pipeds_are_listed_also_those_without_applications(
    start_plane: StartControlPlane, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed = typed_at(plane)
        assert json.loads((await typed("piped list"))[1]) == {}
        ids = [
            json.loads((await typed(f"piped register --name {name}"))[1])["id"]
            for name in ("east", "west")
        ]
        await typed(f"piped disable --piped-id {ids[1]}")

        code, out, _ = await typed("piped list")
        assert code == 0
        listed = json.loads(out)["pipeds"]
        assert {piped["id"]: piped["name"] for piped in listed} == dict(
            zip(ids, ("east", "west"), strict=True)
        )
        assert "redacted" in out  # the hashes of the keys
        table = (await typed("piped list --output table"))[1].splitlines()
        assert table[0].split() == ["NAME", "ID", "VERSION", "STATUS", "REPOSITORIES"]
        assert {line.split()[0]: line.split()[3] for line in table[1:]} == {
            "east": "ENABLED",
            "west": "DISABLED",
        }
        names = (await typed("piped list --output name"))[1].split()
        assert names == [piped["id"] for piped in listed]
        assert "name: west" in (await typed("piped list --output yaml"))[1]


async def test_what_a_piped_runs_without_is_said_with_it(
    start_plane: StartControlPlane, typed_at: Any
) -> None:
    failures = [
        PluginFailure(plugin="terraform", target="far", reason="vars must be a list"),
        PluginFailure(plugin="dance", reason="no built-in plugin has this name"),
    ]
    async with start_plane() as plane:
        typed = typed_at(plane)
        east, west = [
            json.loads((await typed(f"piped register --name {name}"))[1])["id"]
            for name in ("east", "west")
        ]
        caller = PipedCaller(plane.admin.project, east)
        await plane.running.cases.pipeds.report_plugin_failures(failures, by=caller)
        warnings = [
            "piped east: deploy target far of plugin terraform is unusable: vars must be a list",
            "piped east: plugin dance is not running: no built-in plugin has this name",
        ]
        for command in (f"piped get --piped-id {east}", "piped list"):
            code, out, err = await typed(f"{command} --output json")
            assert code == 0
            json.loads(out)
            assert err.splitlines() == warnings
        [unusable] = json.loads((await typed("piped list"))[1])["unusable"]
        assert unusable["piped_id"] == east
        assert unusable["failures"][0]["reason"] == "vars must be a list"
        assert (await typed(f"piped get --piped-id {west}"))[2] == ""


async def test_an_application_is_edited_and_enabled(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        id = (await typed(ADD.format(piped=piped)))[2].split("id = ")[1].strip()
        await typed(f"application disable --app-id {id}")
        assert "Successfully enabled" in (await typed(f"application enable --app-id {id}"))[2]
        edit = f"application edit --app-id {id}"
        assert "there is nothing to change" in (await typed(edit))[2]
        code, _, err = await typed(f"{edit} --config-file-name b.pipecd.yaml --deploy-target ecs=b")
        assert code == 0, err
        application = await plane.running.stores.applications.get(id)
        assert application.git_path.config_filename == "b.pipecd.yaml"
        assert application.platform_provider == "p"
        assert list(application.deploy_targets_by_plugin["ecs"].deploy_targets) == ["b"]
        assert "is UNKNOWN" in (await typed(f"application diff --app-id {id}"))[2]

        def drift(application: Any) -> None:
            application.sync_state.status = 3
            application.sync_state.timestamp = 1
            application.sync_state.reason = "- replicas: 1\n+ replicas: 2"

        def invalid(application: Any) -> None:
            application.sync_state.status = 4
            application.sync_state.timestamp = 1
            application.sync_state.reason = "apps/web/app.pipecd.yaml was not found in Git"

        await plane.running.stores.applications.update(id, invalid)
        sentence = "is INVALID_CONFIG: apps/web/app.pipecd.yaml was not found in Git"
        assert sentence in (await typed(f"application diff --app-id {id}"))[2]
        shown = (await typed(f"application get --app-id {id} --output table"))[1]
        assert shown.endswith("\n\napps/web/app.pipecd.yaml was not found in Git\n")

        await plane.running.stores.applications.update(id, drift)
        assert (await typed(f"application diff --app-id {id}"))[:2] == (
            0,
            "- replicas: 1\n+ replicas: 2\n",
        )
        assert (await typed(f"application diff --app-id {id} --exit-code"))[0] == 1


async def test_what_was_changed_is_no_error_if_the_targets_cannot_be_checked(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        id = (await typed(ADD.format(piped=piped)))[2].split("id = ")[1].strip()

        def move(application: Any) -> None:
            application.piped_id = "removed"

        await plane.running.stores.applications.update(id, move)
        code, out, err = await typed(
            f"application edit --app-id {id} --deploy-target ecs=b --output name"
        )
        assert (code, out.strip()) == (0, id), err
        assert "the deploy targets are not checked: failed to get piped" in err


async def test_a_deployment_without_stages_has_no_table_of_them(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        id = await add_deployment(plane, await piped_with_repository(plane))
        shown = (await typed_at(plane)(f"deployment get --deployment-id {id} --output table"))[1]
        assert shown.splitlines()[0].startswith("ID")
        assert "REASON" not in shown


async def test_a_running_deployment_is_shown_approved_and_cancelled(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        approval = {"available_operation": ManualOperation.Value("MANUAL_OPERATION_APPROVE")}
        waiting = stage("s1", "WAIT_APPROVAL", StageStatus.RUNNING, **approval)
        back = stage("s2", "SCRIPT_RUN_ROLLBACK", StageStatus.NOT_STARTED_YET, rollback=True)
        id = await add_deployment(plane, piped, waiting, back)
        shown = (await typed(f"deployment get --deployment-id {id} --output table"))[1]
        assert "RUNNING  WAIT_APPROVAL  0123456  ann" in shown
        assert "WAIT_APPROVAL  s1  RUNNING" in shown
        assert "ROLLBACK" not in shown
        code, _, err = await typed(f"deployment approve --deployment-id {id}")
        assert (code, "the API key tests may not approve stages" in err) == (1, True), err
        assert "is read-only" not in err
        key = plane.api_key.partition(".")[0]
        keys = plane.running.cases.api_keys
        await keys.set_role(key, APIKey.READ_WRITE, may_approve=True, by=plane.admin)
        code, _, err = await typed(f"deployment approve --deployment-id {id}")
        assert (code, "Approved stage s1" in err) == (0, True), err
        code, _, err = await typed(f"deployment reject --deployment-id {id} --reason no")
        assert (code, "the piped of this deployment does not know rejections" in err) == (1, True)
        code, _, err = await typed(f"deployment skip --deployment-id {id}")
        assert (code, "stage WAIT_APPROVAL cannot be skipped" in err) == (1, True), err
        assert (await typed(f"deployment cancel --deployment-id {id} --force-no-rollback"))[0] == 0
        commands = await plane.running.stores.commands.list_unhandled(piped)
        types = {command.type for command in commands}
        assert types == {Command.APPROVE_STAGE, Command.CANCEL_DEPLOYMENT}
        assert {command.type: command.commander for command in commands} == {
            Command.APPROVE_STAGE: "admin",
            Command.CANCEL_DEPLOYMENT: "API key tests created by admin",
        }
        code, _, err = await typed(f"deployment retry --deployment-id {id}")
        assert "is still RUNNING; cancel it first" in err


async def test_an_api_key_with_the_name_of_an_approver_is_none(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        waiting = stage("s1", "WAIT_APPROVAL", StageStatus.RUNNING, authorized_operators=["tests"])
        id = await add_deployment(plane, piped, waiting)
        key = plane.api_key.partition(".")[0]
        keys = plane.running.cases.api_keys
        await keys.set_role(key, APIKey.READ_WRITE, may_approve=True, by=plane.admin)
        code, _, err = await typed(f"deployment approve --deployment-id {id}")
        assert (code, "approver list: tests" in err) == (1, True), err


async def test_a_deployment_is_followed_until_it_has_completed(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        id = await add_deployment(plane, piped, stage("s1", "SYNC", StageStatus.RUNNING))

        def complete(deployment: Deployment) -> None:
            deployment.status = 5  # pyright: ignore[reportAttributeAccessIssue]
            deployment.status_reason = "Failed while executing stage s1"
            deployment.stages[0].status = StageStatus.FAILURE.value  # pyright: ignore[reportAttributeAccessIssue]

        await plane.running.stores.deployments.update(id, complete)
        code, out, err = await typed(f"deployment watch --deployment-id {id}")
        assert code == 1
        assert [line.split()[-1] for line in out.splitlines()] == ["FAILURE", "FAILURE"]
        assert f"deployment {id} ended as FAILURE: Failed while executing stage SYNC\n" in err
        code, out, _ = await typed(f"deployment logs --follow --deployment-id {id}")
        assert (code, out) == (0, "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("application list --label env", "invalid label 'env'; write KEY:VALUE", id="a malformed label"),
        pytest.param("application list --address h:99999", "there is no port 99999", id="a port that is none"),
        pytest.param("application list --address https://h", "is a URL; write host:port", id="a URL as address"),
        pytest.param("deployment approve --deployment-id x", "failed to get deployment: rpc error: code = NotFound", id="an unknown deployment"),
        pytest.param("application edit --app-id x --deploy-target ecs", "ecs is not a deploy target", id="a malformed target"),
    ],
)  # fmt: skip
async def test_errors_are_in_words(
    line: str, words: str, start_plane: StartControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_plane() as plane:
        address = [] if "--address" in line else ["--address", plane.address]
        arguments = [*line.split(), *address, "--api-key", plane.api_key, "--insecure"]
        assert await asyncio.to_thread(run, tree(), arguments) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reported", "targets", "warnings"),
    [
        pytest.param({}, {"ecs": ["a"]}, [], id="a piped that has reported no plugins"),
        pytest.param({"ecs": ["a"]}, {"ecs": ["a"]}, [], id="a known target"),
        pytest.param({"ecs": ["a"], "wait": []}, {"ecs": ["a", "b"]}, ["piped dev has no deploy target ecs=b yet; it has ecs=a"], id="a misspelt target"),
        pytest.param({"wait": []}, {"ecs": ["a"]}, ["piped dev has no deploy target ecs=a yet; it has none"], id="a piped without targets"),
    ],
)  # fmt: skip
def test_unknown_deploy_targets_are_warned_of(
    reported: dict[str, list[str]], targets: dict[str, list[str]], warnings: list[str]
) -> None:
    piped = Piped(
        name="dev",
        plugins=[Piped.Plugin(name=n, deploy_targets=those) for n, those in reported.items()],
    )
    requested = {name: DeployTargets(deploy_targets=those) for name, those in targets.items()}
    assert unknown_targets(piped, requested) == warnings


def completed(*words: str) -> list[str]:
    """What a shell offers for the last word."""
    program = tree()
    add_common(program)
    shell = ShellComplete(program, {}, "pipectl", "_PIPECTL_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


async def test_values_are_completed_in_the_shell(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        id = (await typed(ADD.format(piped=piped)))[2].split("id = ")[1].strip()
        deployment = await add_deployment(plane, piped)
        connection = ("--address", plane.address, "--api-key", plane.api_key, "--insecure")

        async def offered(*words: str) -> list[str]:
            return await asyncio.to_thread(completed, *words)

        assert await offered("application", "get", *connection, "--app-id", "") == [id]
        assert await offered("application", "get", *connection, "--app-id", id[:3]) == [id]
        assert await offered("application", "get", *connection, "--app-id", "x") == []
        watch = ("deployment", "watch", *connection, "--deployment-id")
        assert await offered(*watch, "") == [deployment]
        assert await offered("application", "get", "--app-id", "") == []
        assert await offered("migrate", "database", *connection, "--applications", "x,") == [
            f"x,{id}"
        ]
        assert await offered("piped", "get", *connection, "--piped-id", "") == [piped]
        idle = (await plane.cases.pipeds.register("idle", "", by=plane.admin)).id
        offer = await offered("piped", "get", *connection, "--piped-id", "")
        assert sorted(offer) == sorted([piped, idle])
        offer = await offered("application", "list", *connection, "--piped-id", idle)
        assert offer == [idle]


def test_contexts_are_completed_in_the_shell() -> None:
    contexts = {"work": Context("cd:443", "k"), "lab": Context("lab:443", "k")}
    save_contexts(Contexts(contexts, "work"))
    assert completed("context", "use", "") == ["work", "lab"]
    assert completed("context", "delete", "l") == ["lab"]
    assert completed("application", "list", "--context", "w") == ["work"]


def test_names_are_completed_in_the_shell() -> None:
    wait = ("deployment", "wait-status", "--status")
    assert completed(*wait, "DEPLOYMENT_S") == ["DEPLOYMENT_SUCCESS"]
    listed = "DEPLOYMENT_FAILURE,DEPLOYMENT_S"
    assert completed(*wait, listed) == ["DEPLOYMENT_FAILURE,DEPLOYMENT_SUCCESS"]
    assert completed("application", "list", "--output", "") == ["table", "json", "yaml", "name"]
    assert completed("application", "list", "--app-kind", "E") == ["ECS"]
    assert completed("init", "--platform", "e") == ["ecs"]
    assert completed("schema", "Kub") == ["KubernetesApp"]
    assert completed("completion", "") == ["bash", "zsh", "fish"]
    assert completed("help", "depl") == ["deployment"]
    assert completed("help", "deployment", "wa") == ["wait-status", "watch"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        pytest.param(("lint", "web/"), "file", id="an argument"),
        pytest.param(("application", "list", "--api-key-file", ""), "file", id="a flag of a file"),
        pytest.param(("plan-preview", "--comment-out", "c"), "file", id="a file that is written"),
        pytest.param(("init", "--dir", "w"), "dir", id="a directory"),
        pytest.param(("migrate", "application-config", "--dirs", "w"), "dir", id="directories"),
    ],
)
def test_a_shell_completes_files_and_directories_itself(words: tuple[str, ...], kind: str) -> None:
    shell = ShellComplete(tree(), {}, "pipectl", "_PIPECTL_COMPLETE")
    offered = shell.get_completions(list(words[:-1]), words[-1])
    assert [(item.type, item.value) for item in offered] == [(kind, words[-1])]


async def test_what_is_done_twice_is_refused(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        id = (await typed(ADD.format(piped=piped)))[2].split("id = ")[1].strip()
        code, _, err = await typed(ADD.format(piped=piped))
        assert (code, f"application web is registered already as {id}" in err) == (1, True)
        # A piped gives it the name in its file.

        def rename(app: Any) -> None:
            app.name = "shop"

        await plane.running.stores.applications.update(id, rename)
        code, _, err = await typed(ADD.format(piped=piped))
        assert (code, f"application shop is registered already as {id}" in err) == (1, True)
        elsewhere = ADD.format(piped=piped).replace("provider p ", "provider q ")
        assert (await typed(elsewhere))[0] == 0
        assert (await typed(f"application delete --app-id {id}"))[0] == 0
        table = (await typed(f"application get --app-id {id} --output table"))[1].splitlines()
        assert table[1].split()[3] == "DELETED"
        code, _, err = await typed(f"application delete --app-id {id}")
        assert (code, f"application {id} is deleted already" in err) == (1, True)


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("aplication", "application"), ("deploymnet", "deployment"), ("app", "application")],
)
def test_a_typing_mistake_gets_a_suggestion(
    word: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree(), [word]) == 1
    assert f"Did you mean '{suggestion}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("application list --labl x", ["No such option '--labl'. Did you mean '--label'?", "See `pipectl application list --help`."]),
        ("application list --output tabel", ["Invalid value for '--output': 'tabel' is not one of 'table', 'json', 'yaml', 'name'.", "See `pipectl application list --help`."]),
        ("aplication list", ["No such command 'aplication'. Did you mean 'application'?", "See `pipectl --help`."]),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_answered_in_two_lines(
    line: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree(), line.split()) == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert [first.split(" ", 2)[2], *rest] == lines


def groups(group: click.Group, path: str = "pipectl") -> Iterator[tuple[str, click.Group]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        if isinstance(below := group.get_command(context, name), click.Group):
            yield from groups(below, f"{path} {name}")


@pytest.mark.parametrize(("path", "group"), [*groups(tree())])
def test_no_line_of_a_list_of_commands_is_cut_off(path: str, group: click.Group) -> None:
    context = click.Context(group, info_name=path, terminal_width=80)
    commands = group.get_help(context).partition("Commands:")[2]
    assert [line for line in commands.splitlines() if line.endswith("...")] == []
