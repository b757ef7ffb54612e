# SPDX-License-Identifier: Apache-2.0
"""SQL of MySQL and MariaDB: columns, comparisons, and the statements of lists.

The indexes are upstream's: each contains one filtered column, the time of the last update, by which
lists are ordered, and the id. Filtered columns that are not in the index are computed from each
document that MySQL reads. So a page joins several indexes, starting with the one that has the
fewest matching entries, which a query counts first.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, FromClause, ScalarSelect, Table, and_, func, not_, select
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.ext.compiler import compiles

from pipecd.controlplane.datastore.expressions import (
    AnySelect,
    ExactText,
    FieldType,
    FromDocument,
    IsDeleted,
    Like,
    SameDocument,
    SameText,
)
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    SHORT_LIST,
    Comparison,
    Shape,
    Where,
    one_of,
)
from pipecd.controlplane.datastore.schema import ENGINES

# With fewer matching entries than this, starting with an index is fast whatever the other filters.
FEW_ENTRIES = 1 << 14


def mysql_dialect(*, is_mariadb: bool = False) -> MySQLDialect:
    """The dialect of the driver and the server."""
    return MySQLDialect(paramstyle="format", is_mariadb=is_mariadb)


def mysql_expression(path: str, field_type: FieldType, *, is_mariadb: bool = False) -> str:
    # MariaDB does not support the operator ->>.
    value = f"json_unquote(json_extract(Data, '$.{path}'))" if is_mariadb else f'data->>"$.{path}"'
    match field_type:
        case FieldType.TEXT | FieldType.NUMBER:
            return value
        case FieldType.TEXT_OR_EMPTY:
            return f'IFNULL({value}, "")'
        case FieldType.NUMBER_OR_ZERO:
            return f"IFNULL({value}, 0)"
        case FieldType.BOOLEAN:
            return f"IF({value} = 'true', True, False)"


@compiles(ExactText, "mysql")
def _exact_text(element: ExactText, compiler: Any, **__: Any) -> str:
    collation = "utf8mb4_nopad_bin" if compiler.dialect.is_mariadb else "utf8mb4_0900_bin"
    return f"VARCHAR({element.length}) CHARACTER SET utf8mb4 COLLATE {collation}"


@compiles(FromDocument, "mysql")
def _computed_column(element: FromDocument, compiler: Any, **__: Any) -> str:
    is_mariadb: bool = compiler.dialect.is_mariadb
    value = mysql_expression(element.path, element.field_type, is_mariadb=is_mariadb)
    return f"GENERATED ALWAYS AS ({value}) {'STORED' if element.persisted else 'VIRTUAL'}"


@compiles(IsDeleted, "mysql")
def _is_deleted(_: IsDeleted, compiler: Any, **__: Any) -> str:
    return mysql_expression("deleted", FieldType.BOOLEAN, is_mariadb=compiler.dialect.is_mariadb)


# Collations of MySQL ignore case and accents; the first comparison is the one that uses an index.
@compiles(SameText, "mysql")
def _same_text(element: SameText, compiler: Any, **options: Any) -> str:
    plain, column, *texts = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({plain} AND CAST(CONVERT({column} USING utf8mb4) AS BINARY) IN ({', '.join(texts)}))"


# JSON is compared with the case of its letters.
@compiles(Like, "mysql")
def _like(element: Like, compiler: Any, **options: Any) -> str:
    (pattern,) = (compiler.process(clause, **options) for clause in element.clauses)
    text, is_mariadb = "CAST(Data AS CHAR)", compiler.dialect.is_mariadb
    if element.path:
        text = mysql_expression(element.path, FieldType.TEXT, is_mariadb=is_mariadb)
    return f"LOWER({text}) LIKE LOWER({pattern}) ESCAPE '!'"


@compiles(SameDocument, "mysql")
def _same_document(element: SameDocument, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(clause, **options) for clause in element.clauses)
    # MySQL stores parsed JSON, MariaDB stores the text.
    return (
        f"{column} = {text}" if compiler.dialect.is_mariadb else f"{column} = CAST({text} AS JSON)"
    )


@lru_cache(maxsize=512)
def list_statement(shape: Shape, start: int | None = None) -> AnySelect:
    """The statement of a selection; `start` is the condition whose index a page starts with."""
    if shape.order != NEWEST_UPDATE:
        return shape.documents(*shape.conditions())
    if shape.limited and _is_covered_by_indexes(shape, start):
        page = _page_of_ids(shape, start).subquery("page")
        return shape.documents(shape.table.c.Id.in_(select(page.c.Id)))
    # Without a hint, MariaDB scans a list from its beginning to get to a later page.
    statement = shape.documents(*shape.conditions())
    return _force_index(statement, shape.table, _ordered_indexes(shape.table, shape.wheres))


@lru_cache(maxsize=512)
def count_statement(shape: Shape) -> AnySelect | None:
    """Counts the documents of each condition that a page may start with; None if there is none.

    It counts no further than FEW_ENTRIES.
    """
    starts = _possible_starts(shape)
    if not shape.limited or shape.order != NEWEST_UPDATE or not starts:
        return None
    counts: list[ScalarSelect[int]] = []
    for number in starts:
        rows = shape.table.alias()
        ids: AnySelect = select(rows.c.Id).where(*_conditions_of_index(rows, shape, number))
        ids = _force_index(ids, rows, _ordered_indexes(shape.table, (shape.wheres[number],)))
        few = ids.limit(FEW_ENTRIES).subquery()
        counts.append(select(func.count()).select_from(few).scalar_subquery())
    return select(*counts)


def choose_start(shape: Shape, counts: Sequence[int]) -> int | None:
    """The condition that the fewest documents meet; None if all match FEW_ENTRIES or more."""
    least = min(counts, default=FEW_ENTRIES)
    return _possible_starts(shape)[counts.index(least)] if least < FEW_ENTRIES else None


def _possible_starts(shape: Shape) -> list[int]:
    """The conditions whose index a page may start with.

    If all conditions have a single value, MySQL estimates their numbers of rows well itself.
    """
    filters = [i for i, where in enumerate(shape.wheres) if where.comparison is Comparison.ONE_OF]
    if all(shape.wheres[i].parameters == 1 for i in filters):
        return []
    return [i for i in filters if _is_covered_by_indexes(shape, i)]


def _is_covered_by_indexes(shape: Shape, start: int | None) -> bool:
    """Whether the conditions of a list can be answered from several indexes together."""
    filters = {i: w for i, w in enumerate(shape.wheres) if w.comparison is Comparison.ONE_OF}
    return (
        len(filters) > 1
        and all(_ordered_indexes(shape.table, (where,)) for where in filters.values())
        # Each value of the other conditions needs its own join.
        and all(i == start or where.parameters <= SHORT_LIST for i, where in filters.items())
        and all(
            where.comparison in (Comparison.ONE_OF, Comparison.LABELLED)
            or where.column == NEWEST_UPDATE.column
            for where in shape.wheres
        )
    )


def _page_of_ids(shape: Shape, start: int | None) -> AnySelect:
    """Selects the ids of a page from indexes alone."""
    table = shape.table
    filters = [i for i, where in enumerate(shape.wheres) if where.comparison is Comparison.ONE_OF]
    first, *others = sorted(filters, key=lambda i: (i != start, shape.wheres[i].parameters))
    rows = table.alias()
    ids: AnySelect = select(rows.c.Id).where(*_conditions_of_index(rows, shape, first))
    ids = _force_index(ids, rows, _ordered_indexes(table, (shape.wheres[first],)))
    for i, where in enumerate(shape.wheres):
        if where.comparison is Comparison.LABELLED:
            ids = ids.where(shape.condition(rows, i))
    joined: FromClause = rows
    for i, complement in _lookup_order(shape, others):
        where, matches = shape.wheres[i], list[ColumnElement[Any]]()
        for value in shape.parameters(i, complement=complement):
            one = table.alias()
            is_same = and_(one.c.Id == rows.c.Id, one.c.UpdatedAt == rows.c.UpdatedAt)
            is_match = and_(is_same, one_of(one.c[where.column], [value]))
            joined = joined.join(one, is_match, isouter=complement or where.parameters > 1)
            ids = _force_index(ids, one, _ordered_indexes(table, (where,)))
            matches.append(one.c.Id)
        is_any = func.coalesce(*matches).is_not(None)
        ids = ids.where(not_(is_any) if complement else is_any)
    return shape.ordered(ids.select_from(joined), rows)


def _lookup_order(shape: Shape, numbers: Iterable[int]) -> Iterable[tuple[int, bool]]:
    """The conditions to join, the most selective ones first; True marks a complement.

    If a condition has most values of an enum, its complement is joined first, since it rejects rows
    with fewer lookups. The condition itself is joined as well, because a stored value may not be a
    member of the enum.
    """
    wheres = [(i, shape.wheres[i]) for i in numbers]
    lookups = [(where.complement > 0, where.parameters, i, False) for i, where in wheres]
    lookups += [(False, where.complement, i, True) for i, where in wheres if where.complement]
    return [(i, complement) for _, _, i, complement in sorted(lookups)]


def _conditions_of_index(
    rows: FromClause, shape: Shape, number: int
) -> Iterator[ColumnElement[bool]]:
    """The conditions that the index of a condition can answer: its column and the update time."""
    for i, where in enumerate(shape.wheres):
        if i == number or where.column == NEWEST_UPDATE.column:
            yield shape.condition(rows, i)
    yield from shape.after(rows)


def _force_index(statement: AnySelect, rows: FromClause, indexes: Sequence[str]) -> AnySelect:
    """Adds a hint that restricts MySQL to these indexes, if there are any."""
    hint = f"FORCE INDEX ({', '.join(indexes)})"
    return statement.with_hint(rows, hint, "mysql") if indexes else statement


def _ordered_indexes(table: Table, wheres: Iterable[Where]) -> list[str]:
    """The indexes of a filtered column followed by the column that lists are ordered by."""
    filtered = {where.column for where in wheres if where.comparison is Comparison.ONE_OF}
    if "Id" in filtered:
        return []
    return sorted(
        str(index.name)
        for index in table.indexes
        if "mysql" in index.info.get(ENGINES, ("mysql",))
        and [column.name for column in index.columns][1:] == [NEWEST_UPDATE.column]
        and index.columns[0].name in filtered
    )
