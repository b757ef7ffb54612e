# SPDX-License-Identifier: Apache-2.0
"""Upkeep does each job on one replica and forgets only what is old."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pipecd.controlplane.jobs.orphan_commands import time_out_orphans
from pipecd.controlplane.jobs.preview_outputs import remove_old_outputs
from pipecd.controlplane.jobs.stale_stats import forget_stale_stats
from pipecd.controlplane.jobs.upkeep import Job, Upkeep
from pipecd.controlplane.usecases.connection import STATS_KEY, Connections
from pipecd.model.command import CommandStatus
from pipecd.model.errors import Unavailable
from pipecd.model.moment import to_unix
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


async def test_commands_nobody_answered_for_a_day_are_given_up(start_plane: Any) -> None:
    async with start_plane() as plane:
        commands = plane.running.stores.commands
        for one in (command("old", hours_ago=25), command("new", hours_ago=23)):
            await commands.add(one)
        assert await time_out_orphans(commands, plane.running.bus, now=lambda: NOW) == 1
        assert (await commands.get("old")).status == CommandStatus.TIMEOUT
        assert (await commands.get("old")).handled_at == to_unix(NOW)
        assert (await commands.get("new")).status == CommandStatus.NOT_HANDLED_YET


async def test_reports_of_silent_pipeds_are_forgotten_after_a_day(start_plane: Any) -> None:
    async with start_plane() as plane:
        cache = plane.running.stores.cache
        await Connections(cache, lambda: NOW - timedelta(hours=25)).report("silent", b"")
        await Connections(cache, lambda: NOW - timedelta(hours=23)).report("talking", b"")
        await cache.put_field(STATS_KEY, "garbled", b"{")
        assert await forget_stale_stats(cache, now=lambda: NOW) == 2
        assert set(await cache.fields(STATS_KEY)) == {"talking"}


async def test_outputs_are_kept_for_two_days(start_plane: Any) -> None:
    async with start_plane() as plane:
        stores = plane.running.stores
        for one in (
            command("old", hours_ago=49, handled=True),
            command("new", hours_ago=47, handled=True),
        ):
            await stores.commands.add(one)
        for name in ("old", "new", "unknown"):
            await stores.files.put(f"command-output/{name}.json", b"{}")
        assert await remove_old_outputs(stores.files, stores.commands, now=lambda: NOW) == 2
        assert await stores.files.list("command-output/") == ("command-output/new.json",)


async def test_one_of_two_replicas_does_the_job(start_plane: Any) -> None:
    async with start_plane() as plane:
        done: list[str] = []

        async def work() -> None:
            done.append("x")

        job = Job("job", 60.0, work)
        first, second = (Upkeep(plane.running.stores.leases, h, [job]) for h in ("a", "b"))
        assert [await first.once(job), await second.once(job), await first.once(job)] == [
            True,
            False,
            True,
        ]
        assert len(done) == 2


async def test_a_job_that_fails_is_tried_again(start_plane: Any) -> None:
    async with start_plane() as plane:

        async def away() -> None:
            raise Unavailable("the store is away")

        job = Job("job", 60.0, away)
        assert not await Upkeep(plane.running.stores.leases, "a", [job]).once(job)
