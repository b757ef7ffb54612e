# SPDX-License-Identifier: Apache-2.0
"""The commands of the page about backups copy and restore the databases of servers."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from controlplane.test_copy_stores import GITHUB, answers_of, serving, write_config
from pipecd.config.controlplane import DatastoreSpec
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from servers.databases import MariaDb, Postgres, empty_database
from servers.every_object import ObjectWriter
from servers.pages import console_blocks
from servers.stored_answers import differences

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "restored"
LINES = {"mariadb": ("mysqldump", "mysql"), "postgres": ("pg_dump", "pg_restore")}


def line_of(block: str, program: str) -> str:
    """The line of a program, for the database of the test."""
    [line] = [line for line in block.splitlines() if line.split()[0] == program]
    return re.sub(r"(?<=[ =])pipecd(?=\s|$)", NAME, line)


async def typed(line: str, server: MariaDb | Postgres, directory: Path) -> None:
    """Runs a line with the connection that people have in the files of their home directory."""
    (directory / ".my.cnf").write_text(
        f"[client]\nhost=127.0.0.1\nport={server.port}\nuser=root\nprotocol=tcp\n"
    )
    place = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **place}
    process = await asyncio.create_subprocess_exec(
        "sh", "-ec", line, cwd=directory, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, (line, errors.decode())


def config_of(database: DatastoreSpec, directory: Path) -> Path:
    stored = {"type": database.type, "config": {"url": database.config.url}}
    files = {"type": "LOCAL", "config": {"path": str(directory / "files")}}
    return write_config(directory / "control-plane.yaml", stored, files)


@pytest.mark.parametrize("engine", LINES)
async def test_a_database_is_restored_from_its_dump(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: MariaDb | Postgres = request.getfixturevalue(engine)
    dump, restore = console_blocks("backup.md", "MySQL and PostgreSQL")
    before, after = LINES[engine]
    repository = ApplicationGitRepository(id="site", remote="git@h:o/r.git", branch="main")
    with empty_database(server, NAME) as database:
        async with serving(config_of(database, tmp_path)) as plane:
            ids = await ObjectWriter(plane).write(GITHUB, [repository])
            written = await answers_of(plane, ids)
            # While the server runs, as the page says.
            await typed(line_of(dump, before), server, tmp_path)
    with empty_database(server, NAME) as database:
        await typed(line_of(restore, after), server, tmp_path)
        async with serving(config_of(database, tmp_path)) as plane:
            assert differences(await answers_of(plane, ids), written) == ""
