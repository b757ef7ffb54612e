# SPDX-License-Identifier: Apache-2.0
"""The wake-up stream refreshes caches at once; without it they poll."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import open_mirrors
from pipecd.model.backoff import Backoff
from pipecd.piped.cache import wakeups
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.cache.wakeups import WakeupStream
from pipecd.proto.service.piped_pb2 import ListApplicationsRequest
from pipecd.proto.service.wakeups_pb2 import Wakeup
from servers.control_plane import OpenControlPlane
from servers.origin import Origin
from servers.polling import eventually

NEVER = 1000.0


@asynccontextmanager
async def no_heads(tmp_path: Path) -> AsyncGenerator[RepositoryHeads]:
    async with open_mirrors([], directory=tmp_path / "m", credentials=GitCredentials()) as mirrors:
        yield RepositoryHeads(mirrors)


async def test_a_wakeup_refreshes_the_cache_it_is_for(
    open_plane: OpenControlPlane, origin: Origin, running: Any, tmp_path: Path
) -> None:
    async with open_plane() as plane, plane.piped.api() as api, no_heads(tmp_path) as heads:
        await plane.piped.add_repository("site", origin.remote)
        cache = ApplicationCache(api, interval=NEVER)
        stream = WakeupStream(
            api,
            schedules={
                Wakeup.CONNECTED: (cache.schedule,),
                Wakeup.APPLICATIONS: (cache.schedule,),
            },
            heads=heads,
        )
        async with running(cache, stream):
            await eventually(lambda: stream.is_up)
            await plane.piped.add_application("cart")
            # Without the stream this would take a thousand seconds.
            await eventually(lambda: len(cache.all) == 1)


async def test_without_the_stream_piped_polls(
    open_plane: OpenControlPlane, running: Any, tmp_path: Path
) -> None:
    async with open_plane() as plane, plane.piped.api() as api, no_heads(tmp_path) as heads:
        plane.gate.refusals["WatchWakeups"] = grpc.StatusCode.UNIMPLEMENTED
        cache = CommandCache(api, interval=0.02)
        stream = WakeupStream(api, schedules={Wakeup.COMMANDS: (cache.schedule,)}, heads=heads)
        async with running(cache, stream):
            await eventually(lambda: plane.gate.count("ListUnhandledCommands") > 3)
            assert not stream.is_up
            await asyncio.sleep(0.5)
            # A control plane of upstream has no stream; it is not tried again for ten minutes.
            assert plane.gate.count("WatchWakeups") == 1


async def test_a_stream_that_fails_is_opened_again(
    open_plane: OpenControlPlane, running: Any, tmp_path: Path
) -> None:
    async with open_plane() as plane, plane.piped.api() as api, no_heads(tmp_path) as heads:
        plane.gate.refusals["WatchWakeups"] = grpc.StatusCode.UNAVAILABLE
        stream = WakeupStream(api, schedules={}, heads=heads, chance=lambda: 0.0)
        async with running(stream):
            await eventually(lambda: plane.gate.count("WatchWakeups") > 2)
            assert not heads._is_streaming
            del plane.gate.refusals["WatchWakeups"]
            await eventually(lambda: stream.is_up)
            assert heads._is_streaming


async def test_the_stream_is_opened_again_as_soon_as_another_call_succeeds(
    open_plane: OpenControlPlane,
    running: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "_BACKOFF", Backoff(first=60, longest=60))
    monkeypatch.setattr(wakeups, "_SHORTEST_PAUSE", 0.1)
    async with open_plane() as plane, plane.piped.api() as api, no_heads(tmp_path) as heads:
        plane.gate.refusals["WatchWakeups"] = grpc.StatusCode.UNAVAILABLE
        stream = WakeupStream(api, schedules={}, heads=heads, chance=lambda: 0.9)
        async with running(stream):
            await eventually(lambda: plane.gate.count("WatchWakeups") == 1)
            plane.gate.open()
            await api.list_applications(ListApplicationsRequest())
            await eventually(lambda: stream.is_up, 2)


async def test_a_poll_that_failed_is_repeated_soon_although_the_stream_is_up() -> None:
    ranges: list[tuple[float, float]] = []

    def chance(low: float, high: float) -> float:
        ranges.append((low, high))
        return 0.01

    schedule = RefreshSchedule(60.0, chance=chance)
    schedule.set_streaming(True)
    await schedule.wait(after_failure=True)
    await schedule.wait(after_failure=True)
    assert ranges == [(2.5, 5.0)] * 2


async def test_polls_are_frequent_without_and_a_safety_net_with_the_stream() -> None:
    ranges: list[tuple[float, float]] = []

    def chance(low: float, high: float) -> float:
        ranges.append((low, high))
        return 150.0

    schedule = RefreshSchedule(0.01, chance=chance)
    await schedule.wait()
    assert ranges == []
    schedule.set_streaming(True)
    await schedule.wait()
    assert ranges == [(120.0, 300.0)]
