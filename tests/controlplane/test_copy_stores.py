# SPDX-License-Identifier: Apache-2.0
"""`pipecd copy-stores` moves a whole installation to other stores, and never to half of them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.controlplane import DatastoreSpec
from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.datastore.copy import copied_tables
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.model.errors import UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from servers.databases import MariaDb, Postgres, empty_database, sql
from servers.every_object import PASSWORD, PROJECT, ObjectWriter, WrittenObjects
from servers.objects import S3
from servers.polling import eventually
from servers.programs import OUR_PIPECD
from servers.stored_answers import AnswerReader, Answers, differences
from servers.upstream import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "copied"
GITHUB = ProjectSSOConfig(
    provider=ProjectSSOConfig.GITHUB,
    github=ProjectSSOConfig.GitHub(client_id="id", client_secret="secret"),
)
# The copy waits for this lock before it adds pipeds.
BLOCK_PIPEDS = {
    "postgres": (
        "CREATE FUNCTION block() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END'",
        'CREATE TRIGGER block BEFORE INSERT ON "Piped" FOR EACH ROW EXECUTE FUNCTION block()',
    ),
    "mariadb": (
        "CREATE TRIGGER block BEFORE INSERT ON Piped FOR EACH ROW SET @got = GET_LOCK('block', 60)",
    ),
}
UNBLOCK = {"postgres": 'DROP TRIGGER block ON "Piped"', "mariadb": "DROP TRIGGER block"}
WAITING = {
    "postgres": "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
    "mariadb": "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'",
}
LOCK = {"postgres": "SELECT pg_advisory_lock(1)", "mariadb": "SELECT GET_LOCK('block', 60)"}


@pytest.fixture(params=["mariadb", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def server(engine: str, request: pytest.FixtureRequest) -> MariaDb | Postgres:
    return request.getfixturevalue(engine)


@pytest.fixture
def database(server: MariaDb | Postgres) -> Iterator[DatastoreSpec]:
    """A database without tables."""
    with empty_database(server, NAME) as spec:
        yield spec


@dataclass
class Move:
    """The configurations of an installation on SQLite and a directory, and of its next stores."""

    old: Path
    new: Path

    async def copy(self) -> tuple[int, str]:
        """Runs the command; returns its exit code and what it printed."""
        process = await self.start_copy()
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def start_copy(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            OUR_PIPECD,
            "copy-stores",
            f"--from-config-file={self.old}",
            f"--config-file={self.new}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )


def write_config(file: Path, datastore: Any, filestore: Any) -> Path:
    spec = {"stateKey": "state", "datastore": datastore, "filestore": filestore}
    document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "ControlPlane", "spec": spec}
    file.write_text(json.dumps(document))
    return file


@pytest.fixture
def move(database: DatastoreSpec, aws: S3, tmp_path: Path) -> Move:
    sqlite = {"type": "SQLITE", "config": {"path": str(tmp_path / "pipecd.db")}}
    directory = {"type": "LOCAL", "config": {"path": str(tmp_path / "files")}}
    server = {"type": database.type, "config": {"url": database.config.url}}
    bucket = {"bucket": f"b-{new_id()}", "region": "eu-west-1", "autoCreateBucket": True}
    return Move(
        write_config(tmp_path / "old.yaml", sqlite, directory),
        write_config(tmp_path / "new.yaml", server, {"type": "S3", "config": bucket}),
    )


@asynccontextmanager
async def serving(config: Path) -> AsyncGenerator[ControlPlane, None]:
    # Its background jobs would count applications again.
    async with control_plane(settings_of(config, with_ops=False)) as plane:
        yield plane


def settings_of(config: Path, *, with_ops: bool) -> ServerSettings:
    return ServerSettings(
        read_control_plane(config.read_bytes(), file=str(config)),
        b"k" * 32,
        host="127.0.0.1",
        port=0,
        insecure_cookie=True,
        grace_period=1,
        with_ops=with_ops,
    )


async def answers_of(plane: ControlPlane, ids: WrittenObjects) -> Answers:
    address = f"127.0.0.1:{plane.port}"
    admin = Visitor(f"http://{address}", address)
    await admin.sign_in(PROJECT, "root", PASSWORD)
    return await AnswerReader(admin, address, address).everything(ids)


async def fill(config: Path) -> tuple[WrittenObjects, Answers]:
    repository = ApplicationGitRepository(id="site", remote="git@h:o/r.git", branch="main")
    async with serving(config) as plane:
        ids = await ObjectWriter(plane).write(GITHUB, [repository])
        return ids, await answers_of(plane, ids)


async def test_every_object_moves_with_its_id_key_and_history(move: Move) -> None:
    ids, written = await fill(move.old)
    code, printed = await move.copy()
    assert (code, printed.startswith("copied ")) == (0, True), printed
    async with serving(move.new) as plane:
        assert differences(await answers_of(plane, ids), written) == ""
        # New objects are stored beside the copied ones.
        await plane.cases.projects.add("next", "", None)
    # What was copied is still a whole installation.
    async with serving(move.old) as plane:
        assert differences(await answers_of(plane, ids), written) == ""


async def test_after_a_kill_no_server_starts_until_the_copy_is_repeated(
    move: Move, engine: str, database: DatastoreSpec, server: MariaDb | Postgres
) -> None:
    ids, written = await fill(move.old)
    async with open_datastore(database):
        pass  # Creates the tables.
    with sql(server, NAME) as run:
        for statement in BLOCK_PIPEDS[engine]:
            run(statement)
        run(LOCK[engine])
        copying = await move.start_copy()
        await eventually(lambda: run(WAITING[engine]), within=60)
        copying.kill()
        await copying.communicate()
    with pytest.raises(UserMistake, match="a copy that is not finished"):
        async with serving(move.new):
            pass
    with sql(server, NAME) as run:
        run(UNBLOCK[engine])
    code, printed = await move.copy()
    assert code == 0, printed
    async with serving(move.new) as plane:
        assert differences(await answers_of(plane, ids), written) == ""


async def test_stores_in_use_and_stores_with_content_are_refused(
    move: Move, database: DatastoreSpec, tmp_path: Path
) -> None:
    code, printed = await move.copy()
    assert (code, "there is no database" in printed) == (1, True), printed
    assert not (tmp_path / "pipecd.db").exists()
    async with serving(move.old) as plane:
        code, printed = await move.copy()
        assert (code, "is in use by process" in printed) == (1, True), printed
    code, printed = await move.copy()
    assert (code, "the old database has no projects" in printed) == (1, True), printed
    async with serving(move.old) as plane:
        await plane.cases.projects.add("p", "", None)
    assert (await move.copy())[0] == 0
    code, printed = await move.copy()
    assert (code, "rows already, in the table Project" in printed) == (1, True), printed
    # A server of the new stores that runs its jobs has leases.
    async with control_plane(settings_of(move.new, with_ops=True)):
        back = Move(move.new, move.old)
        await eventually(lambda: refused_for_a_server(back), within=30)


async def refused_for_a_server(move: Move) -> bool:
    code, printed = await move.copy()
    assert code == 1
    return "a server uses the old database" in printed


async def test_a_bucket_with_objects_is_refused(move: Move, tmp_path: Path) -> None:
    async with serving(move.old) as plane:
        await plane.cases.projects.add("p", "", None)
    files = tmp_path / "others"
    (files / "log").mkdir(parents=True)
    (files / "log" / "a.txt").write_text("precious")
    document = json.loads(move.new.read_text())
    document["spec"]["filestore"] = {"type": "LOCAL", "config": {"path": str(files)}}
    move.new.write_text(json.dumps(document))
    code, printed = await move.copy()
    assert (code, "objects already, the first is log/a.txt" in printed) == (1, True), printed
    assert (files / "log" / "a.txt").read_text() == "precious"
    # Nothing was begun: a server can use the empty stores.
    async with serving(move.new):
        pass


async def test_all_tables_but_those_of_processes_are_copied() -> None:
    names = {table.name for table in copied_tables()}
    assert {"Project", "Deployment", "ExtStageLog", "ExtSequence", "ExtKeyApproval"} <= names
    assert not {"ExtMeta", "ExtLease"} & names
