# SPDX-License-Identifier: Apache-2.0
"""The event watcher survives restarts, outages, large backlogs and other pipeds."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import pytest

from pipecd.controlplane.usecases.events import EventReport
from pipecd.git.credentials import GitCredentials
from pipecd.model.clock import utc_now
from pipecd.piped.eventwatcher.event_queue import EventQueue
from pipecd.piped.eventwatcher.selection import EventOutcome
from pipecd.proto.model import event_pb2
from servers.control_plane import OpenControlPlane
from servers.eventwatcher import EventClient, watching_events
from servers.git_http import GitHttp
from servers.git_ssh import GitSsh
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


async def test_a_piped_killed_before_its_report_pushes_nothing_twice(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = EventClient(plane)
        plane.gate.refusals["ReportEventStatuses"] = grpc.StatusCode.UNAVAILABLE
        async with watching_events(plane, {"site": shop.remote}):
            id_ = await events.register("image", "v2")
            await eventually(lambda: "ReportEventStatuses" in plane.gate.calls)
        assert (await events.all())[id_].status == event_pb2.EVENT_NOT_HANDLED
        plane.gate.refusals.clear()
        async with watching_events(plane, {"site": shop.remote}):
            text = 'Successfully updated 1 files in the "site" repository'
            assert await events.succeeded(id_) == text
    assert (tag(shop), commits(shop)) == ("v2", 2)


async def test_a_reverted_value_is_not_written_again_after_a_restart(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = EventClient(plane)
        async with watching_events(plane, {"site": shop.remote}):
            id_ = await events.register("image", "v2")
            await events.succeeded(id_)
        await events.backdate(id_, 5)
        shop.commit({"m.yaml": "tag: v1\n"})
        plane.gate.calls.clear()
        async with watching_events(plane, {"site": shop.remote}):
            await events.register("other", "x")
            await eventually(lambda: plane.gate.count("ListEventsInOrder") >= 1)
    assert tag(shop) == "v1"


async def test_an_event_older_than_a_handled_one_is_outdated(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = EventClient(plane)
        old = await events.register("image", "v2")
        await events.backdate(old, 10)
        new = await events.register("image", "v3")
        await events.backdate(new, 5)
        done = EventReport(new, event_pb2.EVENT_SUCCESS, "done by another piped")
        await plane.cases.events.report_statuses([done], by=plane.piped.caller)
        async with watching_events(plane, {"site": shop.remote}):
            handled = await events.handled(old)
    assert handled.status == event_pb2.EVENT_OUTDATED
    assert handled.status_description == f'The new event "{new}" has been created'
    assert tag(shop) == "v1"


@pytest.mark.parametrize("minutes", [-5, 5], ids=["slow", "fast"])
async def test_events_are_handled_despite_clock_skew(
    open_plane: OpenControlPlane, shop: Origin, minutes: int
) -> None:
    def now() -> datetime:
        return utc_now() + timedelta(minutes=minutes)

    shop.commit(FILES)
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}, now=now):
        events = EventClient(plane)
        for value in ("v2", "v3"):
            await events.succeeded(await events.register("image", value))
    assert tag(shop) == "v3"


async def test_a_failed_poll_is_retried(open_plane: OpenControlPlane, shop: Origin) -> None:
    shop.commit(FILES)
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        plane.gate.refusals["ListEventsInOrder"] = grpc.StatusCode.INTERNAL
        before = plane.gate.count("ListEventsInOrder")
        id_ = await events.register("image", "v2")
        await eventually(lambda: plane.gate.count("ListEventsInOrder") > before)
        plane.gate.refusals.clear()
        await events.succeeded(id_)


async def test_an_event_of_yesterday_is_outdated(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        await events.backdate(id_, 24 * 3600)
        async with watching_events(plane, {"site": shop.remote}):
            handled = await events.handled(id_)
    assert handled.status == event_pb2.EVENT_OUTDATED
    assert handled.status_description.startswith("Too much time has passed")
    assert tag(shop) == "v1"


async def test_an_event_is_handled_by_a_definition_that_is_added_later(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit({"m.yaml": "tag: v1\n"})
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        assert plane.gate.count("ListEventsInOrder") == 0, (
            "without definitions no events are listed"
        )
        shop.commit(FILES)
        await events.succeeded(id_)
    assert tag(shop) == "v2"


async def test_two_pipeds_handle_one_event(
    open_plane: OpenControlPlane,
    shop: Origin,
    new_origin: NewOrigin,
) -> None:
    other = new_origin("other")
    other.git("config", "receive.denyCurrentBranch", "updateInstead")
    shop.commit(FILES)
    other.commit(FILES)
    async with (
        open_plane() as plane,
        watching_events(
            plane, {"other": other.remote}, directory="second", has_wakeups=False
        ) as second,
    ):
        await eventually(lambda: plane.gate.count("ListEventsInOrder") == 1)
        async with watching_events(plane, {"site": shop.remote}):
            events = EventClient(plane)
            await events.succeeded(await events.register("image", "v2"))
        # The event has been handled when the second piped receives it.
        assert (tag(shop), tag(other)) == ("v2", "v1")
        second.schedule.refresh_soon()
        await eventually(lambda: tag(other) == "v2")


async def test_a_new_definition_ignores_events_that_are_handled_already(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit({**FILES, "n.yaml": "tag: v1\n"})
    another = WATCHER.replace("name: image", "name: other").replace("m.yaml", "n.yaml")
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        id_ = await events.register("other", "v2")
        done = EventReport(id_, event_pb2.EVENT_SUCCESS, "done by another piped")
        await plane.cases.events.report_statuses([done], by=plane.piped.caller)
        await events.backdate(id_, 5)
        shop.commit({".pipe/other.yaml": another})
        await events.succeeded(await events.register("image", "v2"))
        shop.commit({"unrelated": "x"})
        await events.succeeded(await events.register("other", "v3"))
    assert shop.git("log", "--format=%s").count('"v2" set by Event "other"') == 0
    assert shop.git("show", "main:n.yaml") == "tag: v3"


async def test_an_event_of_two_repositories_has_one_status(
    open_plane: OpenControlPlane,
    shop: Origin,
    new_origin: NewOrigin,
) -> None:
    other = new_origin("other")
    shop.commit(FILES)
    other.commit({**FILES, "m.yaml": "no: tag\n"})
    async with (
        open_plane() as plane,
        watching_events(plane, {"site": shop.remote, "other": other.remote}),
    ):
        events = EventClient(plane)
        id_ = await events.register("image", "v2")

        async def failed() -> str:
            event = (await events.all())[id_]
            return event.status_description if event.status == event_pb2.EVENT_FAILURE else ""

        description = await eventually(failed)
        await eventually(lambda: tag(shop) == "v2")
        await asyncio.sleep(0.05)
        assert await failed() == description
    assert description == "Failed to change files: m.yaml: there is no $.tag in it; check the path"


async def test_an_unreachable_repository_delays_no_other(
    open_plane: OpenControlPlane, shop: Origin, tmp_path: Path
) -> None:
    shop.commit(FILES)
    remotes = {"gone": f"file://{tmp_path}/gone", "site": shop.remote}
    async with open_plane() as plane, watching_events(plane, remotes):
        events = EventClient(plane)
        await events.succeeded(await events.register("image", "v2"))
    assert tag(shop) == "v2"


async def test_a_push_is_retried_while_the_git_host_is_unavailable(
    open_plane: OpenControlPlane,
    shop: Origin,
    git_http: GitHttp,
) -> None:
    shop.commit(FILES)
    git_http.require("ann", "s3cret")
    credentials = GitCredentials(username="ann", password="s3cret")
    remotes = {"site": git_http.url("shop/.git")}
    async with (
        open_plane() as plane,
        watching_events(plane, remotes, credentials=credentials) as queue,
    ):
        events = EventClient(plane)
        await eventually(lambda: queue._subscriptions)
        git_http.answers_with = 503
        id_ = await events.register("image", "v2")
        await eventually(lambda: plane.gate.count("ListEventsInOrder") and queue.pending("site"))
        assert (await events.all())[id_].status == event_pb2.EVENT_NOT_HANDLED
        git_http.answers_with = 200
        await events.succeeded(id_)
    assert tag(shop) == "v2"


async def test_a_wrong_password_fails_the_event(
    open_plane: OpenControlPlane,
    shop: Origin,
    git_http: GitHttp,
) -> None:
    shop.commit(FILES)
    credentials = GitCredentials(username="ann", password="wrong")
    remotes = {"site": git_http.url("shop/.git")}
    async with (
        open_plane() as plane,
        watching_events(plane, remotes, credentials=credentials) as queue,
    ):
        events = EventClient(plane)
        await eventually(lambda: queue._subscriptions)
        git_http.require("ann", "s3cret")
        description = await events.failed(await events.register("image", "v2"))
    assert description.startswith("Failed to push changed files: ")
    assert "access was denied" in description
    assert "wrong" not in description
    assert tag(shop) == "v1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory without the SSH keys and known hosts of the user."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.mark.usefixtures("home")
async def test_events_are_pushed_over_ssh(
    open_plane: OpenControlPlane, shop: Origin, git_ssh: GitSsh
) -> None:
    shop.commit(FILES)
    credentials = GitCredentials(ssh_key=git_ssh.private_key.encode())
    remotes = {"site": git_ssh.url(shop.path)}
    async with open_plane() as plane, watching_events(plane, remotes, credentials=credentials):
        events = EventClient(plane)
        await events.succeeded(await events.register("image", "v2"))
    assert tag(shop) == "v2"


@pytest.mark.slow
async def test_a_thousand_pending_events_are_handled(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit(FILES)
    async with open_plane() as plane:
        events = EventClient(plane)
        ids = [await events.register("image", f"v{n}") for n in range(1000)]
        # No repository watches these, and they are too large for one response.
        for n in range(12):
            id_ = await events.register("unwatched", "x" * 1024 * 1024)
            await events.backdate(id_, 60 * (n // 3))
        async with watching_events(plane, {"site": shop.remote}):
            newest = await events.handled(ids[-1], 45)
            outdated = [(await events.handled(id_)).status for id_ in ids[:-1]]
            unwatched = [e for e in (await events.all()).values() if e.name == "unwatched"]
    assert newest.status == event_pb2.EVENT_SUCCESS
    assert set(outdated) == {event_pb2.EVENT_OUTDATED}
    assert tag(shop) == "v999"
    assert commits(shop) == 2
    assert {e.status for e in unwatched} == {event_pb2.EVENT_NOT_HANDLED}


async def test_a_rejected_status_does_not_prevent_the_report_of_others(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        events = EventClient(plane)
        id_ = await events.register("image", "v2")
        queue = EventQueue(api, interval=300)
        done = EventOutcome(event_pb2.EVENT_SUCCESS, "done")
        queue.complete("site", {"unknown": done, id_: done})
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(queue.run())
            assert await events.succeeded(id_) == "done"
            running.cancel()
