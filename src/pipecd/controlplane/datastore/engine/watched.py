# SPDX-License-Identifier: Apache-2.0
"""A database whose pieces of work are counted and traced."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pipecd.controlplane.datastore.database import (
    NOTHING,
    AnySelect,
    Database,
    Lone,
    Reading,
    Row,
    Values,
    Writing,
)
from pipecd.observe.operations import ObservedOperation, OperationObserver

T = TypeVar("T")
_PART = "datastore"


class WatchedDatabase:
    """Passes everything on and tells watchers of it."""

    def __init__(self, database: Database, watchers: Sequence[OperationObserver]) -> None:
        self._database, self._watchers = database, tuple(watchers)
        self.weighs = database.weighs

    async def glance(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        with ObservedOperation(self._watchers, _PART, "read"):
            return await self._database.glance(statement, values)

    async def change(self, statement: Lone, values: Values = NOTHING) -> int:
        with ObservedOperation(self._watchers, _PART, "write"):
            return await self._database.change(statement, values)

    async def read(self, work: Callable[[Reading], T]) -> T:
        with ObservedOperation(self._watchers, _PART, "read"):
            return await self._database.read(work)

    async def write(self, work: Callable[[Writing], T]) -> T:
        with ObservedOperation(self._watchers, _PART, "write"):
            return await self._database.write(work)

    async def catch_up(self, table: str, project: str) -> None:
        with ObservedOperation(self._watchers, _PART, "catch up"):
            await self._database.catch_up(table, project)
