# SPDX-License-Identifier: Apache-2.0
"""Jobs forget only what is old, and keep what may be lost."""

from datetime import UTC, datetime, timedelta

from pipecd.controlplane.auth.credentials import LAST_USED_KEY
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.key_uses import keep_key_uses
from pipecd.controlplane.jobs.orphan_commands import time_out_orphans
from pipecd.controlplane.jobs.preview_outputs import remove_old_outputs
from pipecd.controlplane.jobs.stale_stats import forget_stale_stats
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


async def test_commands_nobody_answered_for_a_day_are_given_up(
    stores: Stores, bus: MemoryBus
) -> None:
    commands = stores.commands
    for one in (command("old", hours_ago=25), command("new", hours_ago=23)):
        await commands.add(one)
    assert await time_out_orphans(commands, bus, now=lambda: NOW) == 1
    assert (await commands.get("old")).status == CommandStatus.TIMEOUT
    assert (await commands.get("old")).handled_at == to_unix(NOW)
    assert (await commands.get("new")).status == CommandStatus.NOT_HANDLED_YET


async def test_reports_of_silent_pipeds_are_forgotten_after_a_day(stores: Stores) -> None:
    cache = stores.cache
    await PipedConnections(cache, lambda: NOW - timedelta(hours=25)).report("silent", b"")
    await PipedConnections(cache, lambda: NOW - timedelta(hours=23)).report("talking", b"")
    await cache.put_field(STATS_KEY, "garbled", b"{")
    assert await forget_stale_stats(cache, now=lambda: NOW) == 2
    assert set(await cache.fields(STATS_KEY)) == {"talking"}


async def test_outputs_are_kept_for_two_days(stores: Stores) -> None:
    for one in (
        command("old", hours_ago=49, handled=True),
        command("new", hours_ago=47, handled=True),
    ):
        await stores.commands.add(one)
    for name in ("old", "new", "unknown"):
        await stores.files.put(f"command-output/{name}.json", b"{}")
    assert await remove_old_outputs(stores.files, stores.commands, now=lambda: NOW) == 2
    assert await stores.files.list("command-output/") == ("command-output/new.json",)


async def test_an_output_of_a_command_that_is_just_being_handled_is_kept(stores: Stores) -> None:
    await stores.commands.add(command("new", hours_ago=1))
    await stores.files.put("command-output/new.json", b"{}")
    assert await remove_old_outputs(stores.files, stores.commands, now=lambda: NOW) == 0


async def test_the_last_use_of_a_key_is_kept_and_never_set_back(stores: Stores) -> None:
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
    noted = {"a": b"10", "b": b"20", "d": b"30", "gone": b"40", "c": b"soon"}
    for id, at in noted.items():
        await stores.cache.put_field(LAST_USED_KEY, id, at)
    assert await keep_key_uses(stores.cache, stores.api_keys) == 1
    kept = await stores.api_keys.get_many(("a", "b", "c", "d"))
    assert {id: key.last_used_at for id, key in kept.items()} == {"a": 10, "b": 90, "c": 0, "d": 0}
    # Being used is no change of the key.
    assert kept["a"].updated_at == 7
    assert await keep_key_uses(stores.cache, stores.api_keys) == 0
