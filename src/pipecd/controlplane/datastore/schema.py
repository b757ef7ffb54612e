# SPDX-License-Identifier: Apache-2.0
"""The tables of the database, defined once for all engines.

Nine tables hold upstream's documents under upstream's names; every column but `Id` and `Data` is
computed from the document. Tables with the prefix `Ext` are our own.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    TEXT,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
)
from sqlalchemy.dialects.mysql import BINARY, MEDIUMBLOB, MEDIUMTEXT
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from pipecd.controlplane.datastore.expressions import (
    Document,
    ExactText,
    FieldType,
    FromDocument,
    Row,
    UpstreamText,
)

SCHEMA_VERSION = 1
VERSION_ROW = "schema_version"
# The key of the engines in `Index.info`; an index without it is created on every engine.
ENGINES = "engines"
# Indexes of earlier releases that others have replaced. On MySQL the first one is upstream's.
OBSOLETE_INDEXES = ("deployment_application_id_updated_at_desc", "ext_deployment_piped_id_status")
# Tables of our own that others have replaced; what they had is derived from others again.
OBSOLETE_TABLES = ("ExtHistorySegment",)

METADATA = MetaData()


# The defaults of current MySQL servers; older ones have others.
ON_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}

ROW_ID = LargeBinary(16).with_variant(BINARY(16), "mysql")
BYTES = LargeBinary().with_variant(MEDIUMBLOB(), "mysql")


def _text(name: str, length: int, path: str, field_type: FieldType = FieldType.TEXT) -> Column[str]:
    computed = FromDocument(path, field_type, stored=False)
    return Column(name, UpstreamText(length), computed, nullable=False)


def _number(name: str, path: str, field_type: FieldType = FieldType.NUMBER_OR_ZERO) -> Column[int]:
    computed = FromDocument(path, field_type, stored=False)
    return Column(name, Integer, computed, nullable=field_type is FieldType.NUMBER)


def _disabled() -> Column[bool]:
    computed = FromDocument("disabled", FieldType.BOOLEAN, stored=True)
    return Column("Disabled", Boolean, computed, nullable=False)


def _stored_number(name: str, path: str) -> Column[int]:
    return Column(name, Integer, FromDocument(path, FieldType.NUMBER, stored=True), nullable=False)


def _project_id() -> Column[str]:
    computed = FromDocument("project_id", FieldType.TEXT, stored=True)
    return Column("ProjectId", UpstreamText(50), computed, nullable=False)


def _documents(name: str, *columns: Column[Any]) -> Table:
    return Table(
        name,
        METADATA,
        Column("Id", ROW_ID, primary_key=True),
        Column("Extra", UpstreamText(100), FromDocument("_extra", FieldType.TEXT, stored=True)),
        _stored_number("CreatedAt", "created_at"),
        _stored_number("UpdatedAt", "updated_at"),
        *columns,
        # The document comes last, so that the other columns are read without it.
        Column("Data", Document(), nullable=False),
        **ON_MYSQL,
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
    _number("CompletedAt", "completed_at", FieldType.NUMBER),
    _text("DeploymentChainId", 36, "deployment_chain_id", FieldType.TEXT_OR_EMPTY),
    _text("DeploymentTraceCommitHash", 40, "deployment_trace_commit_hash", FieldType.TEXT_OR_EMPTY),
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
    _text("CommitHash", 40, "commit_hash", FieldType.TEXT_OR_EMPTY),
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
    ("deployment_chain_id", "DeploymentChainId"),
    ("deployment_trace_commit_hash", "DeploymentTraceCommitHash"),
):
    _index(DEPLOYMENT, f"{_name}_updated_at_desc", _column, "-UpdatedAt")
_index(DEPLOYMENT, "deployment_completed_at_id_asc", "CompletedAt", "Id")
# On MySQL the indexes of upstream exist as well, with one that upstream creates on the wrong table.
# The other engines have better ones below; each index makes every write slower.
for _upstream in (
    *(
        _index(DEPLOYMENT, f"deployment_{_name}_updated_at_desc", _column, "-UpdatedAt")
        for _name, _column in (
            ("application_id", "ApplicationId"),
            ("application_name", "ApplicationName"),
            ("project_id", "ProjectId"),
            ("kind", "Kind"),
            ("status", "Status"),
        )
    ),
    _index(DEPLOYMENT, "deployment_piped_id", "PipedId"),
    _index(DEPLOYMENT, "deployment_completed_at_desc_id", "-CompletedAt", "Id"),
    _index(DEPLOYMENT, "deploymentchain_status_updated_at_desc", "Status", "-UpdatedAt"),
    _index(COMMAND, "command_piped_id", "PipedId"),
):
    _upstream.info[ENGINES] = ("mysql",)
# A page of deployments is read from ranges of these indexes, see `ranges`. The columns after the
# time of the update are filtered without reading the document.
_index(
    DEPLOYMENT,
    "ext_deployment_application",
    *("ApplicationId", "-UpdatedAt", "Id", "ProjectId", "Status", "Kind"),
)
_index(DEPLOYMENT, "ext_deployment_kind", "ProjectId", "Kind", "Status", "-UpdatedAt", "Id")
_index(DEPLOYMENT, "ext_deployment_status", "ProjectId", "Status", "-UpdatedAt")
_index(
    DEPLOYMENT,
    "ext_deployment_piped",
    *("PipedId", "Status", "-UpdatedAt", "Id", "ProjectId", "Kind"),
)
for _own in (
    _index(
        DEPLOYMENT,
        "ext_deployment_list",
        *("ProjectId", "-UpdatedAt", "Id", "Status", "Kind", "ApplicationName"),
    ),
    _index(DEPLOYMENT, "ext_deployment_name", "ProjectId", "ApplicationName", "-UpdatedAt"),
    _index(COMMAND, "ext_command_piped_id_status", "PipedId", "Status", "CreatedAt"),
):
    _own.info[ENGINES] = ("sqlite", "postgresql")
_index(COMMAND, "command_status_created_at_asc", "Status", "CreatedAt")
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
    Column("Name", ExactText(128), primary_key=True),
    Column("Value", ExactText(255), nullable=False),
    **ON_MYSQL,
)
EXT_LEASE = Table(
    "ExtLease",
    METADATA,
    Column("Name", ExactText(400), primary_key=True),
    Column("Holder", ExactText(255), nullable=False),
    Column("ExpiresAtMillis", BigInteger, nullable=False),
    **ON_MYSQL,
)
EXT_LABEL = Table(
    "ExtLabel",
    METADATA,
    Column("Kind", ExactText(32), primary_key=True),
    Column("DocumentId", ROW_ID, primary_key=True),
    Column("LabelKey", ExactText(255), primary_key=True),
    Column("LabelValue", ExactText(255), nullable=False),
    Index("ext_label_pair", "Kind", "LabelKey", "LabelValue", "DocumentId"),
    **ON_MYSQL,
)
# The applications that have deployments with a label; rows are never removed. Lists of deployments
# by label start with it, since the label index has a row for each deployment.
EXT_LABELLED_APPLICATION = Table(
    "ExtLabelledApplication",
    METADATA,
    Column("ProjectId", ExactText(50), primary_key=True),
    Column("LabelKey", ExactText(255), primary_key=True),
    Column("LabelValue", ExactText(255), primary_key=True),
    Column("ApplicationId", ExactText(36), primary_key=True),
    **ON_MYSQL,
)
# The history of deployments, packed for searches by text and label, see `segments`.
EXT_DEPLOYMENT_SEGMENT = Table(
    "ExtDeploymentSegment",
    METADATA,
    Column("ProjectId", ExactText(50), primary_key=True),
    Column("Segment", Integer, primary_key=True, autoincrement=False),
    Column("FirstUpdatedAt", BigInteger, nullable=False),
    Column("LastUpdatedAt", BigInteger, nullable=False),
    # To read a column, SQLite follows the pages of those before it: the large ones are last.
    Column("Grams", BYTES, nullable=False),
    Column("Wordings", BYTES, nullable=False),
    Column("Entries", BYTES, nullable=False),
    Column("Ids", BYTES, nullable=False),
    Column("Texts", BYTES, nullable=False),
    Column("Keys", BYTES, nullable=False),
    **ON_MYSQL,
)
# One row per stage run: whether its log is closed, and how far the file in the filestore reaches.
EXT_STAGE_LOG = Table(
    "ExtStageLog",
    METADATA,
    Column("DeploymentId", ExactText(64), primary_key=True),
    Column("StageId", ExactText(255), primary_key=True),
    Column("RetriedCount", Integer, primary_key=True, autoincrement=False),
    Column("Completed", Boolean, nullable=False),
    Column("LastIndexInFile", BigInteger, nullable=False),
    **ON_MYSQL,
)
EXT_LOG_BLOCK = Table(
    "ExtLogBlock",
    METADATA,
    Column("DeploymentId", ExactText(64), primary_key=True),
    Column("StageId", ExactText(255), primary_key=True),
    Column("RetriedCount", Integer, primary_key=True, autoincrement=False),
    Column("BlockIndex", BigInteger, primary_key=True, autoincrement=False),
    Column("Data", TEXT().with_variant(MEDIUMTEXT(charset="utf8mb4"), "mysql"), nullable=False),
    **ON_MYSQL,
)
# The last sequence number of each scope: `deployments/<application>` or `events/<project>`.
EXT_SEQUENCE = Table(
    "ExtSequence",
    METADATA,
    Column("Scope", ExactText(255), primary_key=True),
    Column("LastSequence", BigInteger, nullable=False),
    Column("LastDocumentId", ExactText(64), nullable=False),
    **ON_MYSQL,
)
EXT_DOCUMENT_SEQUENCE = Table(
    "ExtDocumentSequence",
    METADATA,
    Column("Kind", ExactText(32), primary_key=True),
    Column("DocumentId", ExactText(64), primary_key=True),
    Column("Scope", ExactText(255), nullable=False),
    Column("DocumentSequence", BigInteger, nullable=False),
    Index("ext_document_sequence", "Scope", "DocumentSequence"),
    **ON_MYSQL,
)
# Webhook secrets, encrypted with the key file of the control plane like other project secrets.
EXT_WEBHOOK = Table(
    "ExtWebhook",
    METADATA,
    Column("ProjectId", ExactText(128), primary_key=True),
    Column("Secret", ExactText(255), nullable=False),
    Column("CreatedAt", BigInteger, nullable=False),
    Column("PreviousSecret", ExactText(255), nullable=False),
    Column("PreviousUntil", BigInteger, nullable=False),
    **ON_MYSQL,
)
# Which process runs as a piped, and which one waits for its turn.
EXT_PIPED_LEASE = Table(
    "ExtPipedLease",
    METADATA,
    Column("PipedId", ExactText(64), primary_key=True),
    Column("Epoch", BigInteger, nullable=False),
    Column("Instance", ExactText(64), nullable=False),
    Column("Host", ExactText(255), nullable=False),
    Column("AcquiredAt", BigInteger, nullable=False),
    Column("Draining", Boolean, nullable=False),
    Column("Stream", ExactText(64), nullable=False),
    Column("Candidate", ExactText(64), nullable=False),
    Column("CandidateHost", ExactText(255), nullable=False),
    Column("RequestedAt", BigInteger, nullable=False),
    Column("IsRequested", Boolean, nullable=False),
    Column("Requests", BigInteger, nullable=False),
    Column("Forwarded", BigInteger, nullable=False),
    Column("Answered", BigInteger, nullable=False, server_default="0"),
    Column("TakenOverAt", BigInteger, nullable=False),
    Column("TakenOverFrom", ExactText(255), nullable=False),
    **ON_MYSQL,
)
# The plugins and deploy targets that a piped runs without, as it reported them last.
EXT_PLUGIN_FAILURE = Table(
    "ExtPluginFailure",
    METADATA,
    Column("PipedId", ExactText(64), primary_key=True),
    Column("Position", Integer, primary_key=True, autoincrement=False),
    Column("Plugin", ExactText(255), nullable=False),
    Column("Target", ExactText(255), nullable=False),
    Column("Reason", TEXT().with_variant(MEDIUMTEXT(charset="utf8mb4"), "mysql"), nullable=False),
    Column("Since", BigInteger, nullable=False),
    **ON_MYSQL,
)
# The health of each application by its last live state, for lists.
EXT_APPLICATION_HEALTH = Table(
    "ExtApplicationHealth",
    METADATA,
    Column("ApplicationId", ExactText(64), primary_key=True),
    Column("ProjectId", ExactText(128), nullable=False),
    Column("Health", ExactText(16), nullable=False),
    Index("ext_application_health_project", "ProjectId"),
    **ON_MYSQL,
)
# Which sessions have ended before they expire: one, or those issued until a time that match.
EXT_SESSION_ENDING = Table(
    "ExtSessionEnding",
    METADATA,
    Column("ProjectId", ExactText(128), primary_key=True),
    Column("Scope", ExactText(16), primary_key=True),
    Column("Subject", ExactText(255), primary_key=True),
    Column("EndedAtMillis", BigInteger, nullable=False),
    Column("ExpiresAt", BigInteger, nullable=False),
    Index("ext_session_ending_time", "EndedAtMillis"),
    **ON_MYSQL,
)
# The sessions that began here and have not expired, for lists; a session is valid without its row.
# `Subject` is the name of the user in the form that endings have.
EXT_SESSION = Table(
    "ExtSession",
    METADATA,
    Column("ProjectId", ExactText(128), primary_key=True),
    Column("SessionId", ExactText(64), primary_key=True),
    Column("Subject", ExactText(255), nullable=False),
    Column("UserName", TEXT, nullable=False),
    Column("Roles", TEXT, nullable=False),
    Column("Via", ExactText(64), nullable=False),
    Column("IssuedAtMillis", BigInteger, nullable=False),
    Column("ExpiresAt", BigInteger, nullable=False),
    Index("ext_session_time", "ProjectId", "IssuedAtMillis"),
    Index("ext_session_subject", "ProjectId", "Subject", "IssuedAtMillis"),
    **ON_MYSQL,
)
# Hashes of authorization codes that came to the callback of single sign-on.
EXT_USED_CODE = Table(
    "ExtUsedCode",
    METADATA,
    Column("CodeHash", ExactText(64), primary_key=True),
    Column("ExpiresAt", BigInteger, nullable=False),
    **ON_MYSQL,
)
# Keyed digests of piped keys and API keys that matched their hash.
EXT_VERIFIED_KEY = Table(
    "ExtVerifiedKey",
    METADATA,
    Column("Digest", ExactText(64), primary_key=True),
    Column("ExpiresAt", BigInteger, nullable=False),
    **ON_MYSQL,
)


def _key_grants(name: str, index: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("KeyId", ExactText(64), primary_key=True),
        Column("ProjectId", ExactText(128), nullable=False),
        Column("GrantedBy", ExactText(255), nullable=False),
        Column("GrantedAt", BigInteger, nullable=False),
        Index(index, "ProjectId"),
        **ON_MYSQL,
    )


# The API keys with permissions that upstream's roles of keys do not know: those that may approve
# stages, and those that may list and end the sessions of users.
EXT_KEY_APPROVAL = _key_grants("ExtKeyApproval", "ext_key_approval_project")
EXT_SESSION_KEY = _key_grants("ExtSessionKey", "ext_session_key_project")


def create_table(table: Table, dialect: Dialect) -> str:
    names = list(table.c.keys())
    if dialect.name == "mysql" and not table.name.startswith("Ext"):
        # Upstream's order of columns.
        first = ("Id", "Data", "ProjectId", "Disabled", "Extra", "CreatedAt", "UpdatedAt")
        names = [n for n in first if n in names] + [n for n in names if n not in first]
    columns = (_column_for(dialect, table.c[name]) for name in names)
    copy = Table(table.name, MetaData(), *columns, **ON_MYSQL)
    return str(CreateTable(copy, if_not_exists=True).compile(dialect=dialect)).strip()


def add_column(column: Column[Any], dialect: Dialect) -> str:
    table = dialect.identifier_preparer.format_table(column.table)
    copy = _column_for(dialect, column)
    return f"ALTER TABLE {table} ADD COLUMN {CreateColumn(copy).compile(dialect=dialect)}"


def modify_column(column: Column[Any], dialect: Dialect) -> str:
    """The statement of MySQL that replaces the definition of an existing column."""
    return add_column(column, dialect).replace(" ADD COLUMN ", " MODIFY COLUMN ", 1)


def create_indexes(table: Table, dialect: Dialect) -> Iterator[tuple[str, str]]:
    """The names of an engine's indexes and the statements that create them."""
    for index in sorted(table.indexes, key=lambda i: str(i.name)):
        if dialect.name in index.info.get(ENGINES, (dialect.name,)):
            # MySQL has no IF NOT EXISTS for indexes.
            create = CreateIndex(index, if_not_exists=dialect.name != "mysql")
            yield str(index.name), str(create.compile(dialect=dialect))


