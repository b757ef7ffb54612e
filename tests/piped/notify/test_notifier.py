# SPDX-License-Identifier: Apache-2.0
"""Notices find their receivers once each, also when piped ends or is killed meanwhile."""

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

from pipecd.config.piped.notification import NotificationsSpec
from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.model.clock import utc_now
from pipecd.piped.notify.message import Console
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.piped.notify.notifier import Identity, Notifier, subscribers
from pipecd.piped.notify.spool import Entry, Spool
from servers.receivers import WEBHOOK, Receivers

Kinds = dict[NoticeKind, Notice]
DEV = Identity("shop", "piped-1", "dev")
FAILED = NoticeKind.DEPLOYMENT_FAILED


def spec(*routes: dict[str, Any], **urls: str) -> NotificationsSpec:
    receivers = [{"name": name, "webhook": {"url": url}} for name, url in urls.items()]
    text = json.dumps({"routes": routes, "receivers": receivers})
    return NotificationsSpec.model_validate_json(text)


@asynccontextmanager
async def telling(
    wanted: NotificationsSpec, path: Path | None = None, *, flush_seconds: float = 5
) -> AsyncGenerator[Notifier]:
    with closing(Spool() if path is None else Spool.open(path)) as spool:
        async with running(wanted, spool, flush_seconds=flush_seconds) as notifier:
            yield notifier


@asynccontextmanager
async def running(
    wanted: NotificationsSpec, spool: Spool, *, flush_seconds: float
) -> AsyncGenerator[Notifier]:
    async with httpx2.AsyncClient() as client, asyncio.TaskGroup() as group:
        found = subscribers(wanted, Console("", "shop"), client, spool)
        notifier = Notifier(DEV, found, spool, flush_seconds=flush_seconds)
        task = group.create_task(notifier.run())
        await asyncio.sleep(0)
        yield notifier
        task.cancel()


def waiting(path: Path) -> tuple[Entry, ...]:
    with closing(Spool.open(path)) as spool:
        return spool.waiting


def types(receivers: Receivers, path: str) -> list[int]:
    return [delivery.json["Type"] for delivery in receivers.at(path)]


async def test_piped_says_when_it_starts_and_when_it_stops(receivers: Receivers) -> None:
    async with telling(spec({"receiver": "a"}, a=receivers.url("/a"))):
        pass
    assert types(receivers, "/a") == [300, 301]
    facts = receivers.at("/a")[1].json["Metadata"]
    assert (facts["id"], facts["name"], facts["project_id"]) == ("piped-1", "dev", "shop")
    assert facts["version"]


async def test_a_notice_goes_to_every_receiver_that_wants_it_once(
    receivers: Receivers, notices: Kinds
) -> None:
    wanted = spec(
        {"receiver": "a", "events": ["DEPLOYMENT_FAILED"]},
        {"receiver": "a", "groups": ["DEPLOYMENT"]},
        {"receiver": "b", "apps": ["another"], "groups": ["DEPLOYMENT"]},
        {"receiver": "c", "labels": {"env": "prod"}, "ignoreGroups": ["PIPED"]},
        a=receivers.url("/a"), b=receivers.url("/b"), c=receivers.url("/c"),
    )  # fmt: skip
    async with telling(wanted) as notifier:
        notifier.tell(notices[FAILED])
    assert types(receivers, "/a") == [5]
    assert types(receivers, "/b") == []
    assert types(receivers, "/c") == [5]


async def test_the_same_thing_told_twice_is_heard_once(
    receivers: Receivers, notices: Kinds
) -> None:
    wanted = spec({"receiver": "a", "ignoreGroups": ["PIPED"]}, a=receivers.url("/a"))
    out_of_sync = notices[NoticeKind.APPLICATION_OUT_OF_SYNC]
    async with telling(wanted) as notifier:
        for notice in (notices[FAILED], notices[FAILED], out_of_sync, out_of_sync):
            notifier.tell(notice)
    # What has no key happens as often as it is told.
    assert types(receivers, "/a") == [5, 101, 101]


