# SPDX-License-Identifier: Apache-2.0
"""Selections of documents: conditions, order and the place where a page begins.

A statement is built once per shape (which columns, how many values) and then reused with other
values, so that an engine compiles it once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    ScalarSelect,
    String,
    Table,
    exists,
    false,
    func,
    select,
)
from sqlalchemy import and_ as all_of
from sqlalchemy import not_ as none_of

from pipecd.controlplane.datastore.cursor import Position
from pipecd.controlplane.datastore.database import AnySelect, Value, Values, given
from pipecd.controlplane.datastore.engine.expression import (
    FlagInDocument,
    InIndexes,
    OneByOne,
    SameText,
)
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
    """What a column, a label or the document must be; `rest` says it in fewer values."""

    column: str
    test: Is
    values: tuple[Value, ...] = ()
    rest: tuple[Value, ...] = ()


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
# Lists of so many values have statements of their own, longer ones are filled up.
SHORT_LIST = 8
# In so many entries of an index a page is found quickly, whatever else is asked of its documents.
FEW_ENTRIES = 1 << 14
# What pipeds ask again and again is put together once for each of so many of them.
MOST_PIPEDS = 4096

NOT_DELETED = Condition("Data", Is.NOT_DELETED)


def equal(column: str, value: Value) -> Condition:
    return Condition(column, Is.ONE_OF, (value,))


def when_given(column: str, *values: Value) -> Iterable[Condition]:
    """The column is one of the values; empty texts and no values at all do not restrict it."""
    wanted = tuple(dict.fromkeys(v for v in values if v not in ("", None)))
    return (Condition(column, Is.ONE_OF, wanted),) if wanted else ()


def when_some(column: str, values: Sequence[int], every: type[IntEnum]) -> Iterable[Condition]:
    """The column is one of the values; whoever names every one there is does not restrict it."""
    rest = tuple(int(member) for member in every if member not in values)
    fewer = rest if len(rest) < len(set(values)) else ()
    return (replace(c, rest=fewer) for c in when_given(column, *values)) if rest else ()


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
    """Documents of one table; `limit` 0 means all of them.

    They may be looked for among those of the condition number `first`.
    """

    table: str
    conditions: tuple[Condition, ...]
    order: Order
    after: Position | None = None
    limit: int = 0
    first: int | None = None

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
        projects = [c.values[0] for c in self.conditions if c.column == "ProjectId"]
        return str(projects[0]) if projects and any(self.labels) else ""

    @cached_property
    def statement(self) -> AnySelect:
        return _statement(self._shape, self.limit > 0, self.first)

    @cached_property
    def weighing(self) -> AnySelect | None:
        """How many documents meet each of the conditions that a page may begin with."""
        return _weighing(self._shape) if self.limit and self.order == NEWEST_UPDATE else None

    def weighed(self, weights: Sequence[int]) -> "Selection":
        """The same documents, looked for first among the few that meet one of the conditions."""
        least = min(weights, default=FEW_ENTRIES)
        if least >= FEW_ENTRIES:
            return self
        return replace(self, first=_firsts(self._shape)[weights.index(least)])

    @cached_property
    def _shape(self) -> "Shape":
        wheres = tuple(Where(c.column, c.test, _places(c), len(c.rest)) for c in self.conditions)
        return Shape(self.table, wheres, self.order, self.after is not None)

    @cached_property
    def values(self) -> Values:
        found: dict[str, Value] = {}
        for i, condition in enumerate(self.conditions):
            # A list is filled up with its last value, so that few shapes serve all lengths.
            last = len(condition.values) - 1
            for j in range(_places(condition)):
                found[f"v{i}_{j}"] = condition.values[min(j, last)]
            found |= {f"rest{i}_{j}": value for j, value in enumerate(condition.rest)}
        if self.after is not None:
            found |= {"after_value": self.after.value, "after_id": row_id(self.after.id)}
        if self.limit:
            found["limit"] = self.limit
        return found


@dataclass(frozen=True)
class Where:
    """A condition of any values, and how many of them and of others it names."""

    column: str
    test: Is
    places: int
    rest: int


@dataclass(frozen=True)
class Shape:
    """What a selection has in common with those of other values."""

    table: str
    wheres: tuple[Where, ...]
    order: Order
    continued: bool


def _places(condition: Condition) -> int:
    """How many parameters a condition has: for a longer list the next power of two."""
    count = len(condition.values)
    is_filled_up = condition.test is Is.ONE_OF and SHORT_LIST < count <= USUAL_LIST
    return 1 << (count - 1).bit_length() if is_filled_up else count


@lru_cache(maxsize=512)
def _statement(shape: Shape, limited: bool, first: int | None) -> AnySelect:
    table, order = METADATA.tables[shape.table], shape.order
    conditions = [_where(table, shape.table, i, where) for i, where in enumerate(shape.wheres)]
    if {"Kind", "Status"} <= {where.column for where in shape.wheres if where.places > 1}:
        at = next(i for i, where in enumerate(shape.wheres) if where.column == "Status")
        conditions[at] = OneByOne(table.c.Status, _parameters(at, shape.wheres[at]))
    if shape.continued:
        conditions += _after(table, order)
    found = _in_order(select(table.c.Data), table, order)
    if limited:
        found = found.limit(given("limit"))
    if order != NEWEST_UPDATE:
        return found.where(*conditions)
    if limited and _are_in_indexes(shape, first):
        page = _page_in_indexes(table, shape, first).subquery("page")
        is_found = table.c.Id.in_(select(page.c.Id))
        return found.where(InIndexes(all_of(*conditions), is_found))
    # Left alone, MariaDB reads a list from its beginning to get to a page in the middle.
    return _forced(found.where(*conditions), table, _ordered_indexes(table, shape.wheres))


@lru_cache(maxsize=512)
def _weighing(shape: Shape) -> AnySelect | None:
    firsts = _firsts(shape)
    return select(*(_weight(shape, i) for i in firsts)) if firsts else None


def _weight(shape: Shape, number: int) -> ScalarSelect[int]:
    """How many documents meet a condition; if they are many, it does not matter how many."""
    table = METADATA.tables[shape.table]
    rows = table.alias()
    found: AnySelect = select(rows.c.Id).where(*_in_one_index(rows, shape, number))
    found = _forced(found, rows, _ordered_indexes(table, (shape.wheres[number],)))
    few = found.limit(FEW_ENTRIES).subquery()
    return select(func.count()).select_from(few).scalar_subquery()


def _after(rows: FromClause, order: Order) -> Iterable[ColumnElement[bool]]:
    by, value = rows.c[order.column], given("after_value")
    yield by <= value if order.descending else by >= value
    yield none_of(all_of(by == value, rows.c.Id <= given("after_id")))


def _in_order(found: AnySelect, rows: FromClause, order: Order) -> AnySelect:
    by = rows.c[order.column]
    return found.order_by(by.desc() if order.descending else by.asc(), rows.c.Id.asc())


def _forced(found: AnySelect, rows: FromClause, indexes: Sequence[str]) -> AnySelect:
    """With the choice of MySQL restricted to these indexes, if there are any."""
    hint = f"FORCE INDEX ({', '.join(indexes)})"
    return found.with_hint(rows, hint, "mysql") if indexes else found


def _ordered_indexes(table: Table, wheres: Iterable[Where]) -> list[str]:
    """The indexes of MySQL that have a filtered column and then the order of lists."""
    filtered = {where.column for where in wheres if where.test is Is.ONE_OF}
    if "Id" in filtered:
        return []
    return sorted(
        str(index.name)
        for index in table.indexes
        if "mysql" in index.info.get(ENGINES, ("mysql",))
        and [column.name for column in index.columns][1:] == [NEWEST_UPDATE.column]
        and index.columns[0].name in filtered
    )


def _are_in_indexes(shape: Shape, first: int | None) -> bool:
    """Several indexes of MySQL hold together all that a list is filtered by."""
    table = METADATA.tables[shape.table]
    listed = {i: where for i, where in enumerate(shape.wheres) if where.test is Is.ONE_OF}
    return (
        len(listed) > 1
        and all(_ordered_indexes(table, (where,)) for where in listed.values())
        # Each value of another condition than the first is looked for by itself.
        and all(i == first or where.places <= SHORT_LIST for i, where in listed.items())
        and all(
            where.test in (Is.ONE_OF, Is.LABELLED) or where.column == NEWEST_UPDATE.column
            for where in shape.wheres
        )
    )


def _firsts(shape: Shape) -> list[int]:
    """The conditions among which to choose the one that a page begins with.

    Of single values MySQL finds out by itself how many documents have them.
    """
    listed = [i for i, where in enumerate(shape.wheres) if where.test is Is.ONE_OF]
    if all(shape.wheres[i].places == 1 for i in listed):
        return []
    return [i for i in listed if _are_in_indexes(shape, i)]


def _page_in_indexes(table: Table, shape: Shape, first: int | None) -> AnySelect:
    """The ids of a page, for which no row is read.

    MySQL computes what a list is filtered by from each document that it looks at, unless it reads
    it in an index. One index holds one of the columns, and all of them hold order and id.
    """
    listed = [i for i, where in enumerate(shape.wheres) if where.test is Is.ONE_OF]
    start, *others = sorted(listed, key=lambda i: (i != first, shape.wheres[i].places))
    rows = table.alias()
    found: AnySelect = select(rows.c.Id).where(*_in_one_index(rows, shape, start))
    found = _forced(found, rows, _ordered_indexes(table, (shape.wheres[start],)))
    for i, where in enumerate(shape.wheres):
        if where.test is Is.LABELLED:
            found = found.where(_where(rows, table.name, i, where))
    joined: FromClause = rows
    for i, rest in _looks(shape, others):
        where, ids = shape.wheres[i], list[ColumnElement[Any]]()
        for value in _parameters(i, where, rest=rest):
            one = table.alias()
            is_same = all_of(one.c.Id == rows.c.Id, one.c.UpdatedAt == rows.c.UpdatedAt)
            is_it = all_of(is_same, _one_of(one.c[where.column], [value]))
            joined = joined.join(one, is_it, isouter=rest or where.places > 1)
            found = _forced(found, one, _ordered_indexes(table, (where,)))
            ids.append(one.c.Id)
        is_any = func.coalesce(*ids).is_not(None)
        found = found.where(none_of(is_any) if rest else is_any)
    return _in_order(found.select_from(joined), rows, NEWEST_UPDATE).limit(given("limit"))


def _looks(shape: Shape, numbers: Iterable[int]) -> Iterable[tuple[int, bool]]:
    """The conditions in an order that soon tells that a document is not wanted.

    One that names most values of a column is first asked for the rest. What has none of those is
    asked for all the same, since it may have a value that nobody knows.
    """
    wheres = [(i, shape.wheres[i]) for i in numbers]
    looks = [(where.rest > 0, where.places, i, False) for i, where in wheres]
    looks += [(False, where.rest, i, True) for i, where in wheres if where.rest]
    return [(i, rest) for _, _, i, rest in sorted(looks)]


def _in_one_index(rows: FromClause, shape: Shape, number: int) -> Iterator[ColumnElement[bool]]:
    """What the index of a condition tells of a document: whether it meets it, and its time."""
    for i, where in enumerate(shape.wheres):
        if i == number or where.column == NEWEST_UPDATE.column:
            yield _where(rows, shape.table, i, where)
    if shape.continued:
        yield from _after(rows, NEWEST_UPDATE)


def _parameters(number: int, where: Where, *, rest: bool = False) -> list[BindParameter[Any]]:
    name, count = ("rest", where.rest) if rest else ("v", where.places)
    return [given(f"{name}{number}_{i}") for i in range(count)]


def _where(rows: FromClause, kind: str, number: int, where: Where) -> ColumnElement[bool]:
    values = _parameters(number, where)
    match where.test:
        case Is.ONE_OF:
            return _one_of(rows.c[where.column], values)
        case Is.AT_LEAST:
            return rows.c[where.column] >= values[0]
        case Is.BELOW:
            return rows.c[where.column] < values[0]
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


def _one_of(
    column: ColumnElement[Any], values: Sequence[BindParameter[Any]]
) -> ColumnElement[bool]:
    if isinstance(column.type, String):
        return SameText(column, values)
    return column == values[0] if len(values) == 1 else column.in_(values)
