# SPDX-License-Identifier: Apache-2.0
"""What an engine must offer: single statements, and pieces of work that are one transaction each.

A piece of work is a plain function over statements of SQLAlchemy Core. It may run on another thread
and, after a deadlock or a lost transaction, more than once; it must not touch anything but its
transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import BindParameter, Delete, Insert, Select, Update, bindparam

T = TypeVar("T")

Value = str | int | float | bytes | bool | None
Values = Mapping[str, Value]
Row = tuple[Any, ...]
AnySelect = Select[*tuple[Any, ...]]
Lone = Insert | Update

NOTHING: Values = {}


def given(name: str) -> BindParameter[Any]:
    """A parameter of a statement, filled in by name when it runs."""
    return bindparam(name)


class Duplicate(Exception):
    """A row with this primary key exists already.

    Some engines end a transaction with it: work that catches it must write nothing else. Work that
    lets it out was overtaken by another, and is done once more where there can be others.
    """


class Doubtful(Exception):
    """A statement that stood alone may have been done or not: its answer was lost, or it collided.

    Whoever ran it looks at what is stored, in a transaction.
    """


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

    def run_many(self, statement: Insert | Update | Delete, values: Sequence[Values]) -> None:
        """Runs the statement once for each of the values, in as few steps as the engine can."""
        ...


class Database(Protocol):
    """One database with the tables of `schema`."""

    @property
    def weighs(self) -> bool:
        """Whether it pays to count before a list is read, since no index holds all of it."""
        ...

    async def glance(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        """The few rows that an index finds at once; an engine may answer on the event loop."""
        ...

    async def change(self, statement: Lone, values: Values = NOTHING) -> int:
        """How many rows a statement by itself has changed, once it is committed.

        Duplicate when a primary key is taken; Doubtful when nobody knows whether it was done.
        """
        ...

    async def read(self, work: Callable[[Reading], T]) -> T: ...

    async def write(self, work: Callable[[Writing], T]) -> T:
        """The result of the work once it is committed."""
        ...

    async def catch_up(self, table: str, project: str) -> None:
        """Brings the label index up to what another program may have written to the table."""
        ...