async def test_without_receivers_there_is_nothing_to_do(notices: Kinds, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    async with telling(NotificationsSpec(), path) as notifier:
        for notice in notices.values():
            notifier.tell(notice)
    assert waiting(path) == ()


async def test_a_receiver_that_hangs_does_not_keep_piped_from_ending(
    receivers: Receivers, notices: Kinds, tmp_path: Path
) -> None:
    receivers.hanging.add("/hangs")
    wanted = spec(
        {"receiver": "a"}, {"receiver": "b"}, a=receivers.url("/hangs"), b=receivers.url("/b")
    )
    path = tmp_path / "spool"
    clock = asyncio.get_running_loop().time
    with capture_logs() as logs:
        async with telling(wanted, path, flush_seconds=0.3) as notifier:
            notifier.tell(notices[FAILED])
            ended = clock()
        assert clock() - ended < 3
        notifier.tell(notices[FAILED])
    assert types(receivers, "/b") == [300, 5, 301]
    left, late = logs
    assert (left["event"], left["receivers"]) == ("notifications are left for the next start", {"a": 3})  # fmt: skip
    assert late["event"] == "notification came too late"
    # The next piped sends the rest, and only to the one who has not got it.
    receivers.hanging.clear()
    receivers.deliveries.clear()
    async with telling(wanted, path):
        pass
    assert types(receivers, "/hangs") == [300, 5, 301, 300, 301]
    assert types(receivers, "/b") == [300, 301]


async def test_a_killed_piped_tells_the_rest_later_and_nothing_twice(
    receivers: Receivers, notices: Kinds, tmp_path: Path
) -> None:
    path = tmp_path / "spool"
    wanted = spec({"receiver": "a", "ignoreGroups": ["PIPED"]}, a=receivers.url("/a"))
    async with httpx2.AsyncClient() as client:
        spool = Spool.open(path)
        notifier = Notifier(DEV, subscribers(wanted, Console("", ""), client, spool), spool)
        # It never runs: what was told is on disk and was not sent.
        notifier.tell(notices[FAILED])
        notifier.tell(notices[NoticeKind.APPLICATION_SYNCED])
        spool.close()
    (before,) = (entry.id for entry in spool.waiting if entry.notice.kind is FAILED)
    async with telling(wanted, path) as again:
        again.tell(notices[FAILED])
    assert types(receivers, "/a") == [5, 100]
    assert spool.waiting[0].id == before
    async with telling(wanted, path) as third:
        third.tell(notices[FAILED])
    assert types(receivers, "/a") == [5, 100]


async def test_what_nobody_wants_any_more_is_forgotten(
    receivers: Receivers, notices: Kinds, tmp_path: Path
) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    spool.add(Entry(notices[FAILED], frozenset({"a", "gone"})))
    spool.close()
    async with telling(spec({"receiver": "a", "groups": ["DEPLOYMENT"]}, a=receivers.url("/a")), path):  # fmt: skip
        pass
    assert types(receivers, "/a") == [5]
    assert waiting(path) == ()


async def test_a_template_that_cannot_be_parsed_ends_piped_at_its_start() -> None:
    wanted = spec({"receiver": "a", "name": "mine", "templates": [{"text": "{{ if }}"}]}, a="http://x")  # fmt: skip
    async with httpx2.AsyncClient() as client:
        with pytest.raises(TemplateMistake, match="route mine"):
            subscribers(wanted, Console("", ""), client, Spool())


@pytest.mark.slow
async def test_ten_thousand_notices_told_at_once_are_kept_and_hold_up_nothing(
    receivers: Receivers, notices: Kinds, tmp_path: Path
) -> None:
    receivers.hanging.add(WEBHOOK)
    wanted = spec({"receiver": "a"}, a=receivers.url(WEBHOOK))
    path = tmp_path / "spool"
    clock = asyncio.get_running_loop().time
    facts = notices[FAILED].facts
    async with telling(wanted, path, flush_seconds=0) as notifier:
        began = clock()
        for number in range(10_000):
            notifier.tell(Notice(FAILED, facts, key=str(number)))
        assert clock() - began < 10
    with closing(Spool.open(path)) as again:
        assert 9_990 <= len(again.waiting) <= 10_000
        assert again.knows("9999")


async def test_what_was_told_is_brought_to_the_disk_a_moment_later(
    receivers: Receivers, notices: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers.hanging.add(WEBHOOK)
    path, fsync, loop = tmp_path / "spool", os.fsync, asyncio.get_running_loop()
    is_synced = asyncio.Event()

    def watch(opened: int) -> None:
        told = notices[FAILED].key.encode() in path.read_bytes()
        fsync(opened)
        if told and os.path.samestat(os.fstat(opened), path.stat()):
            loop.call_soon_threadsafe(is_synced.set)

    async with telling(spec({"receiver": "a"}, a=receivers.url(WEBHOOK)), path, flush_seconds=0) as notifier:  # fmt: skip
        monkeypatch.setattr(os, "fsync", watch)
        notifier.tell(notices[FAILED])
        async with asyncio.timeout(5):
            await is_synced.wait()


async def test_a_disk_that_does_not_sync_stops_no_notice(
    receivers: Receivers, notices: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(opened: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with capture_logs() as logs:
        wanted = spec({"receiver": "a", "ignoreGroups": ["PIPED"]}, a=receivers.url("/a"))
        async with telling(wanted, tmp_path / "spool") as notifier:
            monkeypatch.setattr(os, "fsync", fail)
            notifier.tell(notices[FAILED])
    assert types(receivers, "/a") == [5]
    assert "notifications may be lost by a power cut" in [entry["event"] for entry in logs]


def test_notices_of_every_kind_survive_the_spool(notices: Kinds, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "spool"
    spool = Spool.open(path)
    entries = [Entry(notice, frozenset({"a", "b"})) for notice in notices.values()]
    for entry in entries:
        spool.add(entry)
    spool.gone(entries[0].id, "a")
    spool.gone(entries[1].id, "a")
    spool.gone(entries[1].id, "b")
    spool.close()
    again = waiting(path)
    assert {e.id: e.notice for e in again} == {e.id: e.notice for e in entries if e is not entries[1]}  # fmt: skip
    assert {e.id: e.receivers for e in again}[entries[0].id] == frozenset({"b"})
    assert {e.told_at for e in again} <= {e.told_at for e in entries}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b'{"id": "x", "told', id="half a line"),
        pytest.param(b"\xff\xfe\n", id="no text"),
        pytest.param(b"[]\n", id="no object"),
        pytest.param(b'{"id":"x","kind":"NEW","key":"","type":"model.NoSuch","facts":"","receivers":[],"told_at":"2024-01-01T00:00:00+00:00"}\n', id="a notice of another version"),
    ],
)  # fmt: skip
def test_a_damaged_line_costs_only_itself(notices: Kinds, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    spool.add(Entry(notices[FAILED], frozenset({"a"})))
    spool.close()
    path.write_bytes(path.read_bytes() + damage)
    again = Spool.open(path)
    assert len(again.waiting) == 1
    again.add(Entry(notices[NoticeKind.STAGE_FAILED], frozenset({"a"})))
    again.close()
    assert len(waiting(path)) == 2


def test_what_is_a_day_old_is_no_news(notices: Kinds, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    told_at = utc_now() - timedelta(hours=25)
    spool.add(Entry(notices[FAILED], frozenset({"a"}), told_at=told_at))
    spool.close()
    assert waiting(path) == ()


def test_a_spool_that_cannot_be_written_is_done_without(notices: Kinds, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as logs:
        spool = Spool.open(tmp_path / "file" / "spool")
        spool.add(Entry(notices[FAILED], frozenset({"a"})))
    assert logs[-1]["event"] == "notifications are not kept, a restart may lose some"
    assert spool.knows(notices[FAILED].key)


def test_the_file_does_not_grow_for_ever(notices: Kinds, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool.open(path)
    for _ in range(8_000):
        entry = Entry(notices[FAILED], frozenset({"a"}))
        spool.add(entry)
        spool.gone(entry.id, "a")
    spool.close()
    assert path.stat().st_size < 5 * 1024 * 1024


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc")), max_size=30))
def test_an_entry_waits_until_everybody_is_done_with_it(done: list[tuple[int, str]]) -> None:
    spool, entries = Spool(), [Entry(_started(), frozenset("abc")) for _ in range(6)]
    for entry in entries:
        spool.add(entry)
    for number, receiver in done:
        spool.gone(entries[number].id, receiver)
    left = {e.id: set("abc") - {r for n, r in done if entries[n] is e} for e in entries}
    assert {e.id: set(e.receivers) for e in spool.waiting} == {i: r for i, r in left.items() if r}


def _started() -> Notice:
    from pipecd.proto.model.notification_pb2 import NotificationEventPipedStarted

    return Notice(NoticeKind.PIPED_STARTED, NotificationEventPipedStarted(id="p"))
