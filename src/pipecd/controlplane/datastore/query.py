# SPDX-License-Identifier: Apache-2.0
"""Selections of documents: conditions, order and the place where a page begins.

A statement is built once per shape (which columns, how many values) and then reused with other
values, so that an engine compiles it once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import BindParameter, Column, ColumnElement, String, Table, exists, false, select
from sqlalchemy import and_ as all_of
from sqlalchemy import not_ as none_of

from pipecd.controlplane.datastore.cursor import Position
from pipecd.controlplane.datastore.database import AnySelect, Value, Values, given
from pipecd.controlplane.datastore.engine.expression import FlagInDocument, SameText
from pipecd.controlplane.datastore.fits import label_text
from pipecd.controlplane.datastore.rowid import row_id
from pipecd.controlplane.datastore.schema import ENGINES, EXT_LABEL, METADATA


class Is(Enum):
    """How a condition compares."""

    ONE_OF = "one of"
    AT_LEAST = "at least"
    BELOW = "below"
    LABELLED = "labelled"
    NOT_DELETED = "not deleted"


@dataclass(frozen=True)
class Condition:
    """What a column, a label or the document must be."""

    column: str
    test: Is
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Order:
    """The column a list is ordered by; documents of the same value follow by id, ascending."""

    column: str
    descending: bool = False


NEWEST_UPDATE = Order("UpdatedAt", descending=True)
OLDEST = Order("CreatedAt")
NEWEST = Order("CreatedAt", descending=True)
FIRST_ENDED = Order("CompletedAt")
BY_EXTRA = Order("Extra")

USUAL_LIST = 4096
# What pipeds ask again and again is put together once for each of so many of them.
MOST_PIPEDS = 4096

NOT_DELETED = Condition("Data", Is.NOT_DELETED)


def equal(column: str, value: Value) -> Condition:
    return Condition(column, Is.ONE_OF, (value,))


def when_given(column: str, *values: Value) -> Iterable[Condition]:
    """The column is one of the values; empty texts and no values at all do not restrict it."""
    wanted = tuple(v for v in values if v not in ("", None))
    return (Condition(column, Is.ONE_OF, wanted),) if wanted else ()


def at_least(column: str, value: int) -> Iterable[Condition]:
    """The column is not under the value; 0 does not restrict it."""
    return (Condition(column, Is.AT_LEAST, (value,)),) if value else ()


def below(column: str, value: int) -> Iterable[Condition]:
    """The column is under the value; 0 does not restrict it."""
    return (Condition(column, Is.BELOW, (value,)),) if value else ()


def labelled(labels: Mapping[str, str]) -> Iterable[Condition]:
    """Every one of the pairs is on the document."""
    return (
        Condition("", Is.LABELLED, (label_text(key), label_text(value)))
        for key, value in sorted(labels.items())
    )


def disabled_unless(enabled: bool | None) -> Iterable[Condition]:
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

    @property
    def labels(self) -> Iterator[tuple[Value, Value]]:
        """The keys and values that are looked for."""
        for condition in self.conditions:
            if condition.test is Is.LABELLED:
                key, value = condition.values
                yield key, value

    @property
    def project_by_label(self) -> str:
        """The project in which labels are looked for, if any are."""
        if not any(self.labels):
            return ""
        projects = [c.values[0] for c in self.conditions if c.column == "ProjectId"]
        return str(projects[0]) if projects else ""

    @cached_property
    def statement(self) -> AnySelect:
        shape = tuple((c.column, c.test, _places(c)) for c in self.conditions)
        return _statement(self.table, shape, self.order, self.after is not None, self.limit > 0)

    @cached_property
    def values(self) -> Values:
        found: dict[str, Value] = {}
        for i, condition in enumerate(self.conditions):
            # A list is filled up with its last value, so that few shapes serve all lengths.
            last = len(condition.values) - 1
            for j in range(_places(condition)):
                found[f"v{i}_{j}"] = condition.values[min(j, last)]
        if self.after is not None:
            found |= {"after_value": self.after.value, "after_id": row_id(self.after.id)}
        if self.limit:
            found["limit"] = self.limit
        return found


Shape = tuple[str, Is, int]


def _places(condition: Condition) -> int:
    """How many parameters a condition has: for a list of usual length the next power of two."""
    count = len(condition.values)
    is_usual_list = condition.test is Is.ONE_OF and count <= USUAL_LIST
    return 1 << (count - 1).bit_length() if is_usual_list else count


@lru_cache(maxsize=512)
def _statement(
    name: str, shapes: tuple[Shape, ...], order: Order, continued: bool, limited: bool
) -> AnySelect:
    table = METADATA.tables[name]
    by = table.c[order.column]
    found = select(table.c.Data).where(*(_where(table, i, s) for i, s in enumerate(shapes)))
    if continued:
        value, id = given("after_value"), given("after_id")
        found = found.where(by <= value if order.descending else by >= value)
        found = found.where(none_of(all_of(by == value, table.c.Id <= id)))
    found = found.order_by(by.desc() if order.descending else by.asc(), table.c.Id.asc())
    if order == NEWEST_UPDATE and (indexes := _ordered_indexes(table, shapes)):
        # Left alone, MariaDB reads a list from its beginning to get to a page in the middle.
        found = found.with_hint(table, f"FORCE INDEX ({', '.join(indexes)})", "mysql")
    return found.limit(given("limit")) if limited else found


def _ordered_indexes(table: Table, shapes: Iterable[Shape]) -> list[str]:
    """The indexes of MySQL that have a filtered column and then the order of lists."""
    filtered = {name for name, test, _ in shapes if test is Is.ONE_OF}
    if "Id" in filtered:
        return []
    return sorted(
        str(index.name)
        for index in table.indexes
        if "mysql" in index.info.get(ENGINES, ("mysql",))
        and [column.name for column in index.columns][1:] == [NEWEST_UPDATE.column]
        and index.columns[0].name in filtered
    )


def _where(table: Table, number: int, shape: Shape) -> ColumnElement[bool]:
    name, test, count = shape
    values = [given(f"v{number}_{i}") for i in range(count)]
    match test:
        case Is.ONE_OF:
            return _one_of(table.c[name], values)
        case Is.AT_LEAST:
            return table.c[name] >= values[0]
        case Is.BELOW:
            return table.c[name] < values[0]
        case Is.LABELLED:
            key, value = values
            return exists().where(
                EXT_LABEL.c.Kind == table.name,
                EXT_LABEL.c.DocumentId == table.c.Id,
                EXT_LABEL.c.LabelKey == key,
                EXT_LABEL.c.LabelValue == value,
            )
        case Is.NOT_DELETED:
            return FlagInDocument("deleted") == false()


LABELLED = (
    select(EXT_LABEL.c.DocumentId)
    .where(
        EXT_LABEL.c.Kind == given("kind"),
        EXT_LABEL.c.LabelKey == given("key"),
        EXT_LABEL.c.LabelValue == given("value"),
    )
    .limit(given("limit"))
)


def _one_of(column: Column[Any], values: Sequence[BindParameter[Any]]) -> ColumnElement[bool]:
    if isinstance(column.type, String):
        return SameText(column, values)
    return column == values[0] if len(values) == 1 else column.in_(values)
