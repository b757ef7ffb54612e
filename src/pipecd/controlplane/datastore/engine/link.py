# SPDX-License-Identifier: Apache-2.0
"""A connection to a database server, and the ways in which it may fail."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from pipecd.controlplane.datastore.database import Row, Value
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake

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


def closed() -> Unavailable:
    return Unavailable("the database is closed")


def full(text: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the database has no room left: {text}", hint="look at its disk and limits"
    )


def not_permitted(text: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the database refuses us: {text}", hint="look at the rights of its user"
    )


def cannot_hold(text: str) -> UserMistake:
    return UserMistake(f"the database cannot hold this: {text}")


def too_slow(_text: str) -> StorageUnavailable:
    return StorageUnavailable("the database took too long to answer", hint="try again later")


def locked_out(name: str, text: str) -> UserMistake:
    return UserMistake(
        f"the database {name} does not let us in: {text}",
        hint="check the user, the password and the name of the database",
    )


def unreachable(name: str, text: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the database {name} cannot be reached: {text}",
        hint="check that the server runs and that the address is right",
    )
