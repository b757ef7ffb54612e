# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: which ones a page receives, how soon, and when the stream closes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import pytest
from starlette.types import Message

from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.console.live_updates import (
    EventStream,
    LogChunk,
    StreamIntervals,
    StreamSession,
    StreamSources,
    parse_topics,
)
from pipecd.controlplane.console.stage_log import LogCursor
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.project_pb2 import ProjectRBACRole
from servers.console import OpenBrowser, PipedReports


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    kind: str
    data: str
    id: str = ""


async def parse_events(response: httpx2.Response) -> AsyncIterator[Event]:
    fields: dict[str, list[str]] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields.setdefault(name, []).append(value)
        elif fields:
            yield Event(fields["event"][0], "\n".join(fields["data"]), fields.get("id", [""])[0])
            fields = {}


@asynccontextmanager
async def open_stream(
    client: httpx2.AsyncClient, topics: str, after: str = ""
) -> AsyncIterator[AsyncIterator[Event]]:
    params = {"t": topics, "after": after}
    async with client.stream("GET", "/_/stream", params=params) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-accel-buffering"] == "no"
        stream = parse_events(response)
        yield stream


async def until(stream: AsyncIterator[Event], kind: str) -> Event:
    async with asyncio.timeout(5):
        async for event in stream:
            if event.kind == kind:
                return event
    raise AssertionError(f"the stream ended without {kind}")


