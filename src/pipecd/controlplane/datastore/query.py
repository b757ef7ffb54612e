# SPDX-License-Identifier: Apache-2.0
"""Selections of documents: conditions, order, and the position where a page begins.

A statement is built and compiled once per shape (which columns, how many values) and reused with
other values. `ranges` builds the statements of pages.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    String,
    Table,
    and_,
    false,
    not_,
    or_,
    select,
)

from pipecd.controlplane.datastore.cursor import Position
from pipecd.controlplane.datastore.expressions import (
    AnySelect,
    IsDeleted,
    Like,
    SameText,
    Value,
    Values,
    param,
)
from pipecd.controlplane.datastore.limits import label_text
from pipecd.controlplane.datastore.schema import EXT_LABEL, METADATA
from pipecd.model.errors import UserMistake
from pipecd.model.ids import row_uuid


class Comparison(Enum):
    """How a condition compares."""

    ONE_OF = "one of"
    AT_LEAST = "at least"
    BELOW = "below"
    LABELLED = "labelled"
    NOT_DELETED = "not deleted"
    MENTIONS = "mentions"


@dataclass(frozen=True)
class Condition:
    """A condition on a column, a label or the document."""

    column: str
    comparison: Comparison
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Order:
    """The column a list is ordered by; documents of the same value follow by id, ascending."""

    column: str
    descending: bool = False


NEWEST_UPDATE = Order("UpdatedAt", descending=True)
OLDEST = Order("CreatedAt")
NEWEST = Order("CreatedAt", descending=True)
FIRST_COMPLETED = Order("CompletedAt")
BY_EXTRA = Order("Extra")

# Up to SHORT_LIST values, a condition has as many parameters as values; up to PADDED_LIST, the
# number of parameters is the next power of two.
SHORT_LIST, PADDED_LIST = 8, 4096
# Pipeds poll their commands and deployments; so many of these selections are cached.
CACHED_PIPED_SELECTIONS = 8192

# The texts of a document that a search looks at: anywhere in the first ones, at the beginning of
# the others.
SEARCHED_TEXTS = {
    "Deployment": (
        ("application_name", "trigger.commit.message", "summary"),
        ("id", "trigger.commit.hash"),
    )
}
# These characters are the same in a text and in its JSON.
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9 .,:/-]+")

# Every label is a condition of its own, for which engines search an index; some have a limit of
# their own, and a statement with thousands takes minutes to build.
MAX_LABELS = 100

NOT_DELETED = Condition("Data", Comparison.NOT_DELETED)


def row_id(id: str) -> bytes:
    """The primary key of a document: its UUID in 16 bytes, with the time fields in front.

    The bytes equal those of MySQL's `UUID_TO_BIN(x, true)`, as with upstream.
    """
    # Most ids are UUIDs in the usual form, for which this is faster than `uuid.UUID`.
    is_uuid = len(id) == 36 and id[8] + id[13] + id[18] + id[23] == "----"
    try:
        plain = bytes.fromhex(id.replace("-", "")) if is_uuid else b""
    except ValueError:
        plain = b""
    # `fromhex` skips white space, so the result may be too short.
    if len(plain) != 16:
        plain = row_uuid(id).bytes
    return plain[6:8] + plain[4:6] + plain[0:4] + plain[8:]


def equal(column: str, value: Value) -> Condition:
    return Condition(column, Comparison.ONE_OF, (value,))


def any_of(column: str, *values: Value) -> Iterable[Condition]:
    """The column is one of the values; no values, or only empty texts, do not restrict it."""
    given_values = tuple(dict.fromkeys(v for v in values if v not in ("", None)))
    return (Condition(column, Comparison.ONE_OF, given_values),) if given_values else ()


def any_member_of(column: str, values: Sequence[int], enum: type[IntEnum]) -> Iterable[Condition]:
    """The column is one of the values; all members of the enum do not restrict it."""
    return () if set(enum) <= set(values) else any_of(column, *values)


def at_least(column: str, value: int) -> Iterable[Condition]:
    """The column is greater than or equal to the value; 0 does not restrict it."""
    return (Condition(column, Comparison.AT_LEAST, (value,)),) if value else ()


def below(column: str, value: int) -> Iterable[Condition]:
    """The column is less than the value; 0 does not restrict it."""
    return (Condition(column, Comparison.BELOW, (value,)),) if value else ()


def labelled(labels: Mapping[str, str]) -> Iterable[Condition]:
    """The document has all of these labels."""
    if len(labels) > MAX_LABELS:
        raise UserMistake(f"a list can be filtered by {MAX_LABELS} labels at most")
    return tuple(
        Condition("", Comparison.LABELLED, (label_text(key), label_text(value)))
        for key, value in sorted(labels.items())
    )


def mentions(text: str) -> Iterable[Condition]:
    """One of the searched texts of the document has this text; an empty one does not restrict."""
    escaped = re.sub(r"[!%_]", lambda found: f"!{found[0]}", text)
    # The longest plain part is looked for in the whole document first, which is not parsed for it.
    plain = max(_PLAIN_TEXT.findall(text), key=len, default="")
    patterns = (f"%{plain}%", f"%{escaped}%", f"{escaped}%")
    return (Condition("Data", Comparison.MENTIONS, patterns),) if text else ()


def searched_text(condition: Condition) -> str:
    """The text of a condition of `mentions`."""
    escaped = str(condition.values[2]).removesuffix("%")
    return re.sub(r"!(.)", r"\1", escaped, flags=re.DOTALL)


def enabled_is(enabled: bool | None) -> Iterable[Condition]:
    """Only enabled or only disabled documents; None does not restrict."""
    return () if enabled is None else (equal("Disabled", not enabled),)


@dataclass(frozen=True)
class Selection:
    """Documents of one table; `limit` 0 means all of them."""

    table: str
    conditions: tuple[Condition, ...]
    order: Order
    after: Position | None = None
    limit: int = 0

    def and_also(self, conditions: Iterable[Condition]) -> "Selection":
        """The selection with more conditions, in front of its own."""
        return replace(self, conditions=(*conditions, *self.conditions))

    @property
    def labels(self) -> Iterator[tuple[Value, Value]]:
        """The keys and values of the label conditions."""
        for condition in self.conditions:
            if condition.comparison is Comparison.LABELLED:
                key, value = condition.values
                yield key, value

    @property
    def searches_text(self) -> bool:
        return any(c.comparison is Comparison.MENTIONS for c in self.conditions)

    @property
    def project_by_label(self) -> str:
        """The project whose labels the conditions search; empty if there are none."""
        return self.project if any(self.labels) else ""

    @property
    def project(self) -> str:
        """The project of the documents; empty if the conditions are on none."""
        projects = [c.values[0] for c in self.conditions if c.column == "ProjectId"]
        return str(projects[0]) if projects else ""

    @cached_property
    def shape(self) -> "Shape":
        wheres = tuple(Where(c.column, c.comparison, _parameter_count(c)) for c in self.conditions)
        return Shape(self.table, wheres, self.order, self.after is not None, self.limit > 0)

    @cached_property
    def statement(self) -> AnySelect:
        """The plain statement, for which the engine chooses the index."""
        return plain_statement(self.shape)

    @cached_property
    def values(self) -> Values:
        """The values of the parameters of the statement."""
        values: dict[str, Value] = {}
        for i, condition in enumerate(self.conditions):
            # A list is padded with nulls, which match nothing: few shapes serve all lengths.
            padding = (None,) * (_parameter_count(condition) - len(condition.values))
            for j, value in enumerate((*condition.values, *padding)):
                values[f"v{i}_{j}"] = value
        if self.after is not None:
            values |= {"after_value": self.after.value, "after_id": row_id(self.after.id)}
        if self.limit:
            values["limit"] = self.limit
        return values


@lru_cache(CACHED_PIPED_SELECTIONS)
def piped_selection(table: str, piped_id: str, statuses: tuple[int, ...]) -> Selection:
    """The documents of a piped that have one of these statuses, oldest first."""
    return Selection(table, (equal("PipedId", piped_id), *any_of("Status", *statuses)), OLDEST)


@dataclass(frozen=True)
class Where:
    """A condition without its values, but with the number of parameters for them."""

    column: str
    comparison: Comparison
    parameters: int


@dataclass(frozen=True)
class Shape:
    """A selection without its values, for which a statement is built once."""

    table_name: str
    wheres: tuple[Where, ...]
    order: Order
    continued: bool
    limited: bool

    @property
    def table(self) -> Table:
        return METADATA.tables[self.table_name]

    def conditions(self) -> list[ColumnElement[bool]]:
        """Every condition on the rows of the table, in the order of `wheres`."""
        table = self.table
        conditions = [self.condition(table, i) for i in range(len(self.wheres))]
        return [*conditions, *self.after(table)]

    def condition(self, rows: FromClause, number: int) -> ColumnElement[bool]:
        """One of the conditions on the rows of the table or of an alias of it."""
        where, parameters = self.wheres[number], self.parameters(number)
        match where.comparison:
            case Comparison.ONE_OF:
                return one_of(rows.c[where.column], parameters)
            case Comparison.AT_LEAST:
                return rows.c[where.column] >= parameters[0]
            case Comparison.BELOW:
                return rows.c[where.column] < parameters[0]
            case Comparison.LABELLED:
                key, expected = parameters
                # PostgreSQL would turn EXISTS into a join, and start it with the label if it
                # takes that for rare.
                value = select(EXT_LABEL.c.LabelValue).where(
                    EXT_LABEL.c.Kind == self.table_name,
                    EXT_LABEL.c.DocumentId == rows.c.Id,
                    EXT_LABEL.c.LabelKey == key,
                )
                return value.correlate(rows).scalar_subquery() == expected
            case Comparison.NOT_DELETED:
                return IsDeleted() == false()
            case Comparison.MENTIONS:
                in_document, anywhere, at_start = parameters
                contained, beginning = SEARCHED_TEXTS[self.table_name]
                return and_(
                    Like("", in_document),
                    or_(
                        *(Like(path, anywhere) for path in contained),
                        *(Like(path, at_start) for path in beginning),
                    ),
                )

    def parameters(self, number: int) -> list[BindParameter[Any]]:
        """The parameters of a condition."""
        return [param(f"v{number}_{i}") for i in range(self.wheres[number].parameters)]

    def after(self, rows: FromClause) -> Iterator[ColumnElement[bool]]:
        """The conditions of a page that continues after the position of a cursor."""
        if self.continued:
            by, value = rows.c[self.order.column], param("after_value")
            yield by <= value if self.order.descending else by >= value
            yield not_(and_(by == value, rows.c.Id <= param("after_id")))

    def ordered(self, statement: AnySelect, rows: FromClause) -> AnySelect:
        """The statement with the order and the limit of the selection."""
        by = rows.c[self.order.column]
        by = by.desc() if self.order.descending else by.asc()
        statement = statement.order_by(by, rows.c.Id.asc())
        return statement.limit(param("limit")) if self.limited else statement

    def documents(self, *conditions: ColumnElement[bool]) -> AnySelect:
        """The statement that selects the documents of these conditions in order."""
        return self.ordered(select(self.table.c.Data).where(*conditions), self.table)


@lru_cache(maxsize=512)
def plain_statement(shape: Shape) -> AnySelect:
    """The statement of a selection, for which the engine chooses the index."""
    return shape.documents(*shape.conditions())


def one_of(column: ColumnElement[Any], values: Sequence[BindParameter[Any]]) -> ColumnElement[bool]:
    """The column is one of the values; texts are compared exactly."""
    if isinstance(column.type, String):
        return SameText(column, values)
    return column == values[0] if len(values) == 1 else column.in_(values)


def _parameter_count(condition: Condition) -> int:
    count = len(condition.values)
    is_padded = condition.comparison is Comparison.ONE_OF and SHORT_LIST < count <= PADDED_LIST
    return 1 << (count - 1).bit_length() if is_padded else count