def definitions(dialect: Dialect) -> Iterator[str]:
    """The statements that create all tables and indexes of an engine."""
    for table in METADATA.sorted_tables:
        yield create_table(table, dialect)
        for _, create in create_indexes(table, dialect):
            yield create
    if dialect.name != "mysql":
        yield from (f"DROP INDEX IF EXISTS {name}" for name in OBSOLETE_INDEXES)
    yield from (drop_table(name, dialect) for name in OBSOLETE_TABLES)


def drop_table(name: str, dialect: Dialect) -> str:
    return f"DROP TABLE IF EXISTS {dialect.identifier_preparer.quote(name)}"


@dataclass(frozen=True)
class ExistingTables:
    """The columns and the indexes of the tables that exist, all in lower case."""

    columns: Mapping[str, frozenset[str]]
    indexes: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, columns: Iterable[Row], indexes: Iterable[Row]) -> "ExistingTables":
        """Builds it from pairs of a table and the name of a column or an index."""
        return cls(_by_table(columns), _by_table(indexes))


def missing_definitions(existing: ExistingTables, dialect: Dialect) -> Iterator[str]:
    """The statements that add missing tables, columns and indexes, and drop obsolete ones."""
    for table in METADATA.sorted_tables:
        name = table.name.lower()
        columns = existing.columns.get(name)
        if columns is None:
            yield create_table(table, dialect)
        else:
            for column in table.c:
                if column.name.lower() not in columns:
                    yield add_column(column, dialect)
        indexes = existing.indexes.get(name, frozenset())
        for index, create in create_indexes(table, dialect):
            if index.lower() not in indexes:
                yield create
        if dialect.name != "mysql":
            yield from (f"DROP INDEX IF EXISTS {i}" for i in OBSOLETE_INDEXES if i in indexes)
    for name in OBSOLETE_TABLES:
        if name.lower() in existing.columns:
            yield drop_table(name, dialect)


def _by_table(rows: Iterable[Row]) -> dict[str, frozenset[str]]:
    names: dict[str, set[str]] = defaultdict(set)
    for table, name in rows:
        names[str(table).lower()].add(str(name).lower())
    return {table: frozenset(members) for table, members in names.items()}


def _column_for(dialect: Dialect, column: Column[Any]) -> Column[Any]:
    copy = column._copy()
    # MariaDB has no NOT NULL for computed columns; `limits` refuses documents without the field.
    if column.computed is not None and getattr(dialect, "is_mariadb", False):
        copy.nullable = True
    return copy
