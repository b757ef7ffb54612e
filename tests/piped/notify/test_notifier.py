# SPDX-License-Identifier: Apache-2.0
"""Events are sent once to each matching receiver, also across restarts and kills of piped."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pipecd.config.piped_notifications import NotificationsSpec
from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.model.clock import utc_now
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.piped.notify.message import ConsoleLinks
from pipecd.piped.notify.notifier import Notifier, PipedIdentity, create_subscribers
from pipecd.piped.notify.spool import Spool, SpoolEntry
from servers.receivers import WEBHOOK, Receivers

Events = dict[EventType, NotificationEvent]
DEV = PipedIdentity("shop", "piped-1", "dev")
FAILED = EventType.DEPLOYMENT_FAILED


def spec(*routes: dict[str, Any], **urls: str) -> NotificationsSpec:
    receivers = [{"name": name, "webhook": {"url": url}} for name, url in urls.items()]
    text = json.dumps({"routes": routes, "receivers": receivers})
    return NotificationsSpec.model_validate_json(text)


@asynccontextmanager
async def running_notifier(
    notifications: NotificationsSpec, path: Path | None = None, *, flush_seconds: float = 5
) -> AsyncGenerator[Notifier]:
    with closing(Spool() if path is None else Spool.open(path)) as spool:
        async with running(notifications, spool, flush_seconds=flush_seconds) as notifier:
            yield notifier


@asynccontextmanager
async def running(
    notifications: NotificationsSpec, spool: Spool, *, flush_seconds: float
) -> AsyncGenerator[Notifier]:
    async with httpx2.AsyncClient() as client, asyncio.TaskGroup() as group:
        subscribers = create_subscribers(notifications, ConsoleLinks("", "shop"), client, spool)
        notifier = Notifier(DEV, subscribers, spool, flush_seconds=flush_seconds)
        task = group.create_task(notifier.run())
        await asyncio.sleep(0)
        yield notifier
        task.cancel()


def pending(path: Path) -> tuple[SpoolEntry, ...]:
    with closing(Spool.open(path)) as spool:
        return spool.pending


def types(receivers: Receivers, path: str) -> list[int]:
    return [delivery.json["Type"] for delivery in receivers.at(path)]


async def test_piped_notifies_about_its_start_and_stop(receivers: Receivers) -> None:
    async with running_notifier(spec({"receiver": "a"}, a=receivers.url("/a"))):
        pass
    assert types(receivers, "/a") == [300, 301]
    metadata = receivers.at("/a")[1].json["Metadata"]
    assert (metadata["id"], metadata["name"], metadata["project_id"]) == ("piped-1", "dev", "shop")
    assert metadata["version"]


async def test_an_event_is_sent_once_to_every_matching_receiver(
    receivers: Receivers, events: Events
) -> None:
    notifications = spec(
        {"receiver": "a", "events": ["DEPLOYMENT_FAILED"]},
        {"receiver": "a", "groups": ["DEPLOYMENT"]},
        {"receiver": "b", "apps": ["another"], "groups": ["DEPLOYMENT"]},
        {"receiver": "c", "labels": {"env": "prod"}, "ignoreGroups": ["PIPED"]},
        a=receivers.url("/a"), b=receivers.url("/b"), c=receivers.url("/c"),
    )  # fmt: skip
    async with running_notifier(notifications) as notifier:
        notifier.notify(events[FAILED])
    assert types(receivers, "/a") == [5]
    assert types(receivers, "/b") == []
    assert types(receivers, "/c") == [5]


async def test_duplicate_events_are_sent_once(receivers: Receivers, events: Events) -> None:
    notifications = spec({"receiver": "a", "ignoreGroups": ["PIPED"]}, a=receivers.url("/a"))
    out_of_sync = events[EventType.APPLICATION_OUT_OF_SYNC]
    async with running_notifier(notifications) as notifier:
        for event in (events[FAILED], events[FAILED], out_of_sync, out_of_sync):
            notifier.notify(event)
    # Events without a key are never duplicates.
    assert types(receivers, "/a") == [5, 101, 101]


async def test_a_notifier_without_receivers(events: Events, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    async with running_notifier(NotificationsSpec(), path) as notifier:
        for event in events.values():
            notifier.notify(event)
    assert pending(path) == ()


async def test_a_hanging_receiver_does_not_block_shutdown(
    receivers: Receivers, events: Events, tmp_path: Path
) -> None:
    receivers.hanging.add("/hangs")
    notifications = spec(
        {"receiver": "a"}, {"receiver": "b"}, a=receivers.url("/hangs"), b=receivers.url("/b")
    )
    path = tmp_path / "spool"
    clock = asyncio.get_running_loop().time
    with capture_logs() as logs:
        async with running_notifier(notifications, path, flush_seconds=0.3) as notifier:
            notifier.notify(events[FAILED])
            ended = clock()
        assert clock() - ended < 3
        notifier.notify(events[EventType.STAGE_FAILED])
    assert types(receivers, "/b") == [300, 5, 301]
    left, late = logs
    assert (left["event"], left["receivers"]) == ("undelivered notifications are sent at the next start", {"a": 3})  # fmt: skip
    assert late["event"] == "notifier is closed, event was not sent"
    # The next piped sends the rest, and only to the receiver that has not received it.
    receivers.hanging.clear()
    receivers.deliveries.clear()
    async with running_notifier(notifications, path):
        pass
    assert types(receivers, "/hangs") == [300, 5, 301, 300, 301]
    assert types(receivers, "/b") == [300, 301]


async def test_an_event_after_the_notifier_has_ended_is_sent_at_the_next_start(
    receivers: Receivers, events: Events, tmp_path: Path
) -> None:
    """A stage may end after the notifier did, within the grace period of piped."""
    notifications = spec({"receiver": "a", "ignoreGroups": ["PIPED"]}, a=receivers.url("/a"))
    with closing(Spool.open(tmp_path / "spool")) as spool:
        async with running(notifications, spool, flush_seconds=5) as notifier:
            pass
        notifier.notify(events[FAILED])
    assert types(receivers, "/a") == []
    async with running_notifier(notifications, tmp_path / "spool"):
        pass
    assert types(receivers, "/a") == [5]


async def test_a_killed_piped_sends_pending_events_after_a_restart_once(
    receivers: Receivers, events: Events, tmp_path: Path
) -> None:
    path = tmp_path / "spool"
    notifications = spec({"receiver": "a", "ignoreGroups": ["PIPED"]}, a=receivers.url("/a"))
    async with httpx2.AsyncClient() as client:
        spool = Spool.open(path)
        notifier = Notifier(
            DEV, create_subscribers(notifications, ConsoleLinks("", ""), client, spool), spool
        )
        # It never runs: the events are on disk and were not sent.
        notifier.notify(events[FAILED])
        notifier.notify(events[EventType.APPLICATION_SYNCED])
        spool.close()
    (before,) = (entry.id for entry in spool.pending if entry.event.type is FAILED)
    async with running_notifier(notifications, path) as again:
        again.notify(events[FAILED])
    assert types(receivers, "/a") == [5, 100]
    assert spool.pending[0].id == before
    async with running_notifier(notifications, path) as third:
        third.notify(events[FAILED])
    assert types(receivers, "/a") == [5, 100]


async def test_pending_events_without_a_route_are_dropped(
    receivers: Receivers, events: Events, tmp_path: Path
) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    spool.add(SpoolEntry(events[FAILED], frozenset({"a", "removed"})))
    spool.close()
    async with running_notifier(spec({"receiver": "a", "groups": ["DEPLOYMENT"]}, a=receivers.url("/a")), path):  # fmt: skip
        pass
    assert types(receivers, "/a") == [5]
    assert pending(path) == ()


async def test_an_invalid_template_fails_at_startup() -> None:
    notifications = spec({"receiver": "a", "name": "mine", "templates": [{"text": "{{ if }}"}]}, a="http://x")  # fmt: skip
    async with httpx2.AsyncClient() as client:
        with pytest.raises(TemplateMistake, match="route mine"):
            create_subscribers(notifications, ConsoleLinks("", ""), client, Spool())


@pytest.mark.slow
async def test_ten_thousand_events_at_once_are_spooled_without_blocking(
    receivers: Receivers, events: Events, tmp_path: Path
) -> None:
    receivers.hanging.add(WEBHOOK)
    notifications = spec({"receiver": "a"}, a=receivers.url(WEBHOOK))
    path = tmp_path / "spool"
    clock = asyncio.get_running_loop().time
    metadata = events[FAILED].metadata
    async with running_notifier(notifications, path, flush_seconds=0) as notifier:
        began = clock()
        for number in range(10_000):
            notifier.notify(NotificationEvent(FAILED, metadata, key=str(number)))
        assert clock() - began < 10
    with closing(Spool.open(path)) as again:
        assert 9_990 <= len(again.pending) <= 10_000
        assert again.is_duplicate("9999")


async def test_the_spool_is_synced_to_disk(
    receivers: Receivers, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers.hanging.add(WEBHOOK)
    path, fsync, loop = tmp_path / "spool", os.fsync, asyncio.get_running_loop()
    is_synced = asyncio.Event()

    def observed_fsync(descriptor: int) -> None:
        is_appended = events[FAILED].key.encode() in path.read_bytes()
        fsync(descriptor)
        if is_appended and os.path.samestat(os.fstat(descriptor), path.stat()):
            loop.call_soon_threadsafe(is_synced.set)

    async with running_notifier(spec({"receiver": "a"}, a=receivers.url(WEBHOOK)), path, flush_seconds=0) as notifier:  # fmt: skip
        monkeypatch.setattr(os, "fsync", observed_fsync)
        notifier.notify(events[FAILED])
        async with asyncio.timeout(5):
            await is_synced.wait()


async def test_a_failing_sync_does_not_stop_notifications(
    receivers: Receivers, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with capture_logs() as logs:
        notifications = spec({"receiver": "a", "ignoreGroups": ["PIPED"]}, a=receivers.url("/a"))
        async with running_notifier(notifications, tmp_path / "spool") as notifier:
            monkeypatch.setattr(os, "fsync", fail)
            notifier.notify(events[FAILED])
    assert types(receivers, "/a") == [5]
    assert "notification spool cannot be synced, a power cut may lose notifications" in [
        entry["event"] for entry in logs
    ]


def test_every_event_type_survives_the_spool(events: Events, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "spool"
    spool = Spool.open(path)
    entries = [SpoolEntry(event, frozenset({"a", "b"})) for event in events.values()]
    for entry in entries:
        spool.add(entry)
    spool.done(entries[0].id, "a")
    spool.done(entries[1].id, "a")
    spool.done(entries[1].id, "b")
    spool.close()
    again = pending(path)
    assert {e.id: e.event for e in again} == {e.id: e.event for e in entries if e is not entries[1]}  # fmt: skip
    assert {e.id: e.receivers for e in again}[entries[0].id] == frozenset({"b"})
    assert {e.created_at for e in again} <= {e.created_at for e in entries}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b'{"id": "x", "told', id="half a line"),
        pytest.param(b"\xff\xfe\n", id="no text"),
        pytest.param(b"[]\n", id="no object"),
        pytest.param(b'{"id":"x","kind":"NEW","key":"","type":"model.NoSuch","facts":"","receivers":[],"told_at":"2024-01-01T00:00:00+00:00"}\n', id="an event of another version"),
    ],
)  # fmt: skip
def test_an_invalid_spool_line_is_skipped(events: Events, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    spool.add(SpoolEntry(events[FAILED], frozenset({"a"})))
    spool.close()
    path.write_bytes(path.read_bytes() + damage)
    again = Spool.open(path)
    assert len(again.pending) == 1
    again.add(SpoolEntry(events[EventType.STAGE_FAILED], frozenset({"a"})))
    again.close()
    assert len(pending(path)) == 2


def test_entries_older_than_a_day_are_dropped(events: Events, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    created_at = utc_now() - timedelta(hours=25)
    spool.add(SpoolEntry(events[FAILED], frozenset({"a"}), created_at=created_at))
    spool.close()
    assert pending(path) == ()


def test_an_unwritable_spool_is_disabled(events: Events, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as logs:
        spool = Spool.open(tmp_path / "file" / "spool")
        spool.add(SpoolEntry(events[FAILED], frozenset({"a"})))
    assert logs[-1]["event"] == "file of the workspace cannot be written"
    assert logs[-1]["consequence"] == "a restart may lose notifications"
    assert spool.is_duplicate(events[FAILED].key)


def test_the_spool_file_is_rewritten(events: Events, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    for _ in range(8_000):
        entry = SpoolEntry(events[FAILED], frozenset({"a"}))
        spool.add(entry)
        spool.done(entry.id, "a")
    spool.close()
    assert path.stat().st_size < 5 * 1024 * 1024


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc")), max_size=30))
def test_an_entry_is_pending_until_every_receiver_is_done(done: list[tuple[int, str]]) -> None:
    spool, entries = Spool(), [SpoolEntry(_started(), frozenset("abc")) for _ in range(6)]
    for entry in entries:
        spool.add(entry)
    for number, receiver in done:
        spool.done(entries[number].id, receiver)
    left = {e.id: set("abc") - {r for n, r in done if entries[n] is e} for e in entries}
    assert {e.id: set(e.receivers) for e in spool.pending} == {i: r for i, r in left.items() if r}


def _started() -> NotificationEvent:
    from pipecd.proto.model.notification_pb2 import NotificationEventPipedStarted

    return NotificationEvent(EventType.PIPED_STARTED, NotificationEventPipedStarted(id="p"))
