# SPDX-License-Identifier: Apache-2.0
"""SQL of MySQL and MariaDB: columns, comparisons, and the statements of lists.

The indexes are upstream's: each contains one filtered column, the time of the last update, by which
lists are ordered, and the id. Filtered columns that are not in the index are computed from each
document that MySQL reads. So a page joins several indexes, starting with the one that has the
fewest matching entries, which a query counts first.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.ext.compiler import compiles

from pipecd.controlplane.datastore.expressions import (
    AnySelect,
    AsUpstreamText,
    ExactText,
    FieldType,
    FromDocument,
    IsDeleted,
    Like,
    MayContain,
    SameDocument,
    SameText,
)
from pipecd.controlplane.datastore.query import NEWEST_UPDATE, Comparison, Shape, Where
from pipecd.controlplane.datastore.schema import ENGINES


class UpstreamDialect(MySQLDialect):
    """The dialect of a server with the tables of upstream.

    `text_collation` is that of their text columns: the default of the database they were created
    in.
    """

    text_collation = "utf8mb4_general_ci"
    supports_statement_cache = True


def mysql_dialect(*, is_mariadb: bool = False) -> UpstreamDialect:
    """The dialect of the driver and the server."""
    return UpstreamDialect(paramstyle="format", is_mariadb=is_mariadb)


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


@compiles(AsUpstreamText, "mysql")
def _as_upstream_text(element: AsUpstreamText, compiler: Any, **options: Any) -> str:
    (text,) = (compiler.process(clause, **options) for clause in element.clauses)
    collation: str = compiler.dialect.text_collation
    return f"CONVERT({text} USING {collation.partition('_')[0]}) COLLATE {collation}"


# JSON is compared with the case of its letters.
@compiles(Like, "mysql")
def _like(element: Like, compiler: Any, **options: Any) -> str:
    (pattern,) = (compiler.process(clause, **options) for clause in element.clauses)
    text, is_mariadb = "CAST(Data AS CHAR)", compiler.dialect.is_mariadb
    if element.path:
        text = mysql_expression(element.path, FieldType.TEXT, is_mariadb=is_mariadb)
    return f"LOWER({text}) LIKE LOWER({pattern}) ESCAPE '!'"


# Finding a text takes a third of the CPU time of sending the column.
@compiles(MayContain, "mysql")
def _may_contain(element: MayContain, compiler: Any, **options: Any) -> str:
    column, part = (compiler.process(clause, **options) for clause in element.clauses)
    return f"INSTR({column}, {part}) > 0"


@compiles(SameDocument, "mysql")
def _same_document(element: SameDocument, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(clause, **options) for clause in element.clauses)
    # MySQL stores parsed JSON, MariaDB stores the text.
    return (
        f"{column} = {text}" if compiler.dialect.is_mariadb else f"{column} = CAST({text} AS JSON)"
    )


@lru_cache(maxsize=512)
def list_statement(shape: Shape) -> AnySelect:
    """The statement of a list that is not a page from ranges of an index."""
    statement = shape.documents(*shape.conditions())
    if shape.order != NEWEST_UPDATE:
        return statement
    # Without a hint, MariaDB scans a list from its beginning to get to a later page.
    indexes = _ordered_indexes(shape.table, shape.wheres)
    hint = f"FORCE INDEX ({', '.join(indexes)})"
    return statement.with_hint(shape.table, hint, "mysql") if indexes else statement


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
