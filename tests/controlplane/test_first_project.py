# SPDX-License-Identifier: Apache-2.0
"""An empty installation gets its first project from the settings or from the link it logs."""

import asyncio
import re
import signal
import sqlite3
import sys
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from click.testing import CliRunner

from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.setup_token import (
    TTL,
    is_signed_setup_token,
    is_valid_setup_token,
    new_setup_token,
)
from pipecd.controlplane.command import server
from pipecd.controlplane.console.first_project import problem_of
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.clock import utc_now
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from servers.server import free_port

KEY = b"k" * 32
FIELDS = {"project": "shop", "username": "ann", "password": "hello-shop"}


def settings(directory: Path, address: str = "", **more: Any) -> ServerSettings:
    config = f"""
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: "{address}"
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
"""
    spec = read_control_plane(config.encode(), file="control-plane.yaml")
    return ServerSettings(
        spec, KEY, host="127.0.0.1", port=0, insecure_cookie=True, grace_period=1, **more
    )


def browser(plane: ControlPlane) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=f"http://localhost:{plane.port}")


def token_of(plane: ControlPlane) -> str:
    return urlsplit(plane.setup_link).query.removeprefix("token=")


async def test_the_link_creates_the_first_project_once(tmp_path: Path) -> None:
    async with control_plane(settings(tmp_path)) as plane, browser(plane) as http:
        assert plane.setup_link.startswith(f"http://localhost:{plane.port}/setup?token=")
        assert "This installation has no project yet" in (await http.get("/login")).text
        page = await http.get(plane.setup_link)
        assert page.status_code == 200
        assert "Create the first project" in page.text
        fields = {**FIELDS, "token": token_of(plane)}
        created = await http.post("/setup", data=fields)
        assert (created.status_code, created.headers["Location"]) == (
            303,
            "/login?project=shop&created=1&username=ann",
        )
        assert "The project is created." in (await http.get(created.headers["Location"])).text
        assert (await http.post("/auth/login/static", data=FIELDS)).cookies.get("token")
        again = await http.post("/setup", data={**fields, "project": "second"})
        assert again.status_code == 404
        assert (await http.get(plane.setup_link)).status_code == 404
        assert "no project yet" not in (await http.get("/login")).text
    async with control_plane(settings(tmp_path)) as plane:
        assert plane.setup_link == ""


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        pytest.param({"token": "1.2"}, 403, "his link is not valid", id="another token"),
        pytest.param({"token": ""}, 403, "his link is not valid", id="no token"),
        pytest.param({"project": "a/b"}, 422, "cannot be the ID", id="not an id"),
        pytest.param({"project": "my shop"}, 422, "cannot be the ID", id="a space"),
        pytest.param({"project": "läden"}, 422, "cannot be the ID", id="what no header carries"),
        pytest.param({"project": "shop?a=1"}, 422, "cannot be the ID", id="a part of an address"),
        pytest.param(
            {"project": "-shop"}, 422, "with a letter or digit first", id="like an option"
        ),
        pytest.param({"username": " "}, 422, "Enter a username", id="no username"),
        pytest.param({"password": "short"}, 422, "at least 8 characters", id="a short password"),
        pytest.param({"password": "x" * 73}, 422, "Choose a shorter one", id="a long password"),
    ],
)
async def test_an_invalid_form_creates_nothing(
    change: dict[str, str], status: int, text: str, tmp_path: Path
) -> None:
    async with control_plane(settings(tmp_path)) as plane, browser(plane) as http:
        response = await http.post("/setup", data={**FIELDS, "token": token_of(plane), **change})
        assert response.status_code == status
        assert text in response.text
        assert await plane.stores.projects.list() == ()


async def test_a_page_of_another_site_cannot_submit_the_form(tmp_path: Path) -> None:
    async with control_plane(settings(tmp_path)) as plane, browser(plane) as http:
        fields, origin = {**FIELDS, "token": token_of(plane)}, {"Sec-Fetch-Site": "cross-site"}
        assert (await http.post("/setup", data=fields, headers=origin)).status_code == 403


def test_a_link_expires_and_belongs_to_one_installation() -> None:
    now = utc_now()
    token = new_setup_token(KEY, now)
    assert is_valid_setup_token(token, KEY, now + TTL - timedelta(seconds=1))
    assert not is_valid_setup_token(token, KEY, now + TTL)
    assert not is_valid_setup_token(token, b"x" * 32, now)
    later = token.replace(token.partition(".")[0], "99999999999")
    assert not is_valid_setup_token(later, KEY, now)
    assert is_signed_setup_token(token, KEY)
    assert not is_signed_setup_token(later, KEY)


async def test_an_expired_link_says_so_and_leads_nowhere_else(tmp_path: Path) -> None:
    old = new_setup_token(KEY, utc_now() - TTL)
    async with control_plane(settings(tmp_path)) as plane, browser(plane) as http:
        for token, title in ((old, "This link has expired"), ("1.2", "This link is not valid")):
            page = await http.get("/setup", params={"token": token})
            assert page.status_code == 403
            assert title in page.text
            # Nobody can sign in before there is a project.
            assert "Sign in" not in page.text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"project": "my shop"}, "project", id="the project"),
        pytest.param({"project": "", "username": ""}, "project", id="the first of several"),
        pytest.param({"username": ""}, "username", id="the username"),
        pytest.param({"password": "short"}, "password", id="the password"),
    ],
)
def test_the_field_is_named_that_has_to_change(change: dict[str, str], field: str) -> None:
    fine = {"project": "shop", "username": "ann", "password": "long enough"}
    assert problem_of(**{**fine, **change}).field == field


