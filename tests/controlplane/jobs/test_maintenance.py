# SPDX-License-Identifier: Apache-2.0
"""Maintenance deletes only old data, and stores what the cache may lose."""

from datetime import UTC, datetime, timedelta

from pipecd.controlplane.auth.credentials import LAST_USED_KEY
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.maintenance import (
    delete_old_outputs,
    delete_stale_stats,
    store_key_uses,
    time_out_commands,
)
from pipecd.controlplane.usecases.piped_connections import STATS_KEY, PipedConnections
from pipecd.model.clock import to_unix
from pipecd.model.command import CommandStatus
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.command_pb2 import Command

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def command(id: str, *, hours_ago: float, handled: bool = False) -> Command:
    at = to_unix(NOW - timedelta(hours=hours_ago))
    return Command(
        id=id,
        piped_id="piped",
        project_id="demo",
        application_id="app",
        commander="someone",
        type=Command.SYNC_APPLICATION,
        status=CommandStatus.SUCCEEDED if handled else CommandStatus.NOT_HANDLED_YET,  # pyright: ignore[reportArgumentType]
        sync_application=Command.SyncApplication(application_id="app"),
        handled_at=at if handled else 0,
        created_at=at,
        updated_at=at,
    )


async def test_commands_unhandled_for_a_day_time_out(stores: Stores, bus: MemoryBus) -> None:
    commands = stores.commands
    for one in (command("old", hours_ago=25), command("new", hours_ago=23)):
        await commands.add(one)
    assert await time_out_commands(commands, bus, now=lambda: NOW) == 1
    assert (await commands.get("old")).status == CommandStatus.TIMEOUT
    assert (await commands.get("old")).handled_at == to_unix(NOW)
    assert (await commands.get("new")).status == CommandStatus.NOT_HANDLED_YET


async def test_stats_of_offline_pipeds_are_deleted_after_a_day(stores: Stores) -> None:
    cache = stores.cache
    await PipedConnections(cache, lambda: NOW - timedelta(hours=25)).report("offline", b"")
    await PipedConnections(cache, lambda: NOW - timedelta(hours=23)).report("online", b"")
    await cache.put_field(STATS_KEY, "damaged", b"{")
    assert await delete_stale_stats(cache, now=lambda: NOW) == 2
    assert set(await cache.fields(STATS_KEY)) == {"online"}


async def test_command_outputs_are_deleted_after_two_days(stores: Stores) -> None:
    for one in (
        command("old", hours_ago=49, handled=True),
        command("new", hours_ago=47, handled=True),
    ):
        await stores.commands.add(one)
    for name in ("old", "new", "unknown"):
        await stores.files.put(f"command-output/{name}.json", b"{}")
    assert await delete_old_outputs(stores.files, stores.commands, now=lambda: NOW) == 2
    assert await stores.files.list("command-output/") == ("command-output/new.json",)


async def test_the_output_of_a_command_that_is_being_handled_stays(stores: Stores) -> None:
    await stores.commands.add(command("new", hours_ago=1))
    await stores.files.put("command-output/new.json", b"{}")
    assert await delete_old_outputs(stores.files, stores.commands, now=lambda: NOW) == 0


async def test_the_last_use_of_a_key_is_stored_and_never_goes_back(stores: Stores) -> None:
    for id, used_at, disabled in (
        ("a", 5, False),
        ("b", 90, False),
        ("c", 0, False),
        ("d", 0, True),
    ):
        await stores.api_keys.add(
            APIKey(
                id=id,
                name=id,
                key_hash="hash",
                project_id="demo",
                creator="someone",
                last_used_at=used_at,
                disabled=disabled,
                updated_at=7,
            )
        )
    cached = {"a": b"10", "b": b"20", "d": b"30", "gone": b"40", "c": b"soon"}
    for id, at in cached.items():
        await stores.cache.put_field(LAST_USED_KEY, id, at)
    assert await store_key_uses(stores.cache, stores.api_keys) == 1
    stored = await stores.api_keys.get_many(("a", "b", "c", "d"))
    assert {id: key.last_used_at for id, key in stored.items()} == {
        "a": 10,
        "b": 90,
        "c": 0,
        "d": 0,
    }
    # Using a key does not update it.
    assert stored["a"].updated_at == 7
    assert await store_key_uses(stores.cache, stores.api_keys) == 0
