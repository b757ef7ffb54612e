# SPDX-License-Identifier: Apache-2.0
"""Live pages: signals of the bus become server-sent events for the browsers that follow them.

An event says that something changed, and the page fetches itself again; only log lines carry
their content. A lost event costs nothing, as a page also fetches itself after it connects.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.signal import Bus, Signal
from pipecd.controlplane.bus.signal import Topic as SignalTopic
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    PageContext,
    browser_time_zone,
)
from pipecd.controlplane.console.stage_log import LogCursor, log_lines, parse_cursor
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.model.count import parse_count
from pipecd.model.errors import (
    Denied,
    NotFound,
    PipecdError,
    Unauthenticated,
    Unavailable,
    UserMistake,
)
from pipecd.secrets.session import session_id

MAX_TOPICS = 20
_MAX_QUOTED = 100
MAX_STREAMS_PER_SESSION = 4
_ONE = PageRequest(size=1)
# Signals after which a session may have ended or a permission may be gone.
_ACCESS_CHANGED = (SignalTopic.PROJECT, SignalTopic.SESSION, SignalTopic.EVERYTHING)
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class TopicKind(Enum):
    """The kinds of topics, by the word they begin with in `data-topics`."""

    APPLICATIONS = "apps"
    APPLICATION = "app"
    DEPLOYMENTS = "deployments"
    DEPLOYMENT = "dep"
    CHAINS = "chains"
    CHAIN = "chain"
    EVENTS = "events"
    PLAN_PREVIEWS = "previews"
    PIPEDS = "pipeds"
    COMMAND = "cmd"
    LOG = "log"
    # Says that a log has grown; the lines of one log at most are part of a stream.
    TAIL = "tail"


_SIGNALS_OF_LISTS = {
    TopicKind.APPLICATIONS: SignalTopic.APPLICATION,
    TopicKind.DEPLOYMENTS: SignalTopic.DEPLOYMENT,
    TopicKind.CHAINS: SignalTopic.CHAIN,
    TopicKind.EVENTS: SignalTopic.EVENT,
    TopicKind.PLAN_PREVIEWS: SignalTopic.COMMAND,
    TopicKind.PIPEDS: SignalTopic.PIPED,
}
_SIGNALS_OF_OBJECTS = {
    TopicKind.APPLICATION: SignalTopic.APPLICATION,
    TopicKind.DEPLOYMENT: SignalTopic.DEPLOYMENT,
    TopicKind.CHAIN: SignalTopic.CHAIN,
    TopicKind.COMMAND: SignalTopic.COMMAND,
}


@dataclass(frozen=True)
class PageTopic:
    """Something that a page follows; `run` is set for a log."""

    kind: TopicKind
    id: str = ""
    run: StageRun | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.id}" if self.id else self.kind.value

    def matches(self, signal: Signal) -> bool:
        """Whether the signal may concern the topic."""
        if signal.topic is SignalTopic.EVERYTHING:
            return True
        if self.kind is TopicKind.TAIL:
            deployment_id, stage_id = self.id.split(":")
            grown = f"{deployment_id}/{unquote(stage_id)}"
            return signal.topic is SignalTopic.STAGE_LOG and signal.id == grown
        if self.run is not None:
            stage = f"{self.run.deployment_id}/{self.run.stage_id}"
            return signal.topic is SignalTopic.STAGE_LOG and signal.id == stage
        if self.kind in _SIGNALS_OF_LISTS:
            return signal.topic is _SIGNALS_OF_LISTS[self.kind]
        return signal.topic is _SIGNALS_OF_OBJECTS[self.kind] and signal.id == self.id


def parse_topics(text: str) -> tuple[PageTopic, ...]:
    """The topics of a text such as `dep:ID,log:ID:STAGE:0`; raises UserMistake if invalid."""
    parts = [part for part in text.split(",") if part]
    if not 0 < len(parts) <= MAX_TOPICS:
        raise UserMistake(f"a stream follows 1 to {MAX_TOPICS} topics, not {len(parts)}")
    topics = tuple(_parse_topic(part) for part in parts)
    if sum(topic.run is not None for topic in topics) > 1:
        raise UserMistake("a stream follows one log at most")
    return topics


def _parse_topic(text: str) -> PageTopic:
    word, *rest = text.split(":")
    try:
        kind = TopicKind(word)
    except ValueError as e:
        raise UserMistake(f"there is no topic {word[:_MAX_QUOTED]!r}") from e
    if kind in _SIGNALS_OF_LISTS and not rest:
        return PageTopic(kind)
    if kind in _SIGNALS_OF_OBJECTS and len(rest) == 1 and rest[0]:
        return PageTopic(kind, rest[0])
    if kind is TopicKind.TAIL and len(rest) == 2 and all(rest):
        return PageTopic(kind, ":".join(rest))
    if kind is TopicKind.LOG and len(rest) in (2, 3):
        retried = parse_count(rest[2]) if len(rest) == 3 else 0
        if retried is not None:
            return PageTopic(kind, ":".join(rest), StageRun(rest[0], unquote(rest[1]), retried))
    raise UserMistake(f"the topic {text[:_MAX_QUOTED]!r} is malformed")


@dataclass(frozen=True)
class StreamIntervals:
    """The least time between events of a kind, in seconds."""

    changes: float = 0.5
    log: float = 0.1
    heartbeat: float = 15.0


@dataclass(frozen=True)
class LogChunk:
    """New lines of a log as HTML, and the cursor after them."""

    html: str
    cursor: LogCursor
    completed: bool


@dataclass(frozen=True)
class StreamSources:
    """What a stream reads from."""

    bus: Bus
    # Raises when the session has ended or the user may no longer see the topics.
    authorize: Callable[[], Awaitable[None]]
    read_log: Callable[[LogCursor], Awaitable[LogChunk]]


class StreamSession(NamedTuple):
    """The session of a stream: its id, and the project whose signals the stream receives."""

    id: str
    project: str


_LIST_PERMISSIONS = {
    TopicKind.APPLICATIONS: Permission(Resource.APPLICATION, Action.LIST),
    TopicKind.DEPLOYMENTS: Permission(Resource.DEPLOYMENT, Action.LIST),
    TopicKind.EVENTS: Permission(Resource.EVENT, Action.LIST),
}


async def list_topics(context: PageContext, user: User, *kinds: TopicKind) -> str:
    """The `data-topics` of a page about several lists: those that its user may see."""
    topics: list[str] = []
    for kind in kinds:
        with suppress(Denied):
            if permission := _LIST_PERMISSIONS.get(kind):
                await context.cases.access.scope(user, permission)
            topics.append(kind.value)
    return ",".join(topics)


class SseWriter:
    """Writes server-sent events to one HTTP response."""

    def __init__(self, send: Send) -> None:
        self._send, self._lock = send, asyncio.Lock()

    async def start(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def write(self, event: str, data: str, id: str = "") -> None:
        fields = [f"event: {event}", *([f"id: {id}"] if id else [])]
        fields += [f"data: {line}" for line in data.split("\n")]
        body = ("\n".join(fields) + "\n\n").encode()
        async with self._lock:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def close(self, reason: str) -> None:
        """Ends the response; the reason tells the browser whether to reconnect."""
        if reason:
            await self.write("close", reason)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream:
    """The response to one browser; it ends when the browser disconnects or `close` is called."""

    def __init__(
        self,
        session: StreamSession,
        topics: Sequence[PageTopic],
        cursor: LogCursor,
        sources: StreamSources,
        intervals: StreamIntervals,
        refused: Sequence[PageTopic] = (),
    ) -> None:
        self._session, self._topics, self._cursor = session, topics, cursor
        self._refused = refused
        self._sources, self._intervals = sources, intervals
        self._has_log = any(topic.run is not None for topic in topics)
        self._changed_topics: dict[str, None] = {}
        self._changed, self._log_grew = asyncio.Event(), asyncio.Event()
        self._access_changed = asyncio.Event()
        self._closed, self._close_reason = asyncio.Event(), ""

    def close(self, reason: str) -> None:
        """Ends the stream and sends the reason to the browser."""
        self._close_reason = self._close_reason or reason
        self._closed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = SseWriter(send)
        await writer.start()
        async with (
            self._sources.bus.subscribe(project=self._session.project) as signals,
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(coroutine)
                for coroutine in (
                    self._receive_signals(signals),
                    self._send_changes(writer),
                    self._send_log(writer),
                    self._send_heartbeats(writer),
                    self._wait_for_disconnect(receive),
                )
            ]
            await self._closed.wait()
            for task in tasks:
                task.cancel()
        await writer.close(self._close_reason)

    async def _receive_signals(self, signals: AsyncIterator[Signal]) -> None:
        async for signal in signals:
            # The end of one session is no news for the streams of others.
            is_of_another = signal.topic is SignalTopic.SESSION and signal.id not in (
                "",
                self._session.id,
            )
            if signal.topic in _ACCESS_CHANGED and not is_of_another:
                self._access_changed.set()
            for topic in self._topics:
                if not topic.matches(signal):
                    continue
                if topic.run is not None:
                    self._log_grew.set()
                else:
                    self._changed_topics[str(topic)] = None
                    self._changed.set()
        self.close("restarting")

    async def _send_changes(self, writer: SseWriter) -> None:
        await writer.write("hello", json.dumps({"refused": [str(each) for each in self._refused]}))
        while True:
            await self._changed.wait()
            self._changed.clear()
            topics, self._changed_topics = list(self._changed_topics), {}
            await writer.write("change", json.dumps({"topics": topics}))
            await asyncio.sleep(self._intervals.changes)

    async def _send_log(self, writer: SseWriter) -> None:
        while self._has_log:
            self._log_grew.clear()
            try:
                chunk = await self._sources.read_log(self._cursor)
            except PipecdError as e:
                self.close(_close_reason(e))
                return
            self._cursor = chunk.cursor
            if chunk.html:
                await writer.write("log", chunk.html, id=str(chunk.cursor))
            if chunk.completed:
                await writer.write("log-end", "{}")
                return
            await asyncio.sleep(self._intervals.log)
            await self._log_grew.wait()

    async def _send_heartbeats(self, writer: SseWriter) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._intervals.heartbeat):
                    await self._access_changed.wait()
            self._access_changed.clear()
            try:
                await self._sources.authorize()
            except PipecdError as e:
                self.close(_close_reason(e))
                return
            await writer.write("heartbeat", "{}")

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._closed.set()


def _close_reason(error: PipecdError) -> str:
    match error:
        case Unauthenticated():
            return "signed-out"
        case Unavailable():
            return "restarting"
        case _:
            return "denied"


class LiveUpdates:
    """The endpoint of the streams, and all streams that are open."""

    def __init__(
        self, context: PageContext, bus: Bus, intervals: StreamIntervals | None = None
    ) -> None:
        self._context, self._bus = context, bus
        self._intervals = intervals or StreamIntervals()
        self._open: defaultdict[str, list[EventStream]] = defaultdict(list)

    def routes(self) -> list[Route]:
        return [Route("/_/stream", self._context.page(self.stream_events), methods=["GET"])]

    def open_streams(self) -> int:
        """The number of open streams."""
        return sum(map(len, self._open.values()))

    async def stream_events(self, request: Request, session: BrowserSession) -> ASGIApp:
        try:
            parsed = parse_topics(request.query_params.get("t", ""))
        except UserMistake:
            # A script has sent them, which needs no page; what it sent is not repeated.
            return PlainTextResponse("the topics cannot be read", 400)
        topics, refused = await self._visible_topics(parsed, session)
        # A browser that reconnects by itself sends the header; live.js sends the parameter.
        after = request.headers.get("Last-Event-ID") or request.query_params.get("after", "")
        zone = browser_time_zone(request)
        run = next((topic.run for topic in topics if topic.run is not None), None)

        async def read_log(cursor: LogCursor) -> LogChunk:
            if run is None:
                return LogChunk("", cursor, completed=True)
            logs = self._context.cases.logs
            try:
                part = await logs.stage_log(run, cursor.index + 1, by=session.user)
            except NotFound:
                return LogChunk("", cursor, completed=False)
            lines = await asyncio.to_thread(log_lines, part.blocks, cursor, zone)
            if not lines:
                return LogChunk("", cursor, part.completed)
            html = self._context.renderer.render("log_lines.html", lines=lines)
            return LogChunk(html, LogCursor(lines[-1].index, lines[-1].number), part.completed)

        stream = EventStream(
            StreamSession(session_id(session.token), session.user.project),
            topics,
            parse_cursor(after),
            StreamSources(self._bus, lambda: self._authorize(topics, session), read_log),
            self._intervals,
            refused,
        )

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            streams = self._open[session.token]
            streams.append(stream)
            if len(streams) > MAX_STREAMS_PER_SESSION:
                streams.pop(0).close("replaced")
            try:
                await stream(scope, receive, send)
            finally:
                if stream in streams:
                    streams.remove(stream)
                if not streams:
                    self._open.pop(session.token, None)

        return respond

    async def _visible_topics(
        self, topics: tuple[PageTopic, ...], session: BrowserSession
    ) -> tuple[tuple[PageTopic, ...], tuple[PageTopic, ...]]:
        """The topics that the user may follow, and those that are refused; raises if all are.

        A stream has the topics of several windows: one of them must not stop the others.
        """
        user = await self._context.cases.sessions.user(session.token, afresh=True)
        visible: list[PageTopic] = []
        refused: dict[PageTopic, PipecdError] = {}
        for topic in topics:
            try:
                await self._require(topic, user)
                visible.append(topic)
            except (Denied, NotFound) as e:
                refused[topic] = e
        if not visible:
            raise next(iter(refused.values()))
        return tuple(visible), tuple(refused)

    async def _authorize(self, topics: tuple[PageTopic, ...], session: BrowserSession) -> None:
        """Raises unless the session is still valid and its user may see every topic."""
        user = await self._context.cases.sessions.user(session.token, afresh=True)
        for topic in topics:
            await self._require(topic, user)

    async def _require(self, topic: PageTopic, user: User) -> None:
        """Raises unless the user may see what the topic is about."""
        cases = self._context.cases
        match topic.kind:
            case TopicKind.APPLICATIONS | TopicKind.PLAN_PREVIEWS:
                await cases.applications.list(ApplicationFilter(user.project), _ONE, by=user)
            case TopicKind.DEPLOYMENTS:
                await cases.deployments.list(DeploymentFilter(user.project), _ONE, by=user)
            case TopicKind.APPLICATION:
                await cases.applications.get(topic.id, by=user)
            case TopicKind.DEPLOYMENT:
                await cases.deployments.get(topic.id, by=user)
            case TopicKind.CHAINS:
                await cases.chains.list(_ONE, by=user)
            case TopicKind.CHAIN:
                await cases.chains.get(topic.id, by=user)
            case TopicKind.EVENTS:
                await cases.events.list(EventFilter(user.project), _ONE, by=user)
            case TopicKind.COMMAND:
                await cases.commands.get(topic.id, by=user)
            case TopicKind.LOG | TopicKind.TAIL:
                await cases.deployments.get(topic.id.split(":")[0], by=user)
            case TopicKind.PIPEDS:
                # The event carries no data, and the page hides pipeds without permission.
                pass
