# SPDX-License-Identifier: Apache-2.0
"""What a listening page hears, how soon, and when it is told to stop."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.console.live_topic import read_topics
from pipecd.controlplane.console.live_updates import EventStream, Lines, Pace, Sources
from pipecd.controlplane.console.stage_log import Place
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Unauthenticated
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    kind: str
    data: str
    id: str = ""


async def events(answer: httpx2.Response) -> AsyncIterator[Event]:
    fields: dict[str, list[str]] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields.setdefault(name, []).append(value)
        elif fields:
            yield Event(fields["event"][0], "\n".join(fields["data"]), fields.get("id", [""])[0])
            fields = {}


@asynccontextmanager
async def listening(
    client: httpx2.AsyncClient, topics: str, after: str = ""
) -> AsyncIterator[AsyncIterator[Event]]:
    params = {"t": topics, "after": after}
    async with client.stream("GET", "/_/stream", params=params) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["x-accel-buffering"] == "no"
        heard = events(answer)
        yield heard


async def until(heard: AsyncIterator[Event], kind: str) -> Event:
    async with asyncio.timeout(5):
        async for event in heard:
            if event.kind == kind:
                return event
    raise AssertionError(f"the stream ended without {kind}")


async def test_a_change_is_heard_at_once(
    browser_of_admin: httpx2.AsyncClient, deployment: Deployment, reports: Any
) -> None:
    async with listening(browser_of_admin, f"dep:{deployment.id}") as heard:
        await until(heard, "hello")
        begun = time.monotonic()
        await reports.deployment(deployment, DeploymentStatus.RUNNING)
        event = await until(heard, "change")
    assert event.data == f'{{"topics": ["dep:{deployment.id}"]}}'
    assert time.monotonic() - begun < 0.3


async def test_new_lines_come_with_their_content_within_300_ms(
    browser_of_admin: httpx2.AsyncClient, deployment: Deployment, reports: Any
) -> None:
    await reports.lines(deployment, "s1", "first")
    async with listening(browser_of_admin, f"log:{deployment.id}:s1:0") as heard:
        first = await until(heard, "log")
        assert "first" in first.data
        begun = time.monotonic()
        await reports.lines(deployment, "s1", "second <b>", "third")
        second = await until(heard, "log")
        assert time.monotonic() - begun < 0.3
    assert 'id="L2"' in second.data
    assert "second &lt;b&gt;" in second.data
    assert second.id == "3:3"


async def test_whoever_comes_back_gets_what_they_missed_and_nothing_twice(
    browser_of_admin: httpx2.AsyncClient, deployment: Deployment, reports: Any
) -> None:
    await reports.lines(deployment, "s1", "one", "two", "three")
    topic = f"log:{deployment.id}:s1:0"
    async with listening(browser_of_admin, topic, after="2:2") as heard:
        event = await until(heard, "log")
    assert "three" in event.data
    assert "two" not in event.data
    browser_of_admin.headers["Last-Event-ID"] = "1:1"
    async with listening(browser_of_admin, topic, after="") as heard:
        event = await until(heard, "log")
    assert "two" in event.data
    assert "one" not in event.data


async def test_the_end_of_a_log_is_told(
    browser_of_admin: httpx2.AsyncClient, deployment: Deployment, reports: Any
) -> None:
    await reports.lines(deployment, "s1", "last words")
    async with listening(browser_of_admin, f"log:{deployment.id}:s1:0") as heard:
        await until(heard, "log")
        await reports.end_of_log(deployment, "s1")
        await until(heard, "log-end")


async def test_a_storm_of_signals_becomes_two_events_a_second(
    browser_of_admin: httpx2.AsyncClient, deployment: Deployment, reports: Any
) -> None:
    async with listening(browser_of_admin, "deployments") as heard:
        await until(heard, "hello")
        begun = time.monotonic()
        for _ in range(20):
            await reports.stage(deployment, "s1", StageStatus.RUNNING)
        await until(heard, "change")
        await reports.stage(deployment, "s1", StageStatus.SUCCESS)
        await until(heard, "change")
    assert time.monotonic() - begun > 0.45


async def test_what_concerns_others_is_not_heard(
    browser_of_admin: httpx2.AsyncClient, bus: MemoryBus, application: Application
) -> None:
    async with listening(browser_of_admin, f"app:{application.id},apps") as heard:
        await until(heard, "hello")
        await bus.publish(Signal(Topic.APPLICATION, "x", "another project"))
        await bus.publish(Signal(Topic.DEPLOYMENT, "x", "shop"))
        await bus.publish(Signal(Topic.APPLICATION, "y", "shop"))
        event = await until(heard, "change")
    assert event.data == '{"topics": ["apps"]}'


@pytest.mark.parametrize("topic", ["app:{}", "dep:{}", "log:{}:s1:0", "cmd:{}"])
async def test_what_someone_may_not_see_they_may_not_follow(
    *,
    topic: str,
    someone: Callable[..., httpx2.AsyncClient],
    stranger: User,
    application: Application,
    deployment: Deployment,
    cases: UseCases,
    admin: User,
) -> None:
    ids = {
        "app": application.id,
        "cmd": await cases.applications.sync(application.id, by=admin),
    }
    id = ids.get(topic.split(":", maxsplit=1)[0], deployment.id)
    answer = await someone(stranger).get("/_/stream", params={"t": topic.format(id)})
    assert answer.status_code == 403
    answer = await someone().get("/_/stream", params={"t": topic.format(id)})
    assert answer.status_code == 303


async def test_the_oldest_of_too_many_streams_makes_room(
    browser_of_admin: httpx2.AsyncClient, application: Application
) -> None:
    topic = f"app:{application.id}"
    async with listening(browser_of_admin, topic) as first:
        await until(first, "hello")
        async with (
            listening(browser_of_admin, topic) as second,
            listening(browser_of_admin, topic),
            listening(browser_of_admin, topic),
            listening(browser_of_admin, topic),
        ):
            assert (await until(first, "bye")).data == "replaced"
            await until(second, "hello")


async def test_a_browser_that_leaves_is_noticed() -> None:
    bus = MemoryBus()
    leave = asyncio.Event()

    async def receive() -> Any:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if b"hello" in message.get("body", b""):
            assert len(bus._listeners) == 1
            leave.set()

    stream = _stream(bus, _still_signed_in, Pace())
    async with asyncio.timeout(5):
        await stream({"type": "http"}, receive, send)
    assert not bus._listeners


async def test_a_session_that_ends_ends_the_stream() -> None:
    said = await _stream_with(check=_signed_out, pace=Pace(beat=0.01))
    assert said[-1].startswith("event: bye\ndata: signed-out")


async def test_a_session_that_the_project_ends_ends_its_stream_at_once(
    someone: Callable[..., httpx2.AsyncClient],
    cases: UseCases,
    static_admin: StaticAdmin,
    admin: User,
) -> None:
    browser = someone()
    browser.cookies["token"] = (await cases.sessions.sign_in("shop", *static_admin)).token
    async with listening(browser, "apps") as heard:
        await until(heard, "hello")
        await cases.projects.disable_static_admin(by=admin)
        assert (await until(heard, "bye")).data == "signed-out"


async def test_a_quiet_stream_beats() -> None:
    beats = 0

    async def check() -> None:
        nonlocal beats
        beats += 1
        if beats > 2:
            raise Unauthenticated("enough")

    said = await _stream_with(check=check, pace=Pace(beat=0.01))
    assert sum(part.startswith("event: beat") for part in said) == 2


async def _signed_out() -> None:
    raise Unauthenticated("the session has ended")


async def _still_signed_in() -> None:
    pass


def _stream(bus: MemoryBus, check: Callable[[], Awaitable[None]], pace: Pace) -> EventStream:
    async def lines(place: Place) -> Lines:
        return Lines("", place, completed=False)

    return EventStream("shop", read_topics("apps"), Place(), Sources(bus, check, lines), pace)


async def _stream_with(check: Callable[[], Awaitable[None]], pace: Pace) -> list[str]:
    """What a stream without any change says until it ends by itself."""
    said: list[str] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            said.append(message["body"].decode())

    async def receive() -> Any:
        await asyncio.Event().wait()

    async with asyncio.timeout(5):
        await _stream(MemoryBus(), check, pace)({"type": "http"}, receive, send)
    return said
