# SPDX-License-Identifier: Apache-2.0
"""A control plane notices that its encryption key is not the one of its database."""

import re
import sqlite3
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ServerSettings, control_plane
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.command import server, unseal_secrets
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig, ProjectStaticUser
from pipecd.secrets.keyfile import KeyFile

FIRST, SECOND = b"1" * 32, b"2" * 32
FILE = "/etc/pipecd/encryption-key"
UNREADABLE = "stored secrets cannot be read with this encryption key"
ADMIN = User("shop", "ann", ("Admin",))
CONFIG = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
"""


def settings(directory: Path, key: bytes, **more: Any) -> ServerSettings:
    text = CONFIG.format(directory=directory).encode()
    spec = read_control_plane(text, file="control-plane.yaml")
    admin = StaticAdmin("ann", "hello-shop")
    return ServerSettings(
        spec,
        key,
        host="127.0.0.1",
        port=0,
        grace_period=1,
        insecure_cookie=True,
        first_project=("shop", admin),
        encryption_key_file=FILE,
        **more,
    )


async def warnings_of_start(directory: Path, key: bytes, **more: Any) -> list[str]:
    """Starts and stops a server; returns its warnings."""
    with capture_logs() as logged:
        async with control_plane(settings(directory, key, **more)):
            pass
    warnings = [line for line in logged if line["log_level"] == "warning"]
    assert all(line["file"] == FILE and line["hint"] for line in warnings)
    return [", ".join([line["event"], *line.get("secrets", ())]) for line in warnings]


async def save_webhook_secret(directory: Path, key: bytes) -> None:
    async with control_plane(settings(directory, key)) as plane:
        await plane.cases.webhooks.rotate(by=ADMIN)


def oidc_secret() -> ProjectSSOConfig:
    oidc = ProjectSSOConfig.Oidc(client_id="id", client_secret="s3cret", issuer="https://idp.x")
    return ProjectSSOConfig(provider=ProjectSSOConfig.OIDC, oidc=oidc)


async def test_the_same_key_starts_without_a_word(tmp_path: Path) -> None:
    await save_webhook_secret(tmp_path, FIRST)
    assert await warnings_of_start(tmp_path, FIRST) == []


async def test_another_key_is_refused_and_the_file_is_named(tmp_path: Path) -> None:
    await save_webhook_secret(tmp_path, FIRST)
    async with control_plane(settings(tmp_path, FIRST)) as plane:
        await plane.cases.projects.set_sso(oidc_secret(), by=ADMIN)
    with pytest.raises(UserMistake) as refused:
        await warnings_of_start(tmp_path, SECOND)
    assert refused.value.message == (
        "the encryption key in /etc/pipecd/encryption-key is not the one that this database "
        "was used with: all users would be signed out, and these stored secrets would be "
        "unreadable: the client secret of project shop, the webhook secret of project shop"
    )
    assert "--new-encryption-key" in refused.value.hint
    # Nothing has changed for the right key.
    assert await warnings_of_start(tmp_path, FIRST) == []


async def test_another_key_is_refused_where_only_sessions_depend_on_it(tmp_path: Path) -> None:
    await warnings_of_start(tmp_path, FIRST)
    with pytest.raises(UserMistake, match="all users would be signed out; start with"):
        await warnings_of_start(tmp_path, SECOND)


async def test_a_replaced_key_is_accepted_once(tmp_path: Path) -> None:
    await save_webhook_secret(tmp_path, FIRST)
    warnings = await warnings_of_start(tmp_path, SECOND, new_encryption_key=True)
    assert warnings == [
        "the encryption key has been replaced",
        f"{UNREADABLE}, the webhook secret of project shop",
    ]
    # The secret is still named, until there is a new one.
    assert len(await warnings_of_start(tmp_path, SECOND)) == 1
    await save_webhook_secret(tmp_path, SECOND)
    assert await warnings_of_start(tmp_path, SECOND) == []
    with pytest.raises(UserMistake, match="is not the one"):
        await warnings_of_start(tmp_path, FIRST)


async def test_a_webhook_whose_secret_is_unreadable_is_shown_and_gets_a_new_one(
    tmp_path: Path,
) -> None:
    await save_webhook_secret(tmp_path, FIRST)
    async with control_plane(settings(tmp_path, SECOND, new_encryption_key=True)) as plane:
        form = {"project": "shop", "username": "ann", "password": "hello-shop"}
        async with httpx2.AsyncClient(base_url=f"http://localhost:{plane.port}") as browser:
            await browser.post("/auth/login/static", data=form)
            page = (await browser.get("/settings/project")).text
            assert "The secret cannot be read, because the encryption key" in page
            csrf = re.search(r'name="csrf" value="([^"]+)"', page)
            assert csrf is not None
            await browser.post("/settings/project/webhook", data={"csrf": csrf[1]})
            page = (await browser.get("/settings/project")).text
            assert "The secret cannot be read" not in page
        # The previous secret, which cannot be read, does not make the new one useless.
        (secret,) = await plane.cases.webhooks.secrets_of("shop")
        assert secret in unescape(page)


async def test_a_longer_key_that_begins_the_same_reads_secrets_and_ends_sessions(
    tmp_path: Path,
) -> None:
    await save_webhook_secret(tmp_path, FIRST)
    assert await warnings_of_start(tmp_path, FIRST + b"\n") == ["the encryption key has changed"]
    assert await warnings_of_start(tmp_path, FIRST + b"\n") == []


async def test_a_database_of_upstream_opens_with_a_wrong_key_and_later_with_the_right_one(
    tmp_path: Path,
) -> None:
    right = KeyFile(FIRST)
    github = ProjectSSOConfig.GitHub(
        client_id=right.encrypt("id"), client_secret=right.encrypt("s3cret")
    )
    sso = ProjectSSOConfig(provider=ProjectSSOConfig.GITHUB, github=github)
    user = ProjectStaticUser(username="ann", password_hash="x" * 60)
    async with control_plane(settings(tmp_path, FIRST)) as plane:
        await plane.stores.projects.add(Project(id="old", static_admin=user, sso=sso))
    with sqlite3.connect(tmp_path / "pipecd.db") as database:
        database.execute("DELETE FROM ExtMeta WHERE Name = 'encryption-key'")
    for _ in range(2):
        assert await warnings_of_start(tmp_path, SECOND) == [
            f"{UNREADABLE}, the GitHub client id and secret of project old"
        ]
    assert await warnings_of_start(tmp_path, FIRST) == []


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        pytest.param(None, "there is no file {key} for the encryption key", "openssl rand -hex 32", id="missing"),
        pytest.param(b"", "the encryption key file {key} is empty", "openssl rand -hex 32", id="empty"),
        pytest.param(b"k" * 31, "the encryption key file {key} has 31 bytes and needs at least 32", "openssl rand -hex 32", id="too short"),
        pytest.param("a directory", "{key} is a directory, the encryption key is a file", "--encryption-key-file", id="a directory"),
        pytest.param("a cycle", "cannot read the encryption key {key}: Too many levels of symbolic links", "readable by the user", id="unreadable"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [server, unseal_secrets])
def test_files_without_a_key_are_told_apart(
    tmp_path: Path, command: Any, content: bytes | str | None, message: str, hint: str
) -> None:
    config, key = tmp_path / "control-plane.yaml", tmp_path / "key"
    config.write_text(CONFIG.format(directory=tmp_path))
    match content:
        case bytes():
            key.write_bytes(content)
        case "a directory":
            key.mkdir()
        case "a cycle":
            key.symlink_to(key)
        case _:
            pass
    words = [f"--config-file={config}", f"--encryption-key-file={key}"]
    error = CliRunner().invoke(command, words).exception
    assert isinstance(error, UserMistake)
    assert error.message == message.format(key=key)
    assert hint in error.hint
