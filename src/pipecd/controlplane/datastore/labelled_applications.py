# SPDX-License-Identifier: Apache-2.0
"""Which applications have deployments with a label: where lists of deployments by label start.

Each deployment has rows in the label index, an application has a row here for each label that one
of its deployments has or had. Rows are added in the transaction that stores a deployment and never
removed, so a list checks the labels of each deployment as well. Deployments that another release
of the control plane stores are added by `add_of_other_releases`.
"""

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

from sqlalchemy import ColumnElement, FromClause, Insert, exists, insert, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import (
    AnySelect,
    Row,
    SameText,
    Value,
    Values,
    param,
)
from pipecd.controlplane.datastore.limits import label_text
from pipecd.controlplane.datastore.schema import (
    APPLICATION,
    DEPLOYMENT,
    EXT_LABEL,
    EXT_LABELLED_APPLICATION,
)
from pipecd.controlplane.datastore.watermarks import read_watermark, write_watermark

MAX_KNOWN = 100_000
WATERMARK = "labelled_applications"
FILL_BATCH = 5000
# Servers of an earlier release may have run that long beside this one.
OVERLAP_SECONDS = 7 * 24 * 3600
# The clocks of other servers may be ahead of ours by so many seconds.
MAX_CLOCK_SKEW = 3600

_ROW = EXT_LABELLED_APPLICATION.c
_IS_SAME = (
    _ROW.ProjectId == param("project"),
    _ROW.LabelKey == param("key"),
    _ROW.LabelValue == param("value"),
    _ROW.ApplicationId == param("application"),
)
_IS_STORED = select(_ROW.ApplicationId).where(*_IS_SAME)
_ADD = insert(EXT_LABELLED_APPLICATION).values(
    ProjectId=param("project"),
    LabelKey=param("key"),
    LabelValue=param("value"),
    ApplicationId=param("application"),
)


