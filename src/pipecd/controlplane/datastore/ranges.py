# SPDX-License-Identifier: Apache-2.0
"""Pages of lists, merged from ranges of an index.

A range is a part of an index in which every column before the time of the update has one value, so
that its entries are in the order of the list. A condition with several values has a range for each.
The first entries of all ranges together contain the page. So a page reads few entries, whether the
values are frequent, rare or missing; one statement does it on every engine. A list of deployments
without pages, such as those in progress, is the whole of its ranges.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from sqlalchemy import ColumnElement, FromClause, Index, func, select, union_all

from pipecd.controlplane.datastore.expressions import AnySelect, param
from pipecd.controlplane.datastore.query import NEWEST_UPDATE, Comparison, Shape, one_of
from pipecd.controlplane.datastore.schema import ENGINES

# More ranges than this take longer than the entries that they avoid.
MAX_RANGES = 64
# A longer list of values is one condition, whose entries are all read and sorted; so many at most.
MAX_SORTED_ENTRIES = 60_000

# The indexes of a page are chosen for a large installation, which suits a small one as well.
ASSUMED_ROWS = 1_000_000
# The number of distinct values of a column.
DISTINCT_VALUES = {
    "ProjectId": 10,
    "Disabled": 2,
    "Kind": 6,
    "Status": 7,
    "SyncState_Status": 6,
    "PipedId": 100,
    "LabelKey": 5,
    "LabelValue": 50,
    "Name": 10_000,
    "EventKey": 10_000,
    "ApplicationId": 10_000,
    "ApplicationName": 10_000,
}
OTHER_DISTINCT_VALUES = 50_000

# The tables that grow with the history, and the columns by which a list without pages has few of
# their documents. Engines would rather read all of a project in the order of the list.
GROWING = frozenset({"Deployment"})
SELECTIVE = frozenset({"Status", "ApplicationId", "ApplicationName", "PipedId"})

# The values of columns without a condition that may come before the time of the update; whatever
# is below or above them is a range of its own, since another version may know more values.
KNOWN_VALUES = {("Deployment", "Kind"): range(6), ("Deployment", "Status"): range(7)}


@dataclass(frozen=True)
class IndexRanges:
    """The ranges of an index for a page.

    `columns` come before the time of the update, with the number of the condition on each; None
    means all values. The conditions `listed` are not split into ranges. `share` is the estimated
    part of the table that the ranges have.
    """

    index: Index
    columns: Mapping[str, int | None]
    listed: frozenset[int]
    ranges: int
    share: float


@lru_cache(maxsize=512)
def page_statement(shape: Shape, engine: str) -> AnySelect | None:
    """The statement of a list, newest update first; None if no index has ranges for it."""
    chosen = choose_index(shape, engine)
    if chosen is None:
        return None
    parts = [part.subquery() for part in _range_statements(shape, chosen)]
    page = parts[0]
    if len(parts) > 1:
        merged = union_all(*(select(part.c.Id, part.c.UpdatedAt) for part in parts)).subquery()
        page = shape.ordered(select(merged.c.Id, merged.c.UpdatedAt), merged).subquery("page")
    table = shape.table
    documents: AnySelect = select(table.c.Data).join_from(page, table, table.c.Id == page.c.Id)
    return documents.order_by(page.c.UpdatedAt.desc(), page.c.Id)


@lru_cache(maxsize=512)
def entry_statement(shape: Shape, engine: str) -> tuple[int, AnySelect] | None:
    """The number of ranges of a page, and the statement for the latest time of an entry in them.

    The parameter `entry` is the number of the entry in each range, without the conditions that are
    not in its index. None if no index has ranges for the page.
    """
    chosen = choose_index(shape, engine) if shape.limited else None
    if chosen is None:
        return None
    parts = [
        part.limit(1).offset(param("entry")).subquery()
        for part in _range_statements(shape, chosen, only_index=True)
    ]
    times = union_all(*(select(part.c.UpdatedAt) for part in parts)).subquery()
    return len(parts), select(func.max(times.c.UpdatedAt))


def choose_index(shape: Shape, engine: str) -> IndexRanges | None:
    """The index whose ranges are estimated to have the fewest entries, then the fewest ranges."""
    filters = _filters(shape)
    if shape.order != NEWEST_UPDATE or "Id" in filters:
        return None
    if not shape.limited and not (shape.table_name in GROWING and SELECTIVE & filters.keys()):
        return None
    candidates = [
        ranges
        for index in sorted(shape.table.indexes, key=lambda index: str(index.name))
        if engine in index.info.get(ENGINES, (engine,))
        and (ranges := _ranges_of(index, shape, filters)) is not None
    ]
    return min(candidates, key=lambda c: (c.share, c.ranges, -len(c.index.columns)), default=None)


def _filters(shape: Shape) -> dict[str, int]:
    """The conditions on one value or a list of values, by column; the shorter list of two."""
    filters: dict[str, int] = {}
    for number, where in enumerate(shape.wheres):
        if where.comparison is Comparison.ONE_OF:
            other = filters.get(where.column)
            if other is None or where.parameters < shape.wheres[other].parameters:
                filters[where.column] = number
    return filters


def _ranges_of(index: Index, shape: Shape, filters: Mapping[str, int]) -> IndexRanges | None:
    names = [column.name for column in index.columns]
    if NEWEST_UPDATE.column not in names:
        return None
    leading = names[: names.index(NEWEST_UPDATE.column)]
    columns, lengths, share = dict[str, int | None](), dict[str, int](), 1.0
    for name in leading:
        number = filters.get(name)
        known = KNOWN_VALUES.get((shape.table_name, name))
        if number is not None:
            lengths[name] = shape.wheres[number].parameters
            distinct = DISTINCT_VALUES.get(name, OTHER_DISTINCT_VALUES)
            share *= min(1.0, lengths[name] / distinct)
        elif known is not None:
            lengths[name] = len(known) + 2
        else:
            return None
        columns[name] = number
    if all(number is None for number in columns.values()):
        return None
    listed = frozenset[int]()
    if prod(lengths.values()) > MAX_RANGES:
        longest = max(leading, key=lambda name: lengths[name])
        number = columns[longest]
        if number is None or share * ASSUMED_ROWS > MAX_SORTED_ENTRIES:
            return None
        listed, lengths[longest] = frozenset({number}), 1
    ranges = prod(lengths.values())
    return IndexRanges(index, columns, listed, ranges, share) if ranges <= MAX_RANGES else None


def _range_statements(
    shape: Shape, chosen: IndexRanges, *, only_index: bool = False
) -> Iterator[AnySelect]:
    """Selects the first entries of each range, with all conditions or those of the index only."""
    table = shape.table
    split = {number for number in chosen.columns.values() if number is not None} - chosen.listed
    indexed = {*chosen.columns, NEWEST_UPDATE.column}
    others = [
        i
        for i, where in enumerate(shape.wheres)
        if i not in split and (where.column in indexed or not only_index)
    ]
    choices = [
        _choices(shape, column, number)
        for column, number in chosen.columns.items()
        if number not in chosen.listed
    ]
    for values in product(*choices):
        conditions = [*values, *(shape.condition(table, i) for i in others), *shape.after(table)]
        entries: AnySelect = select(table.c.Id, table.c.UpdatedAt).where(*conditions)
        entries = with_index(entries, table, str(chosen.index.name))
        if not shape.limited:
            yield entries
        elif chosen.listed:
            # PostgreSQL has no hints, but no index is in the order of an expression.
            ordered = entries.order_by((table.c.UpdatedAt + 0).desc(), table.c.Id)
            yield ordered.limit(param("limit"))
        else:
            yield shape.ordered(entries, table)


def with_index(statement: AnySelect, rows: FromClause, index: str) -> AnySelect:
    """The statement with a hint to read the rows by an index; PostgreSQL has no hints."""
    statement = statement.with_hint(rows, f"FORCE INDEX ({index})", "mysql")
    return statement.with_hint(rows, f"INDEXED BY {index}", "sqlite")


def _choices(shape: Shape, column: str, number: int | None) -> Sequence[ColumnElement[bool]]:
    """A condition for each value of a column."""
    rows = shape.table.c[column]
    if number is not None:
        return [one_of(rows, [value]) for value in shape.parameters(number)]
    known = KNOWN_VALUES[shape.table_name, column]
    return [rows < known[0], *(rows == value for value in known), rows > known[-1]]
