# SPDX-License-Identifier: Apache-2.0
"""What is computed from a document, and how texts compare, in the words of each engine."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Computed, String, or_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import NullType, UserDefinedType


class Document(UserDefinedType[str]):
    """JSON that goes in and out as the text it is."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


class ExactText(String):
    """A text of which every character counts, also its case and spaces at its end."""

    cache_ok = True


@compiles(ExactText, "mysql")
def _exact_text_of_mysql(element: ExactText, compiler: Any, **__: Any) -> str:
    collation = "utf8mb4_nopad_bin" if compiler.dialect.is_mariadb else "utf8mb4_0900_bin"
    return f"VARCHAR({element.length}) CHARACTER SET utf8mb4 COLLATE {collation}"


# The order of bytes is the same on every machine and the quickest to compare.
@compiles(ExactText, "postgresql")
def _exact_text_of_postgresql(element: ExactText, *_: Any, **__: Any) -> str:
    return f'VARCHAR({element.length}) COLLATE "C"'


class UpstreamText(String):
    """A text column of upstream's tables; on MySQL its collation is that of the database."""

    cache_ok = True


@compiles(UpstreamText, "postgresql")
def _upstream_text_of_postgresql(element: UpstreamText, *_: Any, **__: Any) -> str:
    return f'VARCHAR({element.length}) COLLATE "C"'


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


def mysql_expression(path: str, reads: Reads, *, is_mariadb: bool = False) -> str:
    # MariaDB does not know the arrow.
    value = f"json_unquote(json_extract(Data, '$.{path}'))" if is_mariadb else f'data->>"$.{path}"'
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
def _computed_by_mysql(element: FromDocument, compiler: Any, **__: Any) -> str:
    is_mariadb: bool = compiler.dialect.is_mariadb
    value = mysql_expression(element.path, element.reads, is_mariadb=is_mariadb)
    return f"GENERATED ALWAYS AS ({value}) {'STORED' if element.persisted else 'VIRTUAL'}"


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
def _flag_by_mysql(element: FlagInDocument, compiler: Any, **__: Any) -> str:
    is_mariadb: bool = compiler.dialect.is_mariadb
    return mysql_expression(element.path, Reads.FLAG, is_mariadb=is_mariadb)


@compiles(FlagInDocument, "postgresql")
def _flag_by_postgresql(element: FlagInDocument, *_: Any, **__: Any) -> str:
    return postgresql_expression(element.path, Reads.FLAG)


class SameText(ColumnElement[Any]):
    """The column is exactly one of the texts; collations of MySQL overlook case and accents."""

    inherit_cache = False
    # A condition as it stands; of a boolean, SQLite would be asked whether it equals 1.
    type = NullType()

    def __init__(self, column: ColumnElement[str], texts: Sequence[ColumnElement[str]]) -> None:
        self.column = column
        self.texts = texts
        # The plain comparison is the one that an index can answer.
        self.plain = column == texts[0] if len(texts) == 1 else column.in_(texts)


@compiles(SameText)
def _same_text(element: SameText, compiler: Any, **options: Any) -> str:
    return compiler.process(element.plain, **options)


@compiles(SameText, "mysql")
def _same_text_by_mysql(element: SameText, compiler: Any, **options: Any) -> str:
    plain = compiler.process(element.plain, **options)
    column = compiler.process(element.column, **options)
    texts = ", ".join(compiler.process(text, **options) for text in element.texts)
    return f"({plain} AND CAST(CONVERT({column} USING utf8mb4) AS BINARY) IN ({texts}))"


class OneByOne(ColumnElement[Any]):
    """The column is one of the numbers, and another one is one of several as well.

    PostgreSQL before 17 reads an index once for every combination of two lists. Spelled out, one
    list is compared with what is found by the other.
    """

    inherit_cache = False
    type = NullType()

    def __init__(self, column: ColumnElement[int], values: Sequence[ColumnElement[int]]) -> None:
        self.plain = column.in_(values)
        self.each = or_(*(column == value for value in values))


@compiles(OneByOne)
def _one_by_one(element: OneByOne, compiler: Any, **options: Any) -> str:
    return compiler.process(element.plain, **options)


@compiles(OneByOne, "postgresql")
def _one_by_one_by_postgresql(element: OneByOne, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.each, **options)})"


class InIndexes(ColumnElement[Any]):
    """The conditions that rows must meet; MySQL, which would read every row, is given their ids."""

    inherit_cache = False
    type = NullType()

    def __init__(self, plain: ColumnElement[bool], is_found: ColumnElement[bool]) -> None:
        self.plain = plain
        self.is_found = is_found


@compiles(InIndexes)
def _in_indexes(element: InIndexes, compiler: Any, **options: Any) -> str:
    return compiler.process(element.plain, **options)


@compiles(InIndexes, "mysql")
def _in_indexes_by_mysql(element: InIndexes, compiler: Any, **options: Any) -> str:
    return compiler.process(element.is_found, **options)


class SameDocument(ColumnElement[Any]):
    """The document is still the one of this text."""

    inherit_cache = False
    type = NullType()

    def __init__(self, column: ColumnElement[str], text: ColumnElement[str]) -> None:
        self.column = column
        self.text = text


@compiles(SameDocument)
def _same_document(element: SameDocument, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(e, **options) for e in (element.column, element.text))
    return f"{column} = {text}"


@compiles(SameDocument, "mysql")
def _same_document_by_mysql(element: SameDocument, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(e, **options) for e in (element.column, element.text))
    # MySQL stores no text but its meaning; MariaDB stores the text.
    return (
        f"{column} = {text}" if compiler.dialect.is_mariadb else f"{column} = CAST({text} AS JSON)"
    )


@compiles(SameDocument, "postgresql")
def _same_document_by_postgresql(element: SameDocument, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(e, **options) for e in (element.column, element.text))
    return f"{column}::text = {text}"
