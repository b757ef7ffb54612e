# SPDX-License-Identifier: Apache-2.0
"""One browser listening: signals of the bus become server-sent events.

An event says that something changed and the page fetches itself anew; only log lines carry their
content. Losing one costs nothing: whoever connects is told to fetch first.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from pipecd.controlplane.bus.signal import Bus, Signal
from pipecd.controlplane.bus.signal import Topic as Heard
from pipecd.controlplane.console.live_topic import Topic
from pipecd.controlplane.console.stage_log import Place
from pipecd.model.errors import PipecdError, Unauthenticated, Unavailable

# What may have ended the session or taken a right.
_DOUBTS = (Heard.PROJECT, Heard.EVERYTHING)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True)
class Pace:
    """How often things are said, in seconds."""

    changes: float = 0.5
    lines: float = 0.1
    beat: float = 15.0


@dataclass(frozen=True)
class Lines:
    """New lines of a log as HTML, and where the reader stands after them."""

    html: str
    place: Place
    completed: bool


@dataclass(frozen=True)
class Sources:
    """Where a stream gets what it tells."""

    bus: Bus
    # Raises when the reader may no longer hear of the topics.
    check: Callable[[], Awaitable[None]]
    lines: Callable[[Place], Awaitable[Lines]]


class Voice:
    """Says one thing at a time to a browser."""

    def __init__(self, send: Send) -> None:
        self._send, self._speaking = send, asyncio.Lock()

    async def begin(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def say(self, event: str, data: str, id: str = "") -> None:
        fields = [f"event: {event}", *([f"id: {id}"] if id else [])]
        fields += [f"data: {line}" for line in data.split("\n")]
        body = ("\n".join(fields) + "\n\n").encode()
        async with self._speaking:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, reason: str) -> None:
        if reason:
            await self.say("bye", reason)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream:
    """The answer to one listening browser; it ends when either side has enough."""

    def __init__(
        self, project: str, topics: Sequence[Topic], place: Place, sources: Sources, pace: Pace
    ) -> None:
        self._project, self._topics, self._place = project, topics, place
        self._sources, self._pace = sources, pace
        self._has_log = any(topic.run is not None for topic in topics)
        self._changed: dict[str, None] = {}
        self._something_changed, self._log_grew = asyncio.Event(), asyncio.Event()
        self._in_doubt = asyncio.Event()
        self._over, self._reason = asyncio.Event(), ""

    def end(self, reason: str) -> None:
        """Says goodbye with the reason and ends."""
        self._reason = self._reason or reason
        self._over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        voice = Voice(send)
        await voice.begin()
        async with (
            self._sources.bus.subscribe(project=self._project) as signals,
            asyncio.TaskGroup() as tasks,
        ):
            parts = [
                tasks.create_task(part)
                for part in (
                    self._hear(signals),
                    self._tell_changes(voice),
                    self._tell_lines(voice),
                    self._beat(voice),
                    self._notice_departure(receive),
                )
            ]
            await self._over.wait()
            for part in parts:
                part.cancel()
        await voice.end(self._reason)

    async def _hear(self, signals: AsyncIterator[Signal]) -> None:
        async for signal in signals:
            if signal.topic in _DOUBTS:
                self._in_doubt.set()
            for topic in self._topics:
                if not topic.hears(signal):
                    continue
                if topic.run is not None:
                    self._log_grew.set()
                else:
                    self._changed[str(topic)] = None
                    self._something_changed.set()
        self.end("restarting")

    async def _tell_changes(self, voice: Voice) -> None:
        await voice.say("hello", "{}")
        while True:
            await self._something_changed.wait()
            self._something_changed.clear()
            topics, self._changed = list(self._changed), {}
            await voice.say("change", json.dumps({"topics": topics}))
            await asyncio.sleep(self._pace.changes)

    async def _tell_lines(self, voice: Voice) -> None:
        while self._has_log:
            self._log_grew.clear()
            try:
                lines = await self._sources.lines(self._place)
            except PipecdError as e:
                self.end(_goodbye(e))
                return
            self._place = lines.place
            if lines.html:
                await voice.say("log", lines.html, id=str(lines.place))
            if lines.completed:
                await voice.say("log-end", "{}")
                return
            await asyncio.sleep(self._pace.lines)
            await self._log_grew.wait()

    async def _beat(self, voice: Voice) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.beat):
                    await self._in_doubt.wait()
            self._in_doubt.clear()
            try:
                await self._sources.check()
            except PipecdError as e:
                self.end(_goodbye(e))
                return
            await voice.say("beat", "{}")

    async def _notice_departure(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._over.set()


def _goodbye(error: PipecdError) -> str:
    match error:
        case Unauthenticated():
            return "signed-out"
        case Unavailable():
            return "restarting"
        case _:
            return "denied"
