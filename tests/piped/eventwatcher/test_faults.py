# SPDX-License-Identifier: Apache-2.0
"""What may go wrong around events: restarts, outages, crowds, others who act on the same ones."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from pipecd.controlplane.usecases.events import EventReport
from pipecd.git.credentials import GitCredentials
from pipecd.model.clock import utc_now
from pipecd.piped.eventwatcher.event_queue import EventQueue
from pipecd.piped.eventwatcher.selection import EventOutcome
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event
from servers.control_plane import OpenControlPlane
from servers.origin import NewOrigin, Origin
from servers.polling import eventually

WATCHER = """\
apiVersion: pipecd.dev/v1beta1
kind: EventWatcher
spec:
  events:
    - name: image
      replacements: [{file: m.yaml, yamlField: $.tag}]
"""
FILES = {".pipe/image.yaml": WATCHER, "m.yaml": "tag: v1\n"}


def tag(origin: Origin) -> str:
    return origin.git("show", "main:m.yaml").removeprefix("tag: ")


def commits(origin: Origin) -> int:
    return int(origin.git("rev-list", "--count", "main"))


async def test_a_piped_that_ended_before_it_told_finds_its_work_done(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = registry_of(plane)
        plane.gate.refusals["ReportEventStatuses"] = grpc.StatusCode.UNAVAILABLE
        async with watching(plane, {"site": shop.remote}):
            id_ = await events.register("image", "v2")
            await eventually(lambda: "ReportEventStatuses" in plane.gate.calls)
        assert (await events.all())[id_].status == event_pb2.EVENT_NOT_HANDLED
        plane.gate.refusals.clear()
        async with watching(plane, {"site": shop.remote}):
            assert await events.succeeded(id_) == "Nothing to commit"
    assert (tag(shop), commits(shop)) == ("v2", 2)


async def test_a_person_who_takes_a_value_back_is_not_overruled_by_a_restart(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = registry_of(plane)
        async with watching(plane, {"site": shop.remote}):
            id_ = await events.register("image", "v2")
            await events.succeeded(id_)
        await _backdate(plane, id_, 5)
        shop.commit({"m.yaml": "tag: v1\n"})
        plane.gate.calls.clear()
        async with watching(plane, {"site": shop.remote}):
            await events.register("other", "x")
            await eventually(lambda: plane.gate.count("ListEvents") >= 2)
    assert tag(shop) == "v1"


async def test_an_older_event_does_not_follow_a_newer_one_that_was_handled(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = registry_of(plane)
        old = await events.register("image", "v2")
        await _backdate(plane, old, 10)
        new = await events.register("image", "v3")
        await _backdate(plane, new, 5)
        done = EventReport(new, event_pb2.EVENT_SUCCESS, "done by others")
        await plane.cases.events.report_statuses([done], by=plane.piped.caller)
        async with watching(plane, {"site": shop.remote}):
            ended = await events.ended(old)
    assert ended.status == event_pb2.EVENT_OUTDATED
    assert ended.status_description == f'The new event "{new}" has been created'
    assert tag(shop) == "v1"


@pytest.mark.parametrize("minutes", [-5, 5], ids=["slow", "fast"])
async def test_a_clock_that_is_wrong_keeps_no_event_back(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any, minutes: int
) -> None:
    def now() -> datetime:
        return utc_now() + timedelta(minutes=minutes)

    shop.commit(FILES)
    async with open_plane() as plane, watching(plane, {"site": shop.remote}, now=now):
        events = registry_of(plane)
        for value in ("v2", "v3"):
            await events.succeeded(await events.register("image", value))
    assert tag(shop) == "v3"


async def test_a_question_that_is_not_answered_is_asked_again(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane, watching(plane, {"site": shop.remote}):
        events = registry_of(plane)
        plane.gate.refusals["ListEvents"] = grpc.StatusCode.INTERNAL
        before = plane.gate.count("ListEvents")
        id_ = await events.register("image", "v2")
        await eventually(lambda: plane.gate.count("ListEvents") > before)
        plane.gate.refusals.clear()
        await events.succeeded(id_)


async def test_an_event_of_yesterday_is_put_away(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = registry_of(plane)
        id_ = await events.register("image", "v2")
        await _backdate(plane, id_, 24 * 3600)
        async with watching(plane, {"site": shop.remote}):
            ended = await events.ended(id_)
    assert ended.status == event_pb2.EVENT_OUTDATED
    assert ended.status_description.startswith("Too much time has passed")
    assert tag(shop) == "v1"


async def _backdate(plane: Any, id_: str, seconds: int) -> None:
    def change(event: Event) -> None:
        event.created_at -= seconds

    await plane.cases.events._stores.events.update(id_, change)


async def test_a_definition_that_comes_after_its_event_finds_it(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit({"m.yaml": "tag: v1\n"})
    async with open_plane() as plane, watching(plane, {"site": shop.remote}):
        events = registry_of(plane)
        id_ = await events.register("image", "v2")
        assert plane.gate.count("ListEvents") == 0, "without definitions nothing is asked for"
        shop.commit(FILES)
        await events.succeeded(id_)
    assert tag(shop) == "v2"


async def test_two_pipeds_act_on_one_event(
    open_plane: OpenControlPlane,
    watching: Any,
    shop: Any,
    new_origin: NewOrigin,
    registry_of: Any,
) -> None:
    other = new_origin("other")
    other.git("config", "receive.denyCurrentBranch", "updateInstead")
    shop.commit(FILES)
    other.commit(FILES)
    async with (
        open_plane() as plane,
        watching(plane, {"other": other.remote}, directory="second", is_woken=False) as second,
    ):
        await eventually(lambda: plane.gate.count("ListEvents") == 2)
        async with watching(plane, {"site": shop.remote}):
            events = registry_of(plane)
            await events.succeeded(await events.register("image", "v2"))
        # The event is long dealt with when the second one hears of it.
        assert (tag(shop), tag(other)) == ("v2", "v1")
        second.schedule.refresh_soon()
        await eventually(lambda: tag(other) == "v2")


async def test_a_definition_does_not_change_in_hindsight_what_others_dealt_with(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit({**FILES, "n.yaml": "tag: v1\n"})
    another = WATCHER.replace("name: image", "name: other").replace("m.yaml", "n.yaml")
    async with open_plane() as plane, watching(plane, {"site": shop.remote}):
        events = registry_of(plane)
        id_ = await events.register("other", "v2")
        done = EventReport(id_, event_pb2.EVENT_SUCCESS, "done by others")
        await plane.cases.events.report_statuses([done], by=plane.piped.caller)
        await _backdate(plane, id_, 5)
        shop.commit({".pipe/other.yaml": another})
        await events.succeeded(await events.register("image", "v2"))
        shop.commit({"unrelated": "x"})
        await events.succeeded(await events.register("other", "v3"))
    assert shop.git("log", "--format=%s").count('"v2" set by Event "other"') == 0
    assert shop.git("show", "main:n.yaml") == "tag: v3"


async def test_two_repositories_make_one_outcome(
    open_plane: OpenControlPlane,
    watching: Any,
    shop: Any,
    new_origin: NewOrigin,
    registry_of: Any,
) -> None:
    other = new_origin("other")
    shop.commit(FILES)
    other.commit({**FILES, "m.yaml": "no: tag\n"})
    async with (
        open_plane() as plane,
        watching(plane, {"site": shop.remote, "other": other.remote}),
    ):
        events = registry_of(plane)
        id_ = await events.register("image", "v2")

        async def failed() -> str:
            event = (await events.all())[id_]
            return event.status_description if event.status == event_pb2.EVENT_FAILURE else ""

        told = await eventually(failed)
        await eventually(lambda: tag(shop) == "v2")
        await asyncio.sleep(0.05)
        assert await failed() == told
    assert told == "Failed to change files: m.yaml: there is no $.tag in it; check the path"


async def test_a_repository_that_cannot_be_reached_holds_up_no_other(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any, tmp_path: Path
) -> None:
    shop.commit(FILES)
    remotes = {"gone": f"file://{tmp_path}/gone", "site": shop.remote}
    async with open_plane() as plane, watching(plane, remotes):
        events = registry_of(plane)
        await events.succeeded(await events.register("image", "v2"))
    assert tag(shop) == "v2"


async def test_a_host_that_is_away_is_waited_for(
    open_plane: OpenControlPlane,
    watching: Any,
    shop: Any,
    registry_of: Any,
    git_http: Any,
) -> None:
    shop.commit(FILES)
    git_http.require("ann", "s3cret")
    credentials = GitCredentials(username="ann", password="s3cret")
    remotes = {"site": git_http.url("shop/.git")}
    async with open_plane() as plane, watching(plane, remotes, credentials=credentials) as queue:
        events = registry_of(plane)
        await eventually(lambda: queue._subscriptions)
        git_http.answers_with = 503
        id_ = await events.register("image", "v2")
        await eventually(lambda: plane.gate.count("ListEvents") and queue.pending("site"))
        assert (await events.all())[id_].status == event_pb2.EVENT_NOT_HANDLED
        git_http.answers_with = 200
        await events.succeeded(id_)
    assert tag(shop) == "v2"


async def test_a_password_that_is_wrong_is_a_failure(
    open_plane: OpenControlPlane,
    watching: Any,
    shop: Any,
    registry_of: Any,
    git_http: Any,
) -> None:
    shop.commit(FILES)
    credentials = GitCredentials(username="ann", password="wrong")
    remotes = {"site": git_http.url("shop/.git")}
    async with open_plane() as plane, watching(plane, remotes, credentials=credentials) as queue:
        events = registry_of(plane)
        await eventually(lambda: queue._subscriptions)
        git_http.require("ann", "s3cret")
        told = await events.failed(await events.register("image", "v2"))
    assert told.startswith("Failed to push changed files: ")
    assert "access was denied" in told
    assert "wrong" not in told
    assert tag(shop) == "v1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without the keys and the hosts of whoever runs the tests."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.mark.usefixtures("home")
async def test_events_are_pushed_over_ssh(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any, git_ssh: Any
) -> None:
    shop.commit(FILES)
    credentials = GitCredentials(ssh_key=git_ssh.private_key.encode())
    remotes = {"site": git_ssh.url(shop.path)}
    async with open_plane() as plane, watching(plane, remotes, credentials=credentials):
        events = registry_of(plane)
        await events.succeeded(await events.register("image", "v2"))
    assert tag(shop) == "v2"


@pytest.mark.slow
async def test_a_crowd_of_events_is_worked_off(
    open_plane: OpenControlPlane, watching: Any, shop: Any, registry_of: Any
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = registry_of(plane)
        crowd = [await events.register("image", f"v{n}") for n in range(1000)]
        # These are nobody's, and longer than one answer may be.
        for n in range(12):
            await _backdate(
                plane, await events.register("nobody", "x" * 1024 * 1024), 60 * (n // 3)
            )
        async with watching(plane, {"site": shop.remote}):
            newest = await events.ended(crowd[-1], 45)
            outdated = [(await events.ended(id_)).status for id_ in crowd[:-1]]
            nobodys = [e for e in (await events.all()).values() if e.name == "nobody"]
    assert newest.status == event_pb2.EVENT_SUCCESS
    assert set(outdated) == {event_pb2.EVENT_OUTDATED}
    assert tag(shop) == "v999"
    assert commits(shop) == 2
    assert {e.status for e in nobodys} == {event_pb2.EVENT_NOT_HANDLED}


async def test_one_report_that_is_refused_keeps_no_other_from_being_told(
    open_plane: OpenControlPlane, registry_of: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        events = registry_of(plane)
        id_ = await events.register("image", "v2")
        queue = EventQueue(api, every=300)
        done = EventOutcome(event_pb2.EVENT_SUCCESS, "done")
        queue.complete("site", {"unknown": done, id_: done})
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(queue.run())
            assert await events.succeeded(id_) == "done"
            running.cancel()