async def test_a_change_is_sent_at_once(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    async with open_stream(admin_browser, f"dep:{deployment.id}") as stream:
        await until(stream, "hello")
        begun = time.monotonic()
        await reports.deployment(deployment, DeploymentStatus.RUNNING)
        event = await until(stream, "change")
    assert event.data == f'{{"topics": ["dep:{deployment.id}"]}}'
    assert time.monotonic() - begun < 0.3


async def test_new_log_lines_are_sent_within_300_ms(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.lines(deployment, "s1", "first")
    async with open_stream(admin_browser, f"log:{deployment.id}:s1:0") as stream:
        first = await until(stream, "log")
        assert "first" in first.data
        begun = time.monotonic()
        await reports.lines(deployment, "s1", "second <b>", "third")
        second = await until(stream, "log")
        assert time.monotonic() - begun < 0.3
    assert 'id="L2"' in second.data
    assert "second &lt;b&gt;" in second.data
    assert second.id == "3:3"


async def test_a_reconnected_browser_gets_missed_lines_once(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.lines(deployment, "s1", "one", "two", "three")
    topic = f"log:{deployment.id}:s1:0"
    async with open_stream(admin_browser, topic, after="2:2") as stream:
        event = await until(stream, "log")
    assert "three" in event.data
    assert "two" not in event.data
    admin_browser.headers["Last-Event-ID"] = "1:1"
    async with open_stream(admin_browser, topic, after="") as stream:
        event = await until(stream, "log")
    assert "two" in event.data
    assert "one" not in event.data


async def test_the_end_of_a_log_is_sent(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.lines(deployment, "s1", "last words")
    async with open_stream(admin_browser, f"log:{deployment.id}:s1:0") as stream:
        await until(stream, "log")
        await reports.end_of_log(deployment, "s1")
        await until(stream, "log-end")


async def test_many_signals_become_two_events_per_second(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    async with open_stream(admin_browser, "deployments") as stream:
        await until(stream, "hello")
        begun = time.monotonic()
        for _ in range(20):
            await reports.stage(deployment, "s1", StageStatus.RUNNING)
        await until(stream, "change")
        await reports.stage(deployment, "s1", StageStatus.SUCCESS)
        await until(stream, "change")
    assert time.monotonic() - begun > 0.45


async def test_signals_of_other_projects_and_topics_are_not_sent(
    admin_browser: httpx2.AsyncClient, bus: MemoryBus, application: Application
) -> None:
    async with open_stream(admin_browser, f"app:{application.id},apps") as stream:
        await until(stream, "hello")
        await bus.publish(Signal(Topic.APPLICATION, "x", "another project"))
        await bus.publish(Signal(Topic.DEPLOYMENT, "x", "shop"))
        await bus.publish(Signal(Topic.APPLICATION, "y", "shop"))
        event = await until(stream, "change")
    assert event.data == '{"topics": ["apps"]}'


@pytest.mark.parametrize("topic", ["app:{}", "dep:{}", "log:{}:s1:0", "cmd:{}"])
async def test_a_stream_needs_permission_for_its_topics(
    *,
    topic: str,
    open_browser: OpenBrowser,
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
    response = await open_browser(stranger).get("/_/stream", params={"t": topic.format(id)})
    assert response.status_code == 403
    response = await open_browser().get("/_/stream", params={"t": topic.format(id)})
    assert response.status_code == 303


@pytest.mark.parametrize(
    "topics", ["weather", "", "log:d1:s1:" + "9" * 5000, ",".join(["apps"] * 50)]
)
async def test_topics_that_cannot_be_read_are_a_bad_request(
    admin_browser: httpx2.AsyncClient, topics: str
) -> None:
    response = await admin_browser.get("/_/stream", params={"t": topics})
    assert (response.status_code, response.headers["content-type"]) == (
        400,
        "text/plain; charset=utf-8",
    )


async def test_a_topic_that_is_refused_does_not_stop_the_others(
    admin_browser: httpx2.AsyncClient, application: Application, bus: MemoryBus
) -> None:
    async with open_stream(admin_browser, f"app:{application.id},app:foreign") as stream:
        assert (await until(stream, "hello")).data == '{"refused": ["app:foreign"]}'
        await bus.publish(Signal(Topic.APPLICATION, "foreign", "shop"))
        await bus.publish(Signal(Topic.APPLICATION, application.id, "shop"))
        event = await until(stream, "change")
    assert event.data == f'{{"topics": ["app:{application.id}"]}}'


async def test_pages_follow_only_lists_that_their_user_may_see(
    open_browser: OpenBrowser, cases: UseCases, admin: User
) -> None:
    policies = parse_policies("resources=deployment;actions=get,list")
    role = ProjectRBACRole(name="narrow", policies=policies)
    await cases.projects.change(lambda project: project.rbac_roles.append(role), by=admin)
    browser = open_browser(User("shop", "nora", ("narrow",)))
    assert 'data-topics="deployments,pipeds"' in (await browser.get("/overview")).text
    assert 'data-topics="deployments"' in (await browser.get("/deployment-traces")).text


async def test_the_oldest_of_too_many_streams_is_closed(
    admin_browser: httpx2.AsyncClient, application: Application
) -> None:
    topic = f"app:{application.id}"
    async with open_stream(admin_browser, topic) as first:
        await until(first, "hello")
        async with (
            open_stream(admin_browser, topic) as second,
            open_stream(admin_browser, topic),
            open_stream(admin_browser, topic),
            open_stream(admin_browser, topic),
        ):
            assert (await until(first, "close")).data == "replaced"
            await until(second, "hello")


async def test_a_disconnect_ends_the_stream() -> None:
    bus = MemoryBus()
    leave = asyncio.Event()

    async def receive() -> Message:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if b"hello" in message.get("body", b""):
            assert len(bus._subscriptions) == 1
            leave.set()

    event_stream = _stream(bus, _still_signed_in, StreamIntervals())
    async with asyncio.timeout(5):
        await event_stream({"type": "http"}, receive, send)
    assert not bus._subscriptions


async def test_an_expired_session_ends_the_stream() -> None:
    sent = await _run_stream(authorize=_signed_out, intervals=StreamIntervals(heartbeat=0.01))
    assert sent[-1].startswith("event: close\ndata: signed-out")


@pytest.mark.usefixtures("single_sign_on")
async def test_a_revoked_session_ends_its_stream_at_once(
    open_browser: OpenBrowser,
    cases: UseCases,
    static_admin: StaticAdmin,
    admin: User,
) -> None:
    browser = open_browser()
    browser.cookies["token"] = (await cases.sessions.sign_in("shop", *static_admin)).token
    async with open_stream(browser, "apps") as stream:
        await until(stream, "hello")
        await cases.projects.disable_static_admin(by=admin)
        assert (await until(stream, "close")).data == "signed-out"


async def test_an_idle_stream_sends_heartbeats() -> None:
    checks = 0

    async def authorize() -> None:
        nonlocal checks
        checks += 1
        if checks > 2:
            raise Unauthenticated("enough")

    sent = await _run_stream(authorize=authorize, intervals=StreamIntervals(heartbeat=0.01))
    assert sum(event.startswith("event: heartbeat") for event in sent) == 2


async def _signed_out() -> None:
    raise Unauthenticated("the session has ended")


async def _still_signed_in() -> None:
    pass


def _stream(
    bus: MemoryBus, authorize: Callable[[], Awaitable[None]], intervals: StreamIntervals
) -> EventStream:
    async def read_log(cursor: LogCursor) -> LogChunk:
        return LogChunk("", cursor, completed=False)

    return EventStream(
        StreamSession("session", "shop"),
        parse_topics("apps"),
        LogCursor(),
        StreamSources(bus, authorize, read_log),
        intervals,
    )


async def _run_stream(
    authorize: Callable[[], Awaitable[None]], intervals: StreamIntervals
) -> list[str]:
    """The events of a stream without changes until it closes."""
    events: list[str] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            events.append(message["body"].decode())

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("the browser stays connected")

    async with asyncio.timeout(5):
        await _stream(MemoryBus(), authorize, intervals)({"type": "http"}, receive, send)
    return events


@pytest.mark.parametrize(
    ("topic", "signal", "matches"),
    [
        pytest.param("apps", (Topic.APPLICATION, "a1"), True, id="any application"),
        pytest.param("apps", (Topic.DEPLOYMENT, "a1"), False, id="but no deployment"),
        pytest.param("app:a1", (Topic.APPLICATION, "a1"), True, id="this application"),
        pytest.param("app:a1", (Topic.APPLICATION, "a2"), False, id="but no other"),
        pytest.param("deployments", (Topic.DEPLOYMENT, "d9"), True, id="any deployment"),
        pytest.param("dep:d1", (Topic.DEPLOYMENT, "d1"), True, id="this deployment"),
        pytest.param("dep:d1", (Topic.STAGE_LOG, "d1/s1"), False, id="its log is another topic"),
        pytest.param("cmd:c1", (Topic.COMMAND, "c1"), True, id="this command"),
        pytest.param("pipeds", (Topic.PIPED, "p1"), True, id="any piped"),
        pytest.param("log:d1:s1:0", (Topic.STAGE_LOG, "d1/s1"), True, id="this log"),
        pytest.param("log:d1:s1:0", (Topic.STAGE_LOG, "d1/s2"), False, id="but no other"),
        pytest.param("log:d1:s1:0", (Topic.EVERYTHING, ""), True, id="anything may have changed"),
        pytest.param("dep:d1", (Topic.EVERYTHING, ""), True, id="anything, once more"),
    ],
)
def test_which_signals_match_a_topic(topic: str, signal: tuple[Topic, str], matches: bool) -> None:
    (read,) = parse_topics(topic)
    assert read.matches(Signal(signal[0], signal[1], "shop")) is matches


def test_a_stage_id_may_contain_separators() -> None:
    (topic,) = parse_topics("log:d1:a%2Cb%3Ac:2")
    assert topic.run == StageRun("d1", "a,b:c", 2)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("weather", id="no such topic"),
        pytest.param("app", id="an application without its id"),
        pytest.param("apps:a1", id="all applications with an id"),
        pytest.param("log:d1", id="a log without a stage"),
        pytest.param("log:d1:s1:x", id="a log without a number"),
        pytest.param("log:d1:s1,log:d1:s2", id="two logs"),
        pytest.param(",".join(f"app:{n}" for n in range(21)), id="too many"),
    ],
)
def test_invalid_topics_are_rejected(text: str) -> None:
    with pytest.raises(UserMistake):
        parse_topics(text)