class LabelledApplications:
    """Adds the rows of new deployments; those known to be stored are not read again."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str, str, str]] = set()

    def add(
        self, transaction: Transaction, project: str, application: str, labels: Mapping[str, str]
    ) -> None:
        missing: list[Values] = []
        for key, value in labels.items():
            row = (project, label_text(key), label_text(value), application)
            if row in self._known:
                continue
            values = _values(row)
            if not transaction.query(_IS_STORED, values):
                missing.append(values)
                continue
            # Only rows of committed transactions are known.
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known.add(row)
        if missing:
            transaction.execute_many(_ADD, missing)


def _values(row: Row) -> Values:
    """The parameters of a row: its project, label and application."""
    project, key, value, application = row
    return {"project": project, "key": key, "value": value, "application": application}


@lru_cache(maxsize=64)
def labelled_statement(labels: int) -> AnySelect:
    """Selects the applications of a project that have so many labels."""
    rows, conditions = _labelled_rows(labels)
    return select(rows.c.ApplicationId).where(*conditions).limit(param("limit"))


def _labelled_rows(labels: int) -> tuple[FromClause, list[ColumnElement[bool]]]:
    """The rows of the first label, and the conditions for all of them."""
    first = EXT_LABELLED_APPLICATION.alias()
    conditions: list[ColumnElement[bool]] = [
        first.c.ProjectId == param("project"),
        first.c.LabelKey == param("key_0"),
        first.c.LabelValue == param("value_0"),
    ]
    for number in range(1, labels):
        other = EXT_LABELLED_APPLICATION.alias()
        is_labelled = exists().where(
            other.c.ProjectId == param("project"),
            other.c.LabelKey == param(f"key_{number}"),
            other.c.LabelValue == param(f"value_{number}"),
            other.c.ApplicationId == first.c.ApplicationId,
        )
        conditions.append(is_labelled)
    return first, conditions


def labelled_values(project: str, labels: Sequence[tuple[Value, Value]], limit: int) -> Values:
    """The parameters of `labelled_statement`."""
    values: dict[str, Value] = {"project": project, "limit": limit}
    for number, (key, value) in enumerate(labels):
        values |= {f"key_{number}": key, f"value_{number}": value}
    return values


def missing_statement(*conditions: ColumnElement[bool]) -> AnySelect:
    """Selects the rows of the deployments of these conditions that are missing."""
    deployment, label = DEPLOYMENT.c, EXT_LABEL.c
    stored = EXT_LABELLED_APPLICATION.alias()
    is_stored = exists().where(
        stored.c.ProjectId == deployment.ProjectId,
        stored.c.LabelKey == label.LabelKey,
        stored.c.LabelValue == label.LabelValue,
        stored.c.ApplicationId == deployment.ApplicationId,
    )
    return (
        select(deployment.ProjectId, label.LabelKey, label.LabelValue, deployment.ApplicationId)
        .join_from(DEPLOYMENT, EXT_LABEL, label.DocumentId == deployment.Id)
        .where(label.Kind == DEPLOYMENT.name, ~is_stored, *conditions)
        .distinct()
    )


def add_missing_statement(*conditions: ColumnElement[bool]) -> Insert:
    """Adds the rows of the deployments of these conditions that are missing."""
    columns = ("ProjectId", "LabelKey", "LabelValue", "ApplicationId")
    return insert(EXT_LABELLED_APPLICATION).from_select(columns, missing_statement(*conditions))


_BATCH_END = (
    select(DEPLOYMENT.c.Id)
    .where(DEPLOYMENT.c.Id > param("after"))
    .order_by(DEPLOYMENT.c.Id)
    .limit(1)
    .offset(param("batch"))
)
_ADD_BATCH = add_missing_statement(
    DEPLOYMENT.c.Id > param("after"), DEPLOYMENT.c.Id <= param("end")
)
_MISSING = (
    missing_statement(
        SameText(DEPLOYMENT.c.ProjectId, [param("project")]),
        DEPLOYMENT.c.UpdatedAt >= param("since"),
        DEPLOYMENT.c.UpdatedAt <= param("until"),
    )
    # Otherwise the labels of all deployments would be read.
    .with_hint(DEPLOYMENT, "INDEXED BY ext_deployment_list", "sqlite")
    .with_hint(DEPLOYMENT, "FORCE INDEX (deployment_project_id_updated_at_desc)", "mysql")
)
_PROJECTS = select(APPLICATION.c.ProjectId)


def fill_labelled_applications(transaction: Transaction) -> None:
    """Adds the rows of all deployments once, when a database is first opened by this release."""
    if read_watermark(transaction, WATERMARK) is not None:
        return
    started_at, after = int(time.time()), b""
    while rows := transaction.query(_BATCH_END, {"after": after, "batch": FILL_BATCH}):
        transaction.execute(_ADD_BATCH, {"after": after, "end": rows[0][0]})
        after = rows[0][0]
    transaction.execute(_ADD_BATCH, {"after": after, "end": b"\xff" * 16})
    write_watermark(transaction, WATERMARK, started_at)


async def add_of_other_releases(database: Database) -> int:
    """Adds the rows of deployments that changed since the last time; returns their number."""
    started_at = int(time.time())
    watermark = await database.read(lambda t: read_watermark(t, WATERMARK)) or 0
    added = 0
    # DISTINCT of MySQL would ignore the case.
    for project in {project for (project,) in await database.query(_PROJECTS)}:
        values: Values = {
            "project": project,
            "since": max(0, watermark - OVERLAP_SECONDS),
            "until": started_at + MAX_CLOCK_SKEW,
        }
        missing = [_values(row) for row in await database.query(_MISSING, values)]
        if missing:
            await database.write(lambda t, m=missing: t.execute_many(_ADD, m))
            added += len(missing)
    await database.write(lambda t: write_watermark(t, WATERMARK, started_at))
    return added
