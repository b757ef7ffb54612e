# SPDX-License-Identifier: Apache-2.0
"""`pipecd backup` copies the database of a running server, and the copy is a whole installation."""

import asyncio
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.operator_command import backup
from pipecd.model.errors import PipecdError
from servers.control_plane import open_control_plane
from servers.polling import eventually

CONFIG = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  datastore: {datastore}
  filestore: {{type: LOCAL, config: {{path: /tmp/files}}}}
"""
ADMIN = User("shop", "root", ("Admin",))


def write_config(tmp_path: Path, datastore: str) -> Path:
    config = tmp_path / "control-plane.yaml"
    config.write_text(CONFIG.format(datastore=datastore))
    return config


def run(config: Path, copy: Path) -> str:
    options = ["--config-file", str(config), "--output-file", str(copy)]
    return CliRunner().invoke(backup, options, catch_exceptions=False).output


async def test_a_server_writes_on_while_its_database_is_copied(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    config = write_config(tmp_path, f"{{type: SQLITE, config: {{path: {tmp_path}/pipecd.db}}}}")
    copy = tmp_path / "new" / "pipecd.db"
    async with open_control_plane(tmp_path) as plane:
        before = await plane.cases.pipeds.register("before", "", by=ADMIN)
        written: list[str] = []

        async def register() -> None:
            while True:
                piped = await plane.cases.pipeds.register(f"p{len(written)}", "", by=ADMIN)
                written.append(piped.id)

        writing = asyncio.create_task(register())
        printed = await asyncio.to_thread(run, config, copy)
        seen = len(written)
        await eventually(lambda: len(written) > seen)
        writing.cancel()
    # What the server logs meanwhile is printed too.
    assert any(line.startswith(f"{copy}: ") for line in printed.splitlines())
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in copy.parent.iterdir()] == ["pipecd.db"]
    async with open_sqlite(copy) as database:
        stores = create_stores(database, await LocalFiles.open(tmp_path / "files"), MemoryCache())
        restored = [piped.id for piped in await stores.pipeds.list("shop")]
    # The copy is of one moment: everything before it, and nothing after it.
    known = [before.id, *written]
    assert before.id in restored
    assert set(restored) - {plane.piped.id} == set(known[: len(restored) - 1])


@pytest.mark.parametrize(
    ("datastore", "message"),
    [
        ("{type: SQLITE, config: {path: /nowhere/pipecd.db}}", "there is no database"),
        ("{type: MYSQL, config: {url: 'u@tcp(h)', database: d}}", "mysqldump"),
        ("{type: POSTGRESQL, config: {url: 'postgresql://h', database: d}}", "pg_dump"),
    ],
)
def test_what_cannot_be_copied_is_refused(tmp_path: Path, datastore: str, message: str) -> None:
    with pytest.raises(PipecdError) as refused:
        run(write_config(tmp_path, datastore), tmp_path / "copy.db")
    assert message in f"{refused.value.message} {refused.value.hint}"
    assert list(tmp_path.glob("*copy*")) == []


async def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"{{type: SQLITE, config: {{path: {tmp_path}/pipecd.db}}}}")
    copy = tmp_path / "copy.db"
    copy.write_text("precious")
    async with open_control_plane(tmp_path):
        with pytest.raises(PipecdError, match="exists already"):
            await asyncio.to_thread(run, config, copy)
    assert copy.read_text() == "precious"
