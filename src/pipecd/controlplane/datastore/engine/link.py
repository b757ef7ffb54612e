# SPDX-License-Identifier: Apache-2.0
"""A connection to a database server, and the two ways in which it may fail beyond a refusal."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from pipecd.controlplane.datastore.database import Row, Value

Arguments = Sequence[Value]


class Lost(Exception):
    """The connection is gone or the server is about to go; another connection may do."""


class Collided(Exception):
    """The transaction lost against another one; the same work may succeed now."""


class Begin(Enum):
    """What a transaction is for."""

    # One state of all tables, for several questions.
    SNAPSHOT = "snapshot"
    # Rows that are read for update are the latest.
    WRITE = "write"


class Link(Protocol):
    """One connection, used by one thread at a time; outside of `begin` each statement is its own.

    Every method raises Lost or Collided, Duplicate, or an error that can be told to the caller.
    """

    def rows(self, text: str, arguments: Arguments) -> Sequence[Row]: ...

    def run(self, text: str, arguments: Arguments) -> int: ...

    def run_many(self, text: str, arguments: Sequence[Arguments]) -> None: ...

    def begin(self, what: Begin) -> None: ...

    def commit(self) -> None: ...

    def roll_back(self) -> None: ...

    def close(self) -> None:
        """Never fails."""
        ...

    def abort(self) -> None:
        """Ends whatever another thread waits for on this connection; that thread sees Lost."""
        ...
