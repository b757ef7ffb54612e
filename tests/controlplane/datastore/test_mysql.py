# SPDX-License-Identifier: Apache-2.0
"""MySQL: forms of the url, tables of upstream, and rows that upstream writes meanwhile."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.cursors import Cursor, DictCursor

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.database import compile_statement
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.engines import mysql, mysql_labels
from pipecd.controlplane.datastore.engines.mysql import (
    MysqlAddress,
    Tls,
    explain,
    explain_connect,
    mysql_address,
)
from pipecd.controlplane.datastore.engines.mysql_sql import mysql_dialect
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    Selection,
    any_of,
    equal,
    row_id,
)
from pipecd.controlplane.datastore.ranges import page_statement
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.document import to_json
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.databases import MariaDb

Make = Callable[..., Application]
Open = Callable[[], AbstractAsyncContextManager[Stores]]


@pytest.fixture(params=["mariadb"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(
            {"url": "root:pw@tcp(db:3307)/pipecd"},
            MysqlAddress("db", 3307, "", "root", "pw", "pipecd"),
            id="everything in the url",
        ),
        pytest.param(
            {"url": "root:pw@tcp(db:3306)", "database": "pipecd"},
            MysqlAddress("db", 3306, "", "root", "pw", "pipecd"),
            id="the database in its own setting",
        ),
        pytest.param(
            {"url": "root:p?a/s@s:w@tcp(db)", "database": "pipecd"},
            MysqlAddress("db", 3306, "", "root", "p?a/s@s:w", "pipecd"),
            id="a password with special characters",
        ),
        pytest.param(
            {"url": "root:p?w@tcp(db)/pipecd?parseTime=true&tls=skip-verify"},
            MysqlAddress("db", 3306, "", "root", "p?w", "pipecd", Tls.UNVERIFIED),
            id="parameters after the database",
        ),
        pytest.param(
            {"url": "root@tcp(db)?tls=true", "database": "pipecd"},
            MysqlAddress("db", 3306, "", "root", "", "pipecd", Tls.ON),
            id="parameters without a database",
        ),
        pytest.param(
            {"url": "root@tcp(db)/old?tls=preferred&multiStatements=true", "database": "new"},
            MysqlAddress("db", 3306, "", "root", "", "new", Tls.PREFERRED),
            id="a database that replaces that of the url",
        ),
        pytest.param(
            {"url": "root@tcp(db)/?timeout=2s&readTimeout=1m", "database": "pipecd"},
            MysqlAddress("db", 3306, "", "root", "", "pipecd", Tls.OFF, 2.0, 60.0),
            id="timeouts",
        ),
        pytest.param(
            {"url": "root@unix(/run/mysqld/mysqld.sock)/pipecd"},
            MysqlAddress("", 0, "/run/mysqld/mysqld.sock", "root", "", "pipecd"),
            id="a socket",
        ),
        pytest.param(
            {"url": "root@unix(/run/my.sock)", "database": "pipecd"},
            MysqlAddress("", 0, "/run/my.sock", "root", "", "pipecd"),
            id="a socket and the database in its own setting",
        ),
        pytest.param(
            {"url": "root@tcp([2001:db8::1]:3307)/pipecd"},
            MysqlAddress("2001:db8::1", 3307, "", "root", "", "pipecd"),
            id="an IPv6 address",
        ),
        pytest.param(
            {"url": "root@tcp([::1])/pipecd"},
            MysqlAddress("::1", 3306, "", "root", "", "pipecd"),
            id="an IPv6 address without a port",
        ),
        pytest.param(
            {"url": "/pipecd"},
            MysqlAddress("127.0.0.1", 3306, "", "", "", "pipecd"),
            id="only the database",
        ),
        pytest.param(
            {"url": "tcp(db)/a%2Fb"},
            MysqlAddress("db", 3306, "", "", "", "a/b"),
            id="an escaped database name",
        ),
    ],
)
def test_the_forms_of_the_url(settings: dict[str, Any], expected: MysqlAddress) -> None:
    assert mysql_address(DatastoreConfig(**settings)) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param("db:3307", ("db", 3307), id="host and port, as with upstream"),
        pytest.param("db", ("db", 3306), id="a host"),
        pytest.param("db:3307?tls=true", ("db", 3307), id="with parameters"),
        pytest.param("someone:else@tcp(db:3307)", ("db", 3307), id="a complete url"),
        pytest.param("tcp(db:3307)/old", ("db", 3307), id="with a database"),
    ],
)
def test_user_and_password_are_read_from_files_without_the_final_line_break(
    url: str, expected: tuple[str, int], tmp_path: Path
) -> None:
    (tmp_path / "user").write_text("pipe\n")
    (tmp_path / "password").write_bytes(b" p@s/s:w?rd \r\n")
    address = mysql_address(
        DatastoreConfig(
            url=url,
            database="pipecd",
            username_file=str(tmp_path / "user"),
            password_file=str(tmp_path / "password"),
        )
    )
    assert (address.host, address.port) == expected
    assert (address.user, address.password, address.database) == ("pipe", " p@s/s:w?rd ", "pipecd")
    assert "p@s" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("root:secret@tcp(db:port)/x", id="an invalid port"),
        pytest.param("root:secret@quic(db)/x", id="an unknown network"),
        pytest.param("root:secret@tcp(db/x", id="an unclosed bracket"),
        pytest.param("root:secret@tcp(db)/", id="no database"),
        pytest.param("root:secret@tcp(db)", id="no slash"),
        pytest.param("root:secret@tcp(db)/x?tls=custom", id="an unknown TLS mode"),
        pytest.param("root:secret@tcp(db)/x?timeout=soon", id="an invalid timeout"),
    ],
)
def test_the_error_of_a_malformed_url_does_not_contain_the_password(url: str) -> None:
    with pytest.raises(UserMistake, match="url of the datastore is not understood") as raised:
        mysql_address(DatastoreConfig(url=url))
    assert "secret" not in str(raised.value)


def test_a_missing_credentials_file_is_reported() -> None:
    config = DatastoreConfig(
        url="db", database="x", username_file="/nowhere/user", password_file="/nowhere/password"
    )
    with pytest.raises(UserMistake, match=r"cannot read the file /nowhere/user.*usernameFile"):
        mysql_address(config)


def test_errors_of_the_server_are_translated() -> None:
    full = explain(pymysql.err.OperationalError(1021, "Disk full"))
    assert isinstance(full, Unavailable)
    denied = explain(pymysql.err.OperationalError(1142, "INSERT command denied"))
    assert isinstance(denied, Unavailable)
    slow = explain(pymysql.err.OperationalError(3024, "maximum time"))
    assert isinstance(slow, Unavailable)
    long = explain(pymysql.err.DataError(1406, "Data too long for column 'Name'"))
    assert isinstance(long, UserMistake)
    other = pymysql.err.ProgrammingError(1064, "syntax")
    assert explain(other) is other
    assert isinstance(explain_connect(pymysql.err.OperationalError(1045, "x"), "d"), UserMistake)


@contextmanager
def upstream(spec: DatastoreSpec) -> Iterator[Callable[..., None]]:
    """Runs statements as upstream does, which writes only to its nine tables."""
    address = mysql_address(spec.config)
    with pymysql.connect(
        host=address.host,
        port=address.port,
        user="root",
        database=address.database,
        autocommit=True,
    ) as connection:

        def run(text: str, *values: Any) -> None:
            connection.cursor().execute(text, values)

        yield run


def stored(document: Application) -> str:
    return to_json(document, extra=document.name)


INSERT = "INSERT INTO Application (Id, Data) VALUE (%s, %s)"
UPDATE = "UPDATE Application SET Data = %s WHERE Id = %s"


async def names_with_labels(stores: Stores, **labels: str) -> list[str]:
    page = await stores.applications.list(ApplicationFilter("p", labels=labels))
    return sorted(a.name for a in page.items)


async def test_opening_a_database_of_upstream_indexes_its_labels(
    spec: DatastoreSpec, open_stores: Open, application: Make
) -> None:
    async with open_datastore(spec):
        pass
    documents = [
        application(name=f"app-{i:04}", labels={"n": str(i % 7)}, created_at=1, updated_at=i + 1)
        for i in range(1200)
    ]
    with upstream(spec) as run:
        for table in ("ExtLabel", "ExtMeta", "ExtLease", "ExtLogBlock", "ExtStageLog"):
            run(f"DROP TABLE {table}")
        for document in documents:
            run(INSERT, row_id(document.id), stored(document))
    async with open_stores() as stores:
        assert len(await names_with_labels(stores, n="3")) == len(
            [d for d in documents if d.labels["n"] == "3"]
        )
        listed_ids: list[str] = []
        cursor = ""
        while True:
            page = await stores.applications.list(ApplicationFilter("p"), PageRequest(250, cursor))
            listed_ids += [a.id for a in page.items]
            if not (cursor := page.cursor):
                break
        assert listed_ids == [d.id for d in reversed(documents)]


async def test_a_label_filter_matches_labels_that_upstream_writes(
    spec: DatastoreSpec, open_stores: Open, application: Make, clock: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(mysql_labels, "FRESH_SECONDS", 0)
    ours = application(name="ours", labels={"env": "dev"})
    theirs = application(
        name="theirs", labels={"env": "dev", "team": 'q"\\'}, created_at=1, updated_at=2_000_000_000
    )
    async with open_stores() as stores:
        await stores.applications.add(ours)
        assert await names_with_labels(stores, env="dev") == ["ours"]
        with upstream(spec) as run:
            run(INSERT, row_id(theirs.id), stored(theirs))
            assert await names_with_labels(stores, env="dev") == ["ours", "theirs"]
            assert await names_with_labels(stores, team='q"\\') == ["theirs"]
            theirs.labels["env"] = "prd"
            del theirs.labels["team"]
            theirs.updated_at += 1
            run(UPDATE, stored(theirs), row_id(theirs.id))
            assert await names_with_labels(stores, env="dev") == ["ours"]
            assert await names_with_labels(stores, env="prd") == ["theirs"]
            assert await names_with_labels(stores, team='q"\\') == []
            theirs.ClearField("labels")
            run(UPDATE, stored(theirs), row_id(theirs.id))
            assert await names_with_labels(stores, env="prd") == []


async def test_a_refresh_indexes_only_changes_after_the_watermark(
    spec: DatastoreSpec, open_stores: Open, application: Make, monkeypatch: Any
) -> None:
    monkeypatch.setattr(mysql_labels, "FRESH_SECONDS", 0)
    newest = 2_000_000_000
    async with open_stores() as stores:
        await stores.applications.add(application(updated_at=newest))
        await names_with_labels(stores, env="dev")
    late = application(name="late", labels={"env": "dev"}, created_at=1)
    with upstream(spec) as run:
        late.updated_at = newest - mysql_labels.CLOCK_SKEW_SECONDS - 1
        run(INSERT, row_id(late.id), stored(late))
    async with open_stores() as stores:
        # Older than the accepted clock skew.
        assert await names_with_labels(stores, env="dev") == []
        with upstream(spec) as run:
            late.updated_at = newest - mysql_labels.CLOCK_SKEW_SECONDS
            run(UPDATE, stored(late), row_id(late.id))
        assert await names_with_labels(stores, env="dev") == ["late"]


async def test_a_refresh_indexes_many_changes_in_batches(
    spec: DatastoreSpec, open_stores: Open, application: Make, monkeypatch: Any
) -> None:
    monkeypatch.setattr(mysql_labels, "FRESH_SECONDS", 0)
    async with open_stores() as stores:
        assert await names_with_labels(stores, env="dev") == []
        with upstream(spec) as run:
            for i in range(mysql_labels.BATCH + 20):
                at = 2_000_000_000 + i % 3
                document = application(
                    name=f"{i}", labels={"env": "dev"}, created_at=1, updated_at=at
                )
                run(INSERT, row_id(document.id), stored(document))
        assert len(await names_with_labels(stores, env="dev")) == mysql_labels.BATCH + 20


async def test_tables_of_an_early_upstream_version_are_migrated(
    spec: DatastoreSpec, open_stores: Open, application: Make, event: Callable[..., Any]
) -> None:
    async with open_datastore(spec):
        pass
    with upstream(spec) as run:
        run("CREATE INDEX application_piped_id ON Application (PipedId)")
        run(
            "ALTER TABLE Event MODIFY COLUMN Status INT GENERATED ALWAYS AS "
            "(json_unquote(json_extract(Data, '$.status'))) VIRTUAL"
        )
    async with open_stores() as stores:
        await stores.events.add(event())
    address = mysql_address(spec.config)
    with pymysql.connect(host=address.host, port=address.port, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT Status FROM pipecd.Event")
        assert cursor.fetchall() == ((0,),)
        cursor.execute("SHOW INDEX FROM pipecd.Application")
        assert "application_piped_id'" not in str(cursor.fetchall())


async def test_tables_use_utf8mb4_in_a_latin1_database(mariadb: MariaDb) -> None:
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection:
        connection.cursor().execute("CREATE OR REPLACE DATABASE old CHARACTER SET latin1")
    url = f"root@tcp(127.0.0.1:{mariadb.port})/old"
    spec = DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))
    async with open_datastore(spec):
        pass
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW CREATE TABLE old.Application")
        assert "CHARSET=utf8mb4" in str(cursor.fetchall())
        cursor.execute("DROP DATABASE old")


async def test_rows_have_the_format_that_upstream_reads(
    spec: DatastoreSpec, open_stores: Open, application: Make
) -> None:
    document = application(id=new_id(), labels={"env": "dev"})
    async with open_stores() as stores:
        await stores.applications.add(document)
    address = mysql_address(spec.config)
    with pymysql.connect(host=address.host, port=address.port, user="root") as connection:
        cursor = connection.cursor()
        plain = document.id.replace("-", "")
        swapped = plain[12:16] + plain[8:12] + plain[0:8] + plain[16:]
        cursor.execute("SELECT Data FROM pipecd.Application WHERE Id = UNHEX(%s)", (swapped,))
        ((text,),) = cursor.fetchall()
    assert json.loads(text) == json.loads(stored(document))


@pytest.mark.parametrize(
    "kinds", [pytest.param((1,), id="one kind"), pytest.param((1, 3), id="two kinds")]
)
async def test_a_page_reads_only_its_own_documents(
    spec: DatastoreSpec,
    stores: Stores,
    deployment: Callable[..., Deployment],
    kinds: tuple[int, ...],
) -> None:
    for number in range(50):
        await stores.deployments.add(deployment(kind=number % 2, status=2, updated_at=1 + number))
    filters = (equal("ProjectId", "p"), equal("Status", 2), *any_of("Kind", *kinds))
    selection = Selection("Deployment", filters, NEWEST_UPDATE, limit=5)
    statement = page_statement(selection.shape, "mysql")
    assert statement is not None
    compiled = compile_statement(statement, mysql_dialect(is_mariadb=True))
    address = mysql_address(spec.config)
    with pymysql.connect(
        host=address.host, port=address.port, user="root", database=address.database
    ) as connection:
        cursor = connection.cursor(DictCursor)
        cursor.execute(f"EXPLAIN {compiled.text}", compiled.arguments(selection.values))
        steps: Any = [s for s in cursor.fetchall() if s["table"] == "Deployment"]
    assert [step["key"] for step in steps] == ["PRIMARY", *["ext_deployment_kind"] * len(kinds)]
    for step in steps[1:]:
        assert "Using index" in step["Extra"]
        assert "filesort" not in step["Extra"]


def test_a_connection_lost_while_it_is_opened_is_unavailable(
    spec: DatastoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Cursor.execute

    def execute_after_loss(cursor: Any, query: str, args: Any = None) -> int:
        if "innodb_lock_wait_timeout" in query:
            cursor.connection._sock.shutdown(socket.SHUT_RDWR)
        return execute(cursor, query, args)

    monkeypatch.setattr(Cursor, "execute", execute_after_loss)
    with pytest.raises(StorageUnavailable, match="cannot be reached: MySQL server has gone away"):
        mysql.connect(mysql_address(spec.config))
