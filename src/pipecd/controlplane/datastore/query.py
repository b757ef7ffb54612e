# SPDX-License-Identifier: Apache-2.0
"""Selections of documents: conditions, order and the place where a page begins.

A statement is built once per shape (which columns, how many values) and then reused with other
values, so that an engine compiles it once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    String,
    Table,
    exists,
    false,
    select,
    union,
)
from sqlalchemy import and_ as all_of
from sqlalchemy import not_ as none_of

from pipecd.controlplane.datastore.cursor import Position
from pipecd.controlplane.datastore.database import AnySelect, Value, Values, given
from pipecd.controlplane.datastore.engine.expression import FlagInDocument, InIndexes, SameText
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
# A list that may have several values in several columns is put together of so many at most.
MOST_PARTS = 32
# What pipeds ask again and again is put together once for each of so many of them.
MOST_PIPEDS = 4096

NOT_DELETED = Condition("Data", Is.NOT_DELETED)


def equal(column: str, value: Value) -> Condition:
    return Condition(column, Is.ONE_OF, (value,))


def when_given(column: str, *values: Value) -> Iterable[Condition]:
    """The column is one of the values; empty texts and no values at all do not restrict it."""
    wanted = tuple(v for v in values if v not in ("", None))
    return (Condition(column, Is.ONE_OF, wanted),) if wanted else ()


def when_some(column: str, values: Sequence[int], every: type[IntEnum]) -> Iterable[Condition]:
    """The column is one of the values; whoever names every one there is does not restrict it."""
    return () if set(every) <= set(values) else when_given(column, *values)


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
    conditions = [_where(table, name, i, shape) for i, shape in enumerate(shapes)]
    if continued:
        conditions += _after(table, order)
    found = _in_order(select(table.c.Data), table, order)
    if limited:
        found = found.limit(given("limit"))
    if order != NEWEST_UPDATE:
        return found.where(*conditions)
    if limited and _are_in_indexes(table, shapes):
        page = _page_in_indexes(table, shapes, continued).subquery("page")
        is_found = table.c.Id.in_(select(page.c.Id))
        return found.where(InIndexes(all_of(*conditions), is_found))
    # Left alone, MariaDB reads a list from its beginning to get to a page in the middle.
    return _forced(found.where(*conditions), table, _ordered_indexes(table, shapes))


def _after(rows: FromClause, order: Order) -> Iterable[ColumnElement[bool]]:
    by, value = rows.c[order.column], given("after_value")
    yield by <= value if order.descending else by >= value
    yield none_of(all_of(by == value, rows.c.Id <= given("after_id")))


def _in_order(found: AnySelect, rows: FromClause, order: Order) -> AnySelect:
    by = rows.c[order.column]
    return found.order_by(by.desc() if order.descending else by.asc(), rows.c.Id.asc())


def _forced(found: AnySelect, rows: FromClause, indexes: Sequence[str]) -> AnySelect:
    """With the choice of MySQL restricted to these indexes, if there are any."""
    return (
        found.with_hint(rows, f"FORCE INDEX ({', '.join(indexes)})", "mysql") if indexes else found
    )


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


def _are_in_indexes(table: Table, shapes: Sequence[Shape]) -> bool:
    """Several indexes of MySQL hold together all that a list is filtered by."""
    listed = [shape for shape in shapes if shape[1] is Is.ONE_OF]
    return (
        len(listed) > 1
        and prod(places for _, _, places in listed) <= MOST_PARTS
        and all(_ordered_indexes(table, (shape,)) for shape in listed)
        and all(
            test in (Is.ONE_OF, Is.LABELLED) or name == NEWEST_UPDATE.column
            for name, test, _ in shapes
        )
    )


def _page_in_indexes(table: Table, shapes: Sequence[Shape], continued: bool) -> AnySelect:
    """The ids of a page, for which no row is read.

    MySQL computes what a list is filtered by from each document that it looks at, unless it reads
    it in an index. One index holds one of the columns, and all of them hold order and id.
    """
    listed = [i for i, (_, test, _) in enumerate(shapes) if test is Is.ONE_OF]
    choices = product(*(range(shapes[i][2]) for i in listed))
    # An index is in order for one value of its column only.
    parts = [
        _part(table, shapes, dict(zip(listed, choice, strict=True)), continued)
        for choice in choices
    ]
    if len(parts) == 1:
        return parts[0]
    together = union(*parts).subquery("parts")
    return _in_order(select(together.c.Id), together, NEWEST_UPDATE).limit(given("limit"))


def _part(
    table: Table, shapes: Sequence[Shape], chosen: Mapping[int, int], continued: bool
) -> AnySelect:
    """The page of a list for one value of each column; `chosen` has its place by the condition."""
    each = {i: table.alias() for i in chosen}
    first, *others = each.values()
    found: AnySelect = select(first.c.Id, first.c.UpdatedAt)
    for other in others:
        found = found.where(other.c.Id == first.c.Id, other.c.UpdatedAt == first.c.UpdatedAt)
    for i, shape in enumerate(shapes):
        if i in chosen:
            value = given(f"v{i}_{chosen[i]}")
            found = found.where(_one_of(each[i].c[shape[0]], [value]))
            found = _forced(found, each[i], _ordered_indexes(table, (shape,)))
        else:
            found = found.where(_where(first, table.name, i, shape))
    if continued:
        found = found.where(*_after(first, NEWEST_UPDATE))
    return _in_order(found, first, NEWEST_UPDATE).limit(given("limit"))


def _where(rows: FromClause, kind: str, number: int, shape: Shape) -> ColumnElement[bool]:
    name, test, count = shape
    values = [given(f"v{number}_{i}") for i in range(count)]
    match test:
        case Is.ONE_OF:
            return _one_of(rows.c[name], values)
        case Is.AT_LEAST:
            return rows.c[name] >= values[0]
        case Is.BELOW:
            return rows.c[name] < values[0]
        case Is.LABELLED:
            key, value = values
            return exists().where(
                EXT_LABEL.c.Kind == kind,
                EXT_LABEL.c.DocumentId == rows.c.Id,
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


def _one_of(
    column: ColumnElement[Any], values: Sequence[BindParameter[Any]]
) -> ColumnElement[bool]:
    if isinstance(column.type, String):
        return SameText(column, values)
    return column == values[0] if len(values) == 1 else column.in_(values)
