# SPDX-License-Identifier: Apache-2.0
"""The tables, described once for every engine.

Nine tables hold upstream's documents under upstream's names; every column but `Id` and `Data` is
computed from the document. Tables with the prefix `Ext` hold facts of our own.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from sqlalchemy import (
    TEXT,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Computed,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)
from sqlalchemy.dialects.mysql import BINARY, MEDIUMTEXT
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import UserDefinedType

SCHEMA_VERSION = 1
# Which engines get an index; all of them when an index does not say.
ENGINES = "engines"

METADATA = MetaData()


class Document(UserDefinedType[str]):
    """JSON that goes in and out as the text it is."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


ROW_ID = LargeBinary(16).with_variant(BINARY(16), "mysql")


class Reads(Enum):
    """What a computed column takes from the document, and what it is when the key is missing."""

    TEXT = "text or null"
    TEXT_OR_EMPTY = "text or empty"
    NUMBER = "number or null"
    NUMBER_OR_ZERO = "number or zero"
    FLAG = "true or false"


class FromDocument(Computed):
    """A column computed from a path of the document, in the words of each engine."""

    def __init__(self, path: str, reads: Reads, *, stored: bool) -> None:
        super().__init__(sqlite_expression(path, reads), persisted=stored)
        self.path = path
        self.reads = reads

    # SQLAlchemy copies the columns of a table by this method; its own version would lose the path.
    def _copy(self, **_: Any) -> "FromDocument":
        return FromDocument(self.path, self.reads, stored=bool(self.persisted))


def sqlite_expression(path: str, reads: Reads) -> str:
    value = f"json_extract(Data, '$.{path}')"
    match reads:
        case Reads.TEXT | Reads.NUMBER:
            return value
        case Reads.TEXT_OR_EMPTY:
            return f"ifnull({value}, '')"
        case Reads.NUMBER_OR_ZERO | Reads.FLAG:
            return f"ifnull({value}, 0)"


def mysql_expression(path: str, reads: Reads) -> str:
    value = f'data->>"$.{path}"'
    match reads:
        case Reads.TEXT | Reads.NUMBER:
            return value
        case Reads.TEXT_OR_EMPTY:
            return f'IFNULL({value}, "")'
        case Reads.NUMBER_OR_ZERO:
            return f"IFNULL({value}, 0)"
        case Reads.FLAG:
            return f"IF({value} = 'true', True, False)"


def postgresql_expression(path: str, reads: Reads) -> str:
    value = f"\"Data\"#>>'{{{path.replace('.', ',')}}}'"
    match reads:
        case Reads.TEXT:
            return value
        case Reads.TEXT_OR_EMPTY:
            return f"coalesce({value}, '')"
        case Reads.NUMBER:
            return f"({value})::bigint"
        case Reads.NUMBER_OR_ZERO:
            return f"coalesce(({value})::bigint, 0)"
        case Reads.FLAG:
            return f"coalesce(({value})::boolean, false)"


@compiles(FromDocument, "mysql")
def _computed_by_mysql(element: FromDocument, *_: Any, **__: Any) -> str:
    kept = "STORED" if element.persisted else "VIRTUAL"
    return f"GENERATED ALWAYS AS ({mysql_expression(element.path, element.reads)}) {kept}"


# Virtual columns would be computed anew for every index at every write.
@compiles(FromDocument, "sqlite")
def _computed_by_sqlite(element: FromDocument, *_: Any, **__: Any) -> str:
    return f"GENERATED ALWAYS AS ({sqlite_expression(element.path, element.reads)}) STORED"


# PostgreSQL before 18 knows stored columns only.
@compiles(FromDocument, "postgresql")
def _computed_by_postgresql(element: FromDocument, *_: Any, **__: Any) -> str:
    return f"GENERATED ALWAYS AS ({postgresql_expression(element.path, element.reads)}) STORED"


class FlagInDocument(ColumnElement[bool]):
    """A flag of the document for which upstream has no column."""

    inherit_cache = False
    type = Boolean()

    def __init__(self, path: str) -> None:
        self.path = path


@compiles(FlagInDocument, "sqlite")
def _flag_by_sqlite(element: FlagInDocument, *_: Any, **__: Any) -> str:
    return sqlite_expression(element.path, Reads.FLAG)


@compiles(FlagInDocument, "mysql")
def _flag_by_mysql(element: FlagInDocument, *_: Any, **__: Any) -> str:
    return mysql_expression(element.path, Reads.FLAG)


@compiles(FlagInDocument, "postgresql")
def _flag_by_postgresql(element: FlagInDocument, *_: Any, **__: Any) -> str:
    return postgresql_expression(element.path, Reads.FLAG)


