# SPDX-License-Identifier: Apache-2.0
"""SQL constructs whose syntax differs by engine, with the syntax of SQLite.

The modules of the other engines add theirs with `@compiles`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from sqlalchemy import (
    BindParameter,
    Boolean,
    ColumnElement,
    Computed,
    Select,
    String,
    bindparam,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, UserDefinedType

Value = str | int | float | bytes | bool | None
Values = Mapping[str, Value]
Row = tuple[Any, ...]
AnySelect = Select[*tuple[Any, ...]]

NO_VALUES: Values = {}


def param(name: str) -> BindParameter[Any]:
    """A parameter of a statement, filled in by name when it runs."""
    return bindparam(name)


class Document(UserDefinedType[str]):
    """JSON that is written and read as text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


class ExactText(String):
    """A text that is compared exactly, with its case and trailing spaces."""

    cache_ok = True


class UpstreamText(String):
    """A text column of upstream's tables; on MySQL its collation is that of the database."""

    cache_ok = True


class FieldType(Enum):
    """The type of a computed column, and its value when the document has no such field."""

    TEXT = "text or null"
    TEXT_OR_EMPTY = "text or empty"
    NUMBER = "number or null"
    NUMBER_OR_ZERO = "number or zero"
    BOOLEAN = "true or false"


class FromDocument(Computed):
    """A column computed from a path of the document."""

    def __init__(self, path: str, field_type: FieldType, *, stored: bool) -> None:
        super().__init__(sqlite_expression(path, field_type), persisted=stored)
        self.path = path
        self.field_type = field_type

    # SQLAlchemy copies the columns of a table with this method; the inherited one loses the path.
    def _copy(self, **_: Any) -> "FromDocument":
        return FromDocument(self.path, self.field_type, stored=bool(self.persisted))


def sqlite_expression(path: str, field_type: FieldType) -> str:
    value = f"json_extract(Data, '$.{path}')"
    match field_type:
        case FieldType.TEXT | FieldType.NUMBER:
            return value
        case FieldType.TEXT_OR_EMPTY:
            return f"ifnull({value}, '')"
        case FieldType.NUMBER_OR_ZERO | FieldType.BOOLEAN:
            return f"ifnull({value}, 0)"


# Virtual columns would be computed again for every index at every write.
@compiles(FromDocument, "sqlite")
def _computed_by_sqlite(element: FromDocument, *_: Any, **__: Any) -> str:
    return f"GENERATED ALWAYS AS ({sqlite_expression(element.path, element.field_type)}) STORED"


class IsDeleted(FunctionElement[bool]):
    """The flag `deleted` of a document, for which upstream has no column."""

    inherit_cache = True
    type = Boolean()


@compiles(IsDeleted, "sqlite")
def _is_deleted_by_sqlite(*_: Any, **__: Any) -> str:
    return sqlite_expression("deleted", FieldType.BOOLEAN)


class SameText(FunctionElement[Any]):
    """The column is exactly one of the texts; collations of MySQL ignore case and accents."""

    inherit_cache = True
    # With the type Boolean, SQLAlchemy would append `= 1` on SQLite.
    type = NullType()

    def __init__(self, column: ColumnElement[str], texts: Sequence[ColumnElement[str]]) -> None:
        # The plain comparison is the one that can use an index.
        plain = column == texts[0] if len(texts) == 1 else column.in_(texts)
        super().__init__(plain, column, *texts)


@compiles(SameText)
def _same_text(element: SameText, compiler: Any, **options: Any) -> str:
    plain, *_ = element.clauses
    return compiler.process(plain, **options)


class AsUpstreamText(FunctionElement[Any]):
    """A text of our tables in the collation of upstream's, so that an index of these serves it."""

    inherit_cache = True
    type = NullType()

    def __init__(self, text: ColumnElement[str]) -> None:
        super().__init__(text)


@compiles(AsUpstreamText)
def _as_upstream_text(element: AsUpstreamText, compiler: Any, **options: Any) -> str:
    (text,) = (compiler.process(clause, **options) for clause in element.clauses)
    return text


class Like(FunctionElement[Any]):
    """A text of the document matches a pattern, whatever the case of its ASCII letters.

    `path` names the text, and an empty one means the whole document. The escape character of
    patterns is an exclamation mark.
    """

    inherit_cache = False
    type = NullType()

    def __init__(self, path: str, pattern: ColumnElement[str]) -> None:
        super().__init__(pattern)
        self.path = path


@compiles(Like, "sqlite")
def _like_of_sqlite(element: Like, compiler: Any, **options: Any) -> str:
    (pattern,) = (compiler.process(clause, **options) for clause in element.clauses)
    text = sqlite_expression(element.path, FieldType.TEXT) if element.path else "Data"
    return f"{text} LIKE {pattern} ESCAPE '!'"


class MayContain(FunctionElement[Any]):
    """The bytes of a column contain others; only engines that filter faster than they send do so.

    The caller has to look for them itself.
    """

    inherit_cache = True
    type = NullType()

    def __init__(self, column: ColumnElement[bytes], part: ColumnElement[bytes]) -> None:
        super().__init__(column, part)


@compiles(MayContain)
def _may_contain(*_: Any, **__: Any) -> str:
    return "1 = 1"


class SameDocument(FunctionElement[Any]):
    """The stored document equals this text."""

    inherit_cache = True
    type = NullType()

    def __init__(self, column: ColumnElement[str], text: ColumnElement[str]) -> None:
        super().__init__(column, text)


@compiles(SameDocument)
def _same_document(element: SameDocument, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} = {text}"
