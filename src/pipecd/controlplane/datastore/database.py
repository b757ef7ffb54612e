# SPDX-License-Identifier: Apache-2.0
"""What an engine must offer: pieces of work, each of them one transaction.

A piece of work is a plain function over statements of SQLAlchemy Core. It may run on another thread
and, after a deadlock or a lost transaction, more than once; it must not touch anything but its
transaction. An asynchronous driver runs it through `AsyncConnection.run_sync`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import BindParameter, Delete, Insert, Select, Update, bindparam

T = TypeVar("T")

Value = str | int | float | bytes | bool | None
Values = Mapping[str, Value]
Row = tuple[Any, ...]
AnySelect = Select[*tuple[Any, ...]]

NOTHING: Values = {}


def given(name: str) -> BindParameter[Any]:
    """A parameter of a statement, filled in by name when it runs."""
    return bindparam(name)


class Duplicate(Exception):
    """A row with this primary key exists already."""


class Reading(Protocol):
    """One consistent view of the database."""

    def rows(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        """The rows found, with the named parameters filled in."""
        ...


class Writing(Reading, Protocol):
    """One transaction; what it raises undoes all of it."""

    def run(self, statement: Insert | Update | Delete, values: Values = NOTHING) -> int:
        """How many rows were changed; Duplicate when a primary key is taken."""
        ...


class Database(Protocol):
    """One database with the tables of `schema`."""

    async def read(self, work: Callable[[Reading], T]) -> T: ...

    async def write(self, work: Callable[[Writing], T]) -> T:
        """The result of the work once it is committed."""
        ...
