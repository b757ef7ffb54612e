# SPDX-License-Identifier: Apache-2.0
"""Values about the database itself: written as often as one likes, the last one counts."""

import asyncio

import pytest

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.meta import add_meta, read_meta, remove_meta, write_meta
from pipecd.controlplane.datastore.watermarks import read_watermark, write_watermark


async def test_a_value_is_added_replaced_and_removed(database: Database) -> None:
    def values(transaction: Transaction) -> list[str | None]:
        found: list[str | None] = [read_meta(transaction, "a")]
        # Engines count an update that changes nothing differently.
        for value in ("one", "one", "two"):
            write_meta(transaction, "a", value)
            found.append(read_meta(transaction, "a"))
        remove_meta(transaction, "a")
        remove_meta(transaction, "a")
        return [*found, read_meta(transaction, "a")]

    assert await database.write(values) == [None, "one", "one", "two", None]


@pytest.mark.usefixtures("row_locks")
async def test_of_values_that_are_added_at_once_one_stays(database: Database) -> None:
    async def add(value: str) -> str | None:
        await database.write(lambda transaction: add_meta(transaction, "a", value))
        return await database.read(lambda transaction: read_meta(transaction, "a"))

    found = await asyncio.gather(*(add(str(number)) for number in range(8)))
    assert len(set(found)) == 1
    assert await add("later") == found[0]


async def test_an_empty_value_is_one(database: Database) -> None:
    await database.write(lambda transaction: write_meta(transaction, "a", ""))
    assert await database.read(lambda transaction: read_meta(transaction, "a")) == ""


@pytest.mark.usefixtures("row_locks")
async def test_processes_that_add_a_value_at_once_all_succeed(database: Database) -> None:
    async def write(value: str) -> None:
        await database.write(lambda transaction: write_meta(transaction, "a", value))

    values = [str(number) for number in range(8)]
    await asyncio.gather(*map(write, values))
    assert await database.read(lambda transaction: read_meta(transaction, "a")) in values


async def test_a_watermark_that_has_not_moved_is_written_again(database: Database) -> None:
    for _ in range(2):
        await database.write(lambda transaction: write_watermark(transaction, "w", 7))
    assert await database.read(lambda t: read_watermark(t, "missing", "w")) == 7
    assert await database.read(lambda t: read_watermark(t, "missing")) is None