def _text(name: str, length: int, path: str, reads: Reads = Reads.TEXT) -> Column[str]:
    return Column(name, String(length), FromDocument(path, reads, stored=False))


def _number(name: str, path: str, reads: Reads = Reads.NUMBER_OR_ZERO) -> Column[int]:
    return Column(name, Integer, FromDocument(path, reads, stored=False))


def _disabled() -> Column[bool]:
    computed = FromDocument("disabled", Reads.FLAG, stored=True)
    return Column("Disabled", Boolean, computed, nullable=False)


def _stored_number(name: str, path: str) -> Column[int]:
    return Column(name, Integer, FromDocument(path, Reads.NUMBER, stored=True), nullable=False)


def _project_id() -> Column[str]:
    computed = FromDocument("project_id", Reads.TEXT, stored=True)
    return Column("ProjectId", String(50), computed, nullable=False)


def _documents(name: str, *columns: Column[Any]) -> Table:
    return Table(
        name,
        METADATA,
        Column("Id", ROW_ID, primary_key=True),
        Column("Extra", String(100), FromDocument("_extra", Reads.TEXT, stored=True)),
        _stored_number("CreatedAt", "created_at"),
        _stored_number("UpdatedAt", "updated_at"),
        *columns,
        # A long document comes last, so that the columns before it are read without it.
        Column("Data", Document(), nullable=False),
    )


PROJECT = _documents("Project")
APPLICATION = _documents(
    "Application",
    _project_id(),
    _disabled(),
    _text("Name", 50, "name"),
    _number("Kind", "kind"),
    _number("SyncState_Status", "sync_state.status"),
    _text("PipedId", 36, "piped_id"),
)
COMMAND = _documents(
    "Command", _project_id(), _number("Status", "status"), _text("PipedId", 36, "piped_id")
)
DEPLOYMENT = _documents(
    "Deployment",
    _project_id(),
    _text("ApplicationId", 36, "application_id"),
    _text("ApplicationName", 36, "application_name"),
    _number("Kind", "kind"),
    _number("Status", "status"),
    _text("PipedId", 36, "piped_id"),
    _number("CompletedAt", "completed_at", Reads.NUMBER),
    _text("DeploymentChainId", 36, "deployment_chain_id", Reads.TEXT_OR_EMPTY),
    _text("DeploymentTraceCommitHash", 40, "deployment_trace_commit_hash", Reads.TEXT_OR_EMPTY),
)
PIPED = _documents("Piped", _project_id(), _disabled())
API_KEY = _documents("APIKey", _project_id(), _disabled())
EVENT = _documents(
    "Event",
    _project_id(),
    _text("EventKey", 64, "event_key"),
    _text("Name", 50, "name"),
    _number("Status", "status"),
)
DEPLOYMENT_CHAIN = _documents("DeploymentChain", _project_id(), _number("Status", "status"))
DEPLOYMENT_TRACE = _documents(
    "DeploymentTrace",
    _project_id(),
    _text("CommitHash", 40, "commit_hash", Reads.TEXT_OR_EMPTY),
)


def _index(table: Table, name: str, *columns: str) -> Index:
    """An index by upstream's name; a column with a leading minus is descending."""
    return Index(name, *(table.c[c[1:]].desc() if c[0] == "-" else table.c[c] for c in columns))


for _name, _column in (
    ("application_disabled", "Disabled"),
    ("application_name", "Name"),
    ("application_kind", "Kind"),
    ("application_sync_state", "SyncState_Status"),
    ("application_project_id", "ProjectId"),
    ("application_piped_id", "PipedId"),
):
    _index(APPLICATION, f"{_name}_updated_at_desc", _column, "-UpdatedAt")
for _name, _column in (
    ("deployment_application_id", "ApplicationId"),
    ("deployment_application_name", "ApplicationName"),
    ("deployment_project_id", "ProjectId"),
    ("deployment_kind", "Kind"),
    ("deployment_status", "Status"),
    ("deployment_chain_id", "DeploymentChainId"),
    ("deployment_trace_commit_hash", "DeploymentTraceCommitHash"),
):
    _index(DEPLOYMENT, f"{_name}_updated_at_desc", _column, "-UpdatedAt")
