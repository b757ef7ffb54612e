# SPDX-License-Identifier: Apache-2.0
"""An installation moves to other stores and other control planes, by the commands of the pages."""

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servers.databases import Postgres, empty_database
from servers.layout import (
    PROGRAMS,
    Container,
    Pipectl,
    first_key,
    programs_on_loopback,
    server_flags,
    until_ready,
)
from servers.pages import console_blocks
from servers.polling import eventually
from servers.server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FIRST = {"PIPECD_FIRST_PROJECT": "shop", "PIPECD_FIRST_ADMIN_PASSWORD": "hello-shop"}


@dataclass(frozen=True)
class Place:
    """The directory of an operator, where the commands of the pages run."""

    directory: Path
    port: int

    def write(self, name: str, datastore: Any, files: str) -> Path:
        """Writes a configuration of the control plane."""
        filestore = {"type": "LOCAL", "config": {"path": str(self.directory / files)}}
        address = f"http://localhost:{self.port}"
        spec = {"address": address, "datastore": datastore, "filestore": filestore}
        document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "ControlPlane", "spec": spec}
        (self.directory / name).write_text(json.dumps(document))
        return self.directory / name

    def type(self, block: str) -> str:
        """Runs the commands of a block; returns what they print."""
        variables = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(self.directory)}
        done = subprocess.run(
            ["sh", "-ec", block], cwd=self.directory, env=variables, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout + done.stderr

    @asynccontextmanager
    async def server(self, config: Path, root: Path) -> AsyncIterator[None]:
        key = self.directory / "encryption-key"
        key.write_text("k" * 64)
        words = ["pipecd", "server", f"--config-file={config}", "--insecure-cookie"]
        words += [f"--encryption-key-file={key}", *server_flags(self.port)]
        async with Container(root).started(words, FIRST) as log:
            await until_ready(log)
            yield


def place(directory: Path) -> tuple[Place, Path]:
    """A directory with the configuration of a control plane on SQLite."""
    directory.mkdir()
    created = Place(directory, free_port())
    sqlite = {"type": "SQLITE", "config": {"path": str(directory / "pipecd.db")}}
    return created, created.write("control-plane.yaml", sqlite, "files")


@dataclass(frozen=True)
class Launcher:
    """The launcher, started as its page says, with the configuration of a piped."""

    directory: Path
    path: str

    @asynccontextmanager
    async def __call__(self, configuration: str) -> AsyncIterator[None]:
        container = Container(self.directory)
        (self.directory / "piped.yaml").write_text(configuration)
        [line] = console_blocks("launcher.md")
        assert "=9089" in line
        line = line.replace("=9089", f"={free_port()}")
        words = ["sh", "-ec", f"cd {self.directory}\nexec {line}"]
        async with container.started(words, {"PATH": self.path}):
            yield


async def applications(pipectl: Pipectl) -> list[tuple[str, str]]:
    listed = await pipectl("application list")
    return [(each["id"], each["name"]) for each in listed.get("applications", [])]


async def test_a_project_moves_to_another_control_plane(tmp_path: Path) -> None:
    old, old_config = place(tmp_path / "old")
    new, new_config = place(tmp_path / "new")
    backup, application = console_blocks("migration.md", "From Firestore")
    for host, port in (("old.example.com:443", old.port), ("new.example.com:443", new.port)):
        assert host in backup
        backup = backup.replace(host, f"localhost:{port} --insecure")
        application = application.replace(host, f"localhost:{port} --insecure")
    path = programs_on_loopback(tmp_path / "bin", free_port())
    async with old.server(old_config, tmp_path / "a"), new.server(new_config, tmp_path / "b"):
        keys = {
            "old": await first_key(old_config, "shop"),
            "new": await first_key(new_config, "shop"),
        }
        for name, key in keys.items():
            (tmp_path / f"{name}-key").write_text(key)
        reader = Place(tmp_path, 0)
        await Pipectl(old.port, keys["old"]).deploy_with(
            Launcher(tmp_path / "first", path), tmp_path
        )
        reader.type(backup)
        [piped] = json.loads((tmp_path / "pipeds.json").read_text())["piped_mappings"]
        text = (tmp_path / "first" / "piped.yaml").read_text()
        for field, value in {
            "pipedID": piped["new_piped_id"],
            "pipedKeyData": piped["new_base64_key"],
            "apiAddress": f"localhost:{new.port}",
        }.items():
            text, count = re.subn(rf"{field}: .*", f"{field}: {value}", text)
            assert count == 1, field
        moved = Pipectl(new.port, keys["new"])
        async with Launcher(tmp_path / "second", path)(text):

            async def has_reported() -> bool:
                return "repositories" in await moved(
                    f"piped get --piped-id {piped['new_piped_id']}"
                )

            await eventually(has_reported, within=100)
            reader.type(application)
            [(id, name)] = await applications(moved)
            assert name == "web"

            async def has_succeeded() -> bool:
                listed = await moved(f"deployment list --app-id {id}")
                return [d["status"] for d in listed.get("deployments", [])] == [4]

            await eventually(has_succeeded, within=100)


async def test_an_installation_moves_from_sqlite_to_a_database_server(
    postgres: Postgres, tmp_path: Path
) -> None:
    operator, config = place(tmp_path / "operator")
    path = programs_on_loopback(tmp_path / "bin", free_port())
    [copy] = console_blocks("sizing.md", "From SQLite to a database server")
    [unseal] = console_blocks("operations.md", "Returning to upstream")
    with empty_database(postgres, "moved") as database:
        async with operator.server(config, tmp_path / "a"):
            pipectl = Pipectl(operator.port, await first_key(config, "shop"))
            await pipectl.deploy_with(Launcher(tmp_path / "piped", path), tmp_path)
            before = await applications(pipectl), await pipectl("deployment list")
        datastore = {"type": database.type, "config": {"url": database.config.url}}
        config = operator.write("new.yaml", datastore, "new-files")
        assert re.search(r"copied \d+ rows and \d+ files", operator.type(copy))
        async with operator.server(config, tmp_path / "b"):
            assert (await applications(pipectl), await pipectl("deployment list")) == before
        operator.type(unseal.replace("control-plane.yaml", "new.yaml"))
