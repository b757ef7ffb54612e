# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: forms of the url, encodings, SQLSTATEs and statements."""

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.datastore.database import (
    Collision,
    ConnectionLost,
    Duplicate,
    compile_statement,
)
from pipecd.controlplane.datastore.engines.postgres import (
    DIALECT,
    display_name,
    explain,
    list_statement,
    postgres_conninfo,
)
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.query import NEWEST_UPDATE, Selection, any_of, equal
from pipecd.model.errors import StorageUnavailable, UserMistake
from servers.databases import Postgres


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(
            {"url": "postgres://u:p%40w@db:5433/pipecd?sslmode=require"},
            {"user": "u", "password": "p@w", "host": "db", "port": "5433", "dbname": "pipecd"}
            | {"sslmode": "require"},
            id="a url",
        ),
        pytest.param(
            {"url": "postgresql://db/old", "database": "new"},
            {"host": "db", "dbname": "new"},
            id="a database that replaces that of the url",
        ),
        pytest.param(
            {"url": "db:5433", "database": "pipecd"},
            {"host": "db", "port": "5433", "dbname": "pipecd"},
            id="host and port",
        ),
        pytest.param(
            {"url": "db", "database": "pipecd"}, {"host": "db", "dbname": "pipecd"}, id="a host"
        ),
        pytest.param(
            {"url": "db?sslmode=disable", "database": "pipecd"},
            {"host": "db", "sslmode": "disable"},
            id="a host with parameters",
        ),
        pytest.param(
            {"url": "host=/run/postgresql user=u", "database": "pipecd"},
            {"host": "/run/postgresql", "user": "u", "dbname": "pipecd"},
            id="key=value pairs",
        ),
        pytest.param(
            {"url": "postgres://a,b/pipecd?target_session_attrs=read-write&connect_timeout=2"},
            {"host": "a,b", "target_session_attrs": "read-write", "connect_timeout": "2"},
            id="several hosts",
        ),
    ],
)
def test_the_forms_of_the_url(settings: dict[str, Any], expected: dict[str, str]) -> None:
    parsed = conninfo_to_dict(postgres_conninfo(DatastoreConfig(**settings)))
    assert {key: str(parsed[key]) for key in expected} == expected
    assert parsed["client_encoding"] == "UTF8"
    assert parsed["tcp_user_timeout"] == "30000"


def test_user_and_password_are_read_from_files_without_the_final_line_break(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("pipe\n")
    (tmp_path / "password").write_text(" it's a secret\n")
    conninfo = postgres_conninfo(
        DatastoreConfig(
            url="postgres://other:other@db/pipecd",
            username_file=str(tmp_path / "user"),
            password_file=str(tmp_path / "password"),
        )
    )
    parsed = conninfo_to_dict(conninfo)
    assert (parsed["user"], parsed["password"]) == ("pipe", " it's a secret")
    assert display_name(conninfo) == "pipecd on db:5432"


@pytest.mark.parametrize(
    "url", ["postgres://u:secret@[db/x", "postgres://u:secret@db/x?no=such", "host=x secret"]
)
def test_the_error_of_a_malformed_url_does_not_contain_the_password(url: str) -> None:
    with pytest.raises(UserMistake, match="url of the datastore is not understood") as raised:
        postgres_conninfo(DatastoreConfig(url=url, database="x"))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(errors.UniqueViolation, Duplicate, id="a duplicate key"),
        pytest.param(errors.SerializationFailure, Collision, id="a serialization failure"),
        pytest.param(errors.DeadlockDetected, Collision, id="a deadlock"),
        pytest.param(errors.LockNotAvailable, Collision, id="a lock timeout"),
        pytest.param(errors.AdminShutdown, ConnectionLost, id="a server that is stopping"),
        pytest.param(errors.CannotConnectNow, ConnectionLost, id="a server that is starting"),
        pytest.param(
            errors.ReadOnlySqlTransaction, ConnectionLost, id="a server that became a replica"
        ),
        pytest.param(psycopg.OperationalError, ConnectionLost, id="a broken connection"),
        pytest.param(errors.QueryCanceled, StorageUnavailable, id="a statement timeout"),
        pytest.param(errors.DiskFull, StorageUnavailable, id="a full disk"),
        pytest.param(errors.InsufficientPrivilege, StorageUnavailable, id="a missing privilege"),
        pytest.param(errors.StringDataRightTruncation, UserMistake, id="a text that is too long"),
        pytest.param(errors.NotNullViolation, UserMistake, id="a null value"),
        pytest.param(errors.SyntaxError, errors.SyntaxError, id="a syntax error"),
    ],
)
def test_errors_of_the_server_are_translated(
    error: type[psycopg.Error], expected: type[Exception]
) -> None:
    assert type(explain(error("words"))) is expected


async def test_a_database_with_another_encoding_than_utf8_is_refused(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        spec = DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=postgres.url("latin")))
        with pytest.raises(UserMistake, match=r"latin on .* has the encoding LATIN1"):
            async with open_datastore(spec):
                pass
        connection.execute("DROP DATABASE latin")


@pytest.mark.parametrize(
    ("statuses", "is_spelled_out"),
    [
        pytest.param((2, 3), True, id="several values of both columns"),
        pytest.param((2,), False, id="several values of one column"),
    ],
)
def test_statuses_become_or_conditions_if_there_are_several_kinds(
    statuses: tuple[int, ...], is_spelled_out: bool
) -> None:
    conditions = (
        equal("ProjectId", "p"),
        *any_of("Kind", 0, 1),
        *any_of("Status", *statuses),
    )
    selection = Selection("Deployment", conditions, NEWEST_UPDATE, limit=9)
    text = compile_statement(list_statement(selection.shape), DIALECT).text
    assert '"Kind" IN (' in text
    assert (' OR "Deployment"."Status" = ' in text) is is_spelled_out