_index(DEPLOYMENT, "deployment_piped_id", "PipedId")
_index(DEPLOYMENT, "deployment_completed_at_desc_id", "-CompletedAt", "Id")
_index(DEPLOYMENT, "deployment_completed_at_id_asc", "CompletedAt", "Id")
# Upstream creates this index on the wrong table; a shared MySQL database must not get it twice.
_index(DEPLOYMENT, "deploymentchain_status_updated_at_desc", "Status", "-UpdatedAt").info[
    ENGINES
] = ("mysql",)
# What pipeds and the console ask all the time; upstream's own database is left as upstream made it.
# The list of deployments is walked in order, and what it is filtered by is read from the index.
for _own in (
    _index(
        DEPLOYMENT,
        "ext_deployment_list",
        *("ProjectId", "-UpdatedAt", "Id", "Status", "Kind", "ApplicationName"),
    ),
    _index(DEPLOYMENT, "ext_deployment_piped_id_status", "PipedId", "Status", "CreatedAt"),
    _index(COMMAND, "ext_command_piped_id_status", "PipedId", "Status", "CreatedAt"),
):
    _own.info[ENGINES] = ("sqlite", "postgresql")
_index(COMMAND, "command_status_created_at_asc", "Status", "CreatedAt")
_index(COMMAND, "command_piped_id", "PipedId")
_index(PIPED, "piped_project_id_asc", "ProjectId")
for _name, _columns in (
    ("project_id_created_at_asc", ("ProjectId", "CreatedAt")),
    ("project_id_created_at_desc", ("ProjectId", "-CreatedAt")),
    ("project_id_updated_at_desc", ("ProjectId", "-UpdatedAt")),
    ("event_key_name_project_id_created_at_desc", ("EventKey", "Name", "ProjectId", "-CreatedAt")),
    ("project_id_status_created_at_desc", ("ProjectId", "Status", "-CreatedAt")),
    ("project_id_status_updated_at_desc", ("ProjectId", "Status", "-UpdatedAt")),
    ("name_project_id_updated_at_desc", ("Name", "ProjectId", "-UpdatedAt")),
    ("name_project_id_status_updated_at_desc", ("Name", "ProjectId", "Status", "-UpdatedAt")),
):
    _index(EVENT, f"event_{_name}", *_columns)
_index(DEPLOYMENT_CHAIN, "deploymentchain_project_id_updated_at_desc", "ProjectId", "-UpdatedAt")
_index(DEPLOYMENT_TRACE, "deploymenttrace_project_id_updated_at_desc", "ProjectId", "-UpdatedAt")
_index(DEPLOYMENT_TRACE, "deploymenttrace_commit_hash_updated_at_desc", "CommitHash", "-UpdatedAt")

EXT_META = Table(
    "ExtMeta",
    METADATA,
    Column("Name", String(64), primary_key=True),
    Column("Value", String(255), nullable=False),
)
EXT_LEASE = Table(
    "ExtLease",
    METADATA,
    Column("Name", String(400), primary_key=True),
    Column("Holder", String(255), nullable=False),
    Column("ExpiresAtMillis", BigInteger, nullable=False),
)
EXT_LABEL = Table(
    "ExtLabel",
    METADATA,
    Column("Kind", String(32), primary_key=True),
    Column("DocumentId", ROW_ID, primary_key=True),
    Column("LabelKey", String(255), primary_key=True),
    Column("LabelValue", String(255), nullable=False),
    Index("ext_label_pair", "Kind", "LabelKey", "LabelValue", "DocumentId"),
)
# One row per stage run: whether its log is closed, and how far the file in the filestore reaches.
EXT_STAGE_LOG = Table(
    "ExtStageLog",
    METADATA,
    Column("DeploymentId", String(64), primary_key=True),
    Column("StageId", String(255), primary_key=True),
    Column("RetriedCount", Integer, primary_key=True, autoincrement=False),
    Column("Completed", Boolean, nullable=False),
    Column("LastIndexInFile", BigInteger, nullable=False),
)
EXT_LOG_BLOCK = Table(
    "ExtLogBlock",
    METADATA,
    Column("DeploymentId", String(64), primary_key=True),
    Column("StageId", String(255), primary_key=True),
    Column("RetriedCount", Integer, primary_key=True, autoincrement=False),
    Column("BlockIndex", BigInteger, primary_key=True, autoincrement=False),
    Column("Data", TEXT().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
)


def definitions(dialect: Dialect) -> Iterator[str]:
    """The statements that create every missing table and index of an engine."""
    for table in METADATA.sorted_tables:
        yield str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        for index in sorted(table.indexes, key=lambda i: str(i.name)):
            if dialect.name in index.info.get(ENGINES, (dialect.name,)):
                # MySQL cannot skip an index that exists; its ensurer ignores the refusal.
                create = CreateIndex(index, if_not_exists=dialect.name != "mysql")
                yield str(create.compile(dialect=dialect))