async def test_the_link_begins_with_the_public_address(tmp_path: Path) -> None:
    async with control_plane(settings(tmp_path, "https://cd.example.com/")) as plane:
        assert plane.setup_link.startswith("https://cd.example.com/setup?token=")


async def test_settings_create_the_first_project_of_an_empty_installation(tmp_path: Path) -> None:
    first = ("shop", StaticAdmin("ann", "hello-shop"))
    async with control_plane(settings(tmp_path, first_project=first)) as plane:
        assert plane.setup_link == ""
        assert await plane.cases.sessions.sign_in("shop", "ann", "hello-shop")
    second = ("other", StaticAdmin("ann", "hello-other"))
    async with control_plane(settings(tmp_path, first_project=second)) as plane:
        assert [project.id for project in await plane.stores.projects.list()] == ["shop"]


async def test_the_operator_pages_are_served_beside_sqlite(tmp_path: Path) -> None:
    port = free_port()
    async with (
        control_plane(settings(tmp_path, operator_port=port)) as plane,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        added = await http.post("/projects/add", data={"ID": "shop"})
        assert "The project was added" in added.text
        assert [project.id for project in await plane.stores.projects.list()] == ["shop"]


def help_text() -> str:
    return CliRunner().invoke(server, ["--help"]).output


async def test_an_id_that_no_new_project_may_have_is_no_reason_not_to_start(
    tmp_path: Path,
) -> None:
    admin = StaticAdmin("ann", "hello-shop")
    user = ProjectStaticUser(username="ann", password_hash="secret-hash")
    with pytest.raises(UserMistake, match="'_shop' cannot be the ID of a project"):
        async with control_plane(settings(tmp_path, first_project=("_shop", admin))):
            pytest.fail("started")
    async with control_plane(settings(tmp_path)) as plane:
        await plane.stores.projects.add(Project(id="_shop", static_admin=user))
    async with control_plane(settings(tmp_path, first_project=("_shop", admin))) as plane:
        assert [project.id for project in await plane.stores.projects.list()] == ["_shop"]


@pytest.mark.parametrize("id", ["shop", "_shop"])
def test_a_first_project_needs_a_password(tmp_path: Path, id: str) -> None:
    config, key = tmp_path / "control-plane.yaml", tmp_path / "key"
    config.write_text(configuration_in(help_text()).replace("/var/lib/pipecd", str(tmp_path)))
    key.write_bytes(KEY)
    files = ["--config-file", str(config), "--encryption-key-file", str(key)]
    with pytest.raises(UserMistake, match="needs a password for its administrator"):
        CliRunner().invoke(server, [*files, "--first-project", id], catch_exceptions=False)


def configuration_in(text: str) -> str:
    block = re.search(r"^ +apiVersion: .*?(?=\n *\n)", text, re.M | re.S)
    assert block is not None
    return dedent(block[0])


async def test_the_configuration_in_the_help_starts_a_server(tmp_path: Path) -> None:
    config, key = tmp_path / "control-plane.yaml", tmp_path / "key"
    config.write_text(configuration_in(help_text()).replace("/var/lib/pipecd", str(tmp_path)))
    key.write_bytes(KEY)
    ports = ("piped-api", "web-api", "http", "api", "admin", "envoy-authz")
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pipecd", "server",
        "--config-file", str(config), "--encryption-key-file", str(key), "--insecure-cookie",
        "--host", "127.0.0.1", "--port", "0", *(f"--{name}-port=0" for name in ports),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert started.stderr is not None
    line = b""
    async with asyncio.timeout(30):
        async for line in started.stderr:
            if b"/setup?token=" in line:
                break
        started.send_signal(signal.SIGTERM)
        await started.communicate()
    assert started.returncode == 0
    assert b"http://localhost:9090/setup?token=" in line


async def test_strangers_do_not_cause_reads_of_all_projects(tmp_path: Path) -> None:
    async with control_plane(settings(tmp_path)) as plane:
        projects = plane.cases.projects
        assert not await projects.has_any()
        await projects.add("shop")
        assert await projects.has_any()
        with sqlite3.connect(tmp_path / "pipecd.db") as database:
            database.execute("DROP TABLE Project")
        async with browser(plane) as client:
            assert (await client.get("/login")).status_code == 200
            assert (await client.get("/setup")).status_code == 404


@pytest.mark.parametrize("key", ["a-long-random-text", "change-this-to-a-long-random-text"])
def test_the_state_key_of_an_example_is_warned_about(key: str, tmp_path: Path) -> None:
    config, secret = tmp_path / "control-plane.yaml", tmp_path / "key"
    config.write_text(
        "apiVersion: pipecd.dev/v1beta1\nkind: ControlPlane\nspec:\n"
        f"  stateKey: {key}\n  datastore: {{type: SQLITE, config: {{path: x.db}}}}\n"
        "  filestore: {type: LOCAL, config: {path: x}}\n"
    )
    secret.write_text("too short")
    words = [f"--config-file={config}", f"--encryption-key-file={secret}"]
    ran = CliRunner().invoke(server, words)
    assert isinstance(ran.exception, UserMistake)
    assert "stateKey is the text of an example" in ran.output
