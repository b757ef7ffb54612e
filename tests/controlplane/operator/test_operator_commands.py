# SPDX-License-Identifier: Apache-2.0
"""`pipecd project`, `api-key` and `hash-password`, on a database alone and beside its server."""

import asyncio
import json
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from pipecd.controlplane.operator.socket import run_on_server, socket_path
from pipecd.controlplane.operator_command import api_key, hash_password, project
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import AlreadyExists, Conflict, NotFound, PipecdError, UserMistake
from pipecd.secrets.keys import key_matches
from servers.control_plane import StartControlPlane, start_control_plane

CONFIG = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
  projects:
    - {{id: declared, staticAdmin: {{username: root, passwordHash: "{hash}"}}}}
"""
HASH = "$2b$04$nqMzGa6XMNKjS3mVWwJ3qO1LDobWdS1B3.KtkMqciCcV1KH3LLHH."


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "control-plane.yaml"
    file.write_text(CONFIG.format(directory=tmp_path, hash=HASH))
    return file


def invoke(command: click.Command, line: str, config: Path) -> str:
    arguments = [*line.split(), "--config-file", str(config)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_projects_and_keys_of_a_database_that_no_server_has_open(config: Path) -> None:
    password = config.with_name("password")
    password.write_text("hello-shop\n")
    added = invoke(project, f"add shop --admin-password-file {password} --output json", config)
    assert json.loads(added) == [{"project": "shop", "username": "admin", "password": "hello-shop"}]
    listed = invoke(project, "list", config).splitlines()
    assert [line.split()[0] for line in listed] == ["ID", "declared", "shop"]
    key = invoke(api_key, "add --project shop --name ci --role READ_WRITE", config).strip()
    [row] = json.loads(invoke(api_key, "list --project shop --output json", config))
    assert (row["id"], row["name"], row["role"]) == (key.partition(".")[0], "ci", "READ_WRITE")
    assert row["creator"] == "operator"
    invoke(api_key, f"set-role --project shop --id {row['id']} --role READ_WRITE_APPROVE", config)
    assert "READ_WRITE_APPROVE" in invoke(api_key, "list --project shop", config)
    invoke(api_key, f"set-role --project shop --id {row['id']} --role READ_ONLY", config)
    assert "READ_WRITE" not in invoke(api_key, "list --project shop", config)
    invoke(api_key, f"disable --project shop --id {row['id']}", config)
    assert " disabled " in invoke(api_key, "list --project shop", config)
    [reset] = json.loads(invoke(project, "reset-password shop --output json", config))
    assert reset["username"] == "admin"
    assert reset["password"] != "hello-shop"


def test_somebody_can_sign_in_after_every_change(config: Path) -> None:
    invoke(project, "add shop", config)
    with pytest.raises(Conflict, match="Nobody could sign in any more"):
        invoke(project, "update shop --password disabled", config)
    assert " enabled " in invoke(project, "list", config)


def test_a_project_is_shown_and_changed(config: Path) -> None:
    invoke(project, "add shop --description books", config)
    [shown] = json.loads(invoke(project, "show shop --output json", config))
    assert (shown["id"], shown["description"], shown["password"]) == ("shop", "books", "enabled")
    assert (shown["username"], shown["roles"]) == ("admin", "Admin, Editor, Viewer")
    [changed] = json.loads(invoke(project, "update shop --description toys --output json", config))
    assert changed == {**shown, "description": "toys"}
    assert yaml.safe_load(invoke(project, "show shop --output yaml", config)) == [changed]
    assert invoke(project, "list --output name", config) == "declared\nshop\n"


def test_users_without_a_role_are_let_in_and_refused_again(config: Path) -> None:
    invoke(project, "add shop", config)
    for choice in ("viewers", "refused"):
        line = f"update shop --users-without-role {choice} --output json"
        [changed] = json.loads(invoke(project, line, config))
        assert changed["users_without_role"] == choice


@pytest.mark.parametrize(
    ("command", "line", "error", "text"),
    [
        pytest.param(project, "show nope", NotFound, "there is no project nope", id="an unknown project"),
        pytest.param(project, "update declared", UserMistake, "nothing to change", id="no change"),
        pytest.param(
            project, "update declared --description x", Conflict, "configuration",
            id="a project of the configuration is changed there",
        ),
        pytest.param(
            project, "update declared --shared-sso x", UserMistake, "shared SSO", id="an unknown SSO",
        ),
        pytest.param(project, "add declared", AlreadyExists, "declared", id="a declared project"),
        pytest.param(project, "add a/b", UserMistake, "cannot be the ID", id="not an id"),
        pytest.param(
            project, "add shop --shared-sso x", UserMistake, "shared SSO", id="no such shared SSO"
        ),
        pytest.param(
            api_key, "add --project shop --name n", NotFound, "the projects are: declared",
            id="a key of a project that does not exist",
        ),
        pytest.param(
            project, "add shop --admin-password-file /dev/null", UserMistake, "has no password",
            id="an empty password",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_added(
    command: click.Command, line: str, error: type[PipecdError], text: str, config: Path
) -> None:
    with pytest.raises(error, match=text):
        invoke(command, line, config)


async def test_a_running_server_on_sqlite_runs_the_operations(
    start_plane: StartControlPlane, config: Path
) -> None:
    async with start_plane() as plane:
        added = await asyncio.to_thread(invoke, project, "add shop --output json", config)
        [admin] = json.loads(added)
        token = await plane.cases.sessions.sign_in("shop", admin["username"], admin["password"])
        assert token
        key = await asyncio.to_thread(invoke, api_key, "add --project shop --name ci", config)
        assert (await plane.cases.api_keys.verify(key.strip())).may_write is False
        line = f"set-role --project shop --id {key.partition('.')[0]} --role READ_WRITE_APPROVE"
        await asyncio.to_thread(invoke, api_key, line, config)
        assert (await plane.cases.api_keys.verify(key.strip())).may_approve is True
        with pytest.raises(AlreadyExists):
            await asyncio.to_thread(invoke, project, "add shop", config)
        with pytest.raises(UserMistake, match="does not offer"):
            await run_on_server(socket_path(config.with_name("pipecd.db")), "drop", {})
        socket = socket_path(config.with_name("pipecd.db"))
        assert socket.stat().st_mode & 0o777 == 0o600
    assert not socket.exists()


async def test_the_path_of_the_database_may_be_longer_than_that_of_a_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    async with start_control_plane(directory):
        rows = await run_on_server(socket_path(directory / "pipecd.db"), "list-projects", {})
        assert rows is not None
        assert [row["id"] for row in rows] == ["demo"]
    assert await run_on_server(socket_path(directory / "pipecd.db"), "list-projects", {}) is None


async def test_a_long_list_of_projects_reaches_the_command(
    start_plane: StartControlPlane, config: Path
) -> None:
    async with start_plane() as plane:
        for number in range(40):
            admin = StaticAdmin("admin", "hello-shop")
            await plane.cases.projects.add(f"shop-{number}", "d" * 2000, admin)
        socket = socket_path(config.with_name("pipecd.db"))
        rows = await run_on_server(socket, "list-projects", {})
        assert rows is not None
        assert len(json.dumps(rows)) > 64 * 1024
        assert len(rows) == 41


async def test_a_request_that_is_too_long_is_refused_in_words(
    start_plane: StartControlPlane, config: Path
) -> None:
    async with start_plane():
        socket = socket_path(config.with_name("pipecd.db"))
        with pytest.raises(UserMistake, match="longer than 1 MiB"):
            await run_on_server(socket, "list-projects", {"description": "d" * (2 << 20)})


def test_a_password_is_hashed_for_the_configuration() -> None:
    result = CliRunner().invoke(hash_password, [], input="hello-demo\n", catch_exceptions=False)
    assert key_matches("hello-demo", result.output.strip())
    with pytest.raises(UserMistake, match="empty"):
        CliRunner().invoke(hash_password, [], input="\n", catch_exceptions=False)
