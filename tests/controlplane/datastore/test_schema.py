# SPDX-License-Identifier: Apache-2.0
"""Tables, columns and indexes have upstream's names and the syntax of each engine."""

from pathlib import Path

import pytest
from sqlalchemy import Dialect

from pipecd.controlplane.datastore.engines.mysql_sql import mysql_dialect
from pipecd.controlplane.datastore.engines.postgres import DIALECT as POSTGRES
from pipecd.controlplane.datastore.engines.sqlite import DIALECT as SQLITE
from pipecd.controlplane.datastore.query import row_id
from pipecd.controlplane.datastore.schema import APPLICATION, METADATA, create_table, definitions

COMMON = {"Id", "Data", "Extra", "CreatedAt", "UpdatedAt"}

COLUMNS = {
    "Project": set[str](),
    "Application": {"ProjectId", "Disabled", "Name", "Kind", "SyncState_Status", "PipedId"},
    "Command": {"ProjectId", "Status", "PipedId"},
    "Deployment": {
        "ProjectId",
        "ApplicationId",
        "ApplicationName",
        "Kind",
        "Status",
        "PipedId",
        "CompletedAt",
        "DeploymentChainId",
        "DeploymentTraceCommitHash",
    },
    "Piped": {"ProjectId", "Disabled"},
    "APIKey": {"ProjectId", "Disabled"},
    "Event": {"ProjectId", "EventKey", "Name", "Status"},
    "DeploymentChain": {"ProjectId", "Status"},
    "DeploymentTrace": {"ProjectId", "CommitHash"},
}

INDEXES = {
    "Application": {
        "application_disabled_updated_at_desc",
        "application_name_updated_at_desc",
        "application_kind_updated_at_desc",
        "application_sync_state_updated_at_desc",
        "application_project_id_updated_at_desc",
        "application_piped_id_updated_at_desc",
    },
    "Command": {"command_status_created_at_asc", "command_piped_id"},
    "Deployment": {
        "deployment_application_id_updated_at_desc",
        "deployment_application_name_updated_at_desc",
        "deployment_project_id_updated_at_desc",
        "deployment_kind_updated_at_desc",
        "deployment_status_updated_at_desc",
        "deployment_piped_id",
        "deployment_completed_at_desc_id",
        "deployment_completed_at_id_asc",
        "deployment_chain_id_updated_at_desc",
        "deployment_trace_commit_hash_updated_at_desc",
        "deploymentchain_status_updated_at_desc",
    },
    "Event": {
        "event_project_id_created_at_asc",
        "event_project_id_created_at_desc",
        "event_project_id_updated_at_desc",
        "event_event_key_name_project_id_created_at_desc",
        "event_project_id_status_created_at_desc",
        "event_project_id_status_updated_at_desc",
        "event_name_project_id_updated_at_desc",
        "event_name_project_id_status_updated_at_desc",
    },
    "Piped": {"piped_project_id_asc"},
    "DeploymentChain": {"deploymentchain_project_id_updated_at_desc"},
    "DeploymentTrace": {
        "deploymenttrace_project_id_updated_at_desc",
        "deploymenttrace_commit_hash_updated_at_desc",
    },
}


def test_the_nine_tables_have_the_columns_of_upstream() -> None:
    columns = {
        name: set(table.c.keys()) - COMMON
        for name, table in METADATA.tables.items()
        if not name.startswith("Ext")
    }
    assert columns == COLUMNS
    assert all(set(METADATA.tables[name].c.keys()) >= COMMON for name in COLUMNS)


def test_the_indexes_have_the_names_of_upstream() -> None:
    for name in COLUMNS:
        indexes = {str(index.name) for index in METADATA.tables[name].indexes}
        indexes = {index for index in indexes if not index.startswith("ext_")}
        assert indexes == INDEXES.get(name, set())


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        pytest.param(
            SQLITE,
            [
                '"SyncState_Status" INTEGER NOT NULL GENERATED ALWAYS AS (ifnull(json_extract(Data, '
                "'$.sync_state.status'), 0)) STORED",
                "\"Extra\" VARCHAR(100) GENERATED ALWAYS AS (json_extract(Data, '$._extra')) STORED",
            ],
            id="SQLite",
        ),
        pytest.param(
            mysql_dialect(),
            [
                "`Id` BINARY(16) NOT NULL",
                '`ProjectId` VARCHAR(50) GENERATED ALWAYS AS (data->>"$.project_id") STORED NOT NULL',
                "`Disabled` BOOL GENERATED ALWAYS AS "
                "(IF(data->>\"$.disabled\" = 'true', True, False)) STORED NOT NULL",
                '`Kind` INTEGER GENERATED ALWAYS AS (IFNULL(data->>"$.kind", 0)) VIRTUAL NOT NULL',
                '`CompletedAt` INTEGER GENERATED ALWAYS AS (data->>"$.completed_at") VIRTUAL,',
                "`LabelKey` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL",
                "CREATE INDEX deploymentchain_status_updated_at_desc ON `Deployment` "
                "(`Status`, `UpdatedAt` DESC)",
            ],
            id="MySQL",
        ),
        pytest.param(
            mysql_dialect(is_mariadb=True),
            [
                "`ProjectId` VARCHAR(50) GENERATED ALWAYS AS "
                "(json_unquote(json_extract(Data, '$.project_id'))) STORED,",
                "(IF(json_unquote(json_extract(Data, '$.disabled')) = 'true', True, False)) STORED,",
                "`LabelKey` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL",
            ],
            id="MariaDB",
        ),
        pytest.param(
            POSTGRES,
            [
                '"Id" BYTEA NOT NULL',
                '"LabelKey" VARCHAR(255) COLLATE "C" NOT NULL',
                '"SyncState_Status" INTEGER GENERATED ALWAYS AS '
                "(coalesce((\"Data\"#>>'{sync_state,status}')::bigint, 0)) STORED",
            ],
            id="PostgreSQL",
        ),
    ],
)
def test_the_definition_of_a_table_by_engine(dialect: Dialect, expected: list[str]) -> None:
    text = "\n".join(definitions(dialect))
    assert [w for w in expected if w not in text] == []


def test_the_columns_of_mysql_are_in_the_order_of_upstream() -> None:
    create = create_table(APPLICATION, mysql_dialect())
    names = [line.split("`")[1] for line in create.splitlines() if line.startswith("\t`")]
    assert names[:7] == ["Id", "Data", "ProjectId", "Disabled", "Extra", "CreatedAt", "UpdatedAt"]
    assert set(names[7:]) == {"Name", "Kind", "SyncState_Status", "PipedId"}


def test_the_indexes_of_upstream_are_on_mysql_and_better_ones_elsewhere() -> None:
    on_mysql, on_sqlite = ("\n".join(definitions(dialect)) for dialect in (mysql_dialect(), SQLITE))
    assert "deploymentchain_status_updated_at_desc" in on_mysql
    assert "ext_deployment_list" not in on_mysql
    assert "deploymentchain_status_updated_at_desc" not in on_sqlite
    assert "ext_deployment_list" in on_sqlite
    for index in ("application", "kind", "status", "piped"):
        assert f"CREATE INDEX ext_deployment_{index}" in on_mysql
        assert f"ext_deployment_{index}" in on_sqlite


def test_row_ids_equal_uuid_to_bin_of_mysql(spec_dir: Path) -> None:
    assert row_id("f47ac10b-58cc-4372-a567-0e02b2c3d479").hex() == (
        "437258ccf47ac10ba5670e02b2c3d479"
    )
    assert row_id("quickstart").hex() == "5f6efb2770a89aa48cf53daa37fab034"
