# SPDX-License-Identifier: Apache-2.0
"""Statements of SQLAlchemy Core as the text that a driver runs, compiled once.

Most work is one statement, which sees one state and is done or not by itself: no transaction has
to be begun and ended for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Delete, Dialect, Insert, Update

from pipecd.controlplane.datastore.database import (
    NOTHING,
    AnySelect,
    Lone,
    Reading,
    Row,
    Value,
    Values,
    Writing,
)
from pipecd.model.errors import UserMistake

AnyStatement = AnySelect | Insert | Update | Delete

MOST_STATEMENTS = 2048


@dataclass(frozen=True)
class Ready:
    """The text of a statement, its parameters in order, and the values it carries itself."""

    text: str
    names: Sequence[str]
    fixed: Mapping[str, Value]

    def arguments(self, values: Values) -> list[Value]:
        """The values in the order of the text."""
        found = [values[n] if n in values else self.fixed[n] for n in self.names]
        for value in found:
            # Some engines cannot hold it, so that none of them takes it.
            if isinstance(value, str) and "\0" in value:
                raise UserMistake("a text with a zero byte cannot be stored or searched for")
        return found


@dataclass(frozen=True)
class Alone:
    """The work of one statement that changes something."""

    statement: Lone
    values: Values

    def __call__(self, writing: Writing) -> int:
        return writing.run(self.statement, self.values)


class AskedTwice(Exception):
    """The work has a second question, which must see the same state as the first."""


class OneQuestion:
    """Answers a single question."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._asked = False

    def rows(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        if self._asked:
            raise AskedTwice
        self._asked = True
        return self._reading.rows(statement, values)


class Statements:
    """The statements of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.ready = lru_cache(maxsize=MOST_STATEMENTS)(self._compile)

    def _compile(self, statement: AnyStatement) -> Ready:
        compiled = statement.compile(dialect=self.dialect)
        return Ready(str(compiled), compiled.positiontup or (), compiled.params)
