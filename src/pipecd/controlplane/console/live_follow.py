# SPDX-License-Identifier: Apache-2.0
"""Live pages: who may listen to what, and how many streams a session may hold."""

from collections import defaultdict

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.console.live_topic import Subject, Topic, read_topics
from pipecd.controlplane.console.live_updates import EventStream, Lines, Pace, Sources
from pipecd.controlplane.console.page_context import Door, Visitor
from pipecd.controlplane.console.rendering import Renderer
from pipecd.controlplane.console.stage_log import Place, log_lines, read_place
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.model.errors import NotFound

MOST_STREAMS = 4
_ONE = PageRequest(size=1)


class Live:
    """The streams of all open pages."""

    def __init__(self, door: Door, bus: Bus, renderer: Renderer, pace: Pace | None = None) -> None:
        self._door, self._bus, self._renderer = door, bus, renderer
        self._pace = pace or Pace()
        self._open: defaultdict[str, list[EventStream]] = defaultdict(list)

    def routes(self) -> list[Route]:
        return [Route("/_/stream", self._door.page(self._stream), methods=["GET"])]

    def count(self) -> int:
        """How many pages listen now."""
        return sum(map(len, self._open.values()))

    async def _stream(self, request: Request, visitor: Visitor) -> ASGIApp:
        topics = read_topics(request.query_params.get("t", ""))
        await self._check(topics, visitor)
        # A browser that reconnects by itself sends the header; our script sends the parameter.
        after = request.headers.get("Last-Event-ID") or request.query_params.get("after", "")
        run = next((topic.run for topic in topics if topic.run is not None), None)

        async def lines(place: Place) -> Lines:
            return await self._lines(run, place, visitor.person)

        stream = EventStream(
            visitor.person.project,
            topics,
            read_place(after),
            Sources(self._bus, lambda: self._check(topics, visitor), lines),
            self._pace,
        )

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            mine = self._open[visitor.token]
            mine.append(stream)
            if len(mine) > MOST_STREAMS:
                mine.pop(0).end("replaced")
            try:
                await stream(scope, receive, send)
            finally:
                if stream in mine:
                    mine.remove(stream)
                if not mine:
                    self._open.pop(visitor.token, None)

        return answer

    async def _check(self, topics: tuple[Topic, ...], visitor: Visitor) -> None:
        """Raises unless the visitor is still signed in and may see every topic."""
        cases = self._door.cases
        person = await cases.sessions.person(visitor.token, afresh=True)
        for topic in topics:
            match topic.subject:
                case Subject.APPLICATIONS:
                    await cases.applications.listed(
                        ApplicationFilter(person.project), _ONE, by=person
                    )
                case Subject.DEPLOYMENTS:
                    await cases.deployments.listed(
                        DeploymentFilter(person.project), _ONE, by=person
                    )
                case Subject.APPLICATION:
                    await cases.applications.get(topic.id, by=person)
                case Subject.DEPLOYMENT:
                    await cases.deployments.get(topic.id, by=person)
                case Subject.COMMAND:
                    await cases.commands.get(topic.id, by=person)
                case Subject.LOG:
                    await cases.deployments.get(topic.id.split(":")[0], by=person)
                case Subject.PIPEDS:
                    # It only says that some piped changed; the page shows none to who may not see.
                    pass

    async def _lines(self, run: StageRun | None, place: Place, person: User) -> Lines:
        if run is None:
            return Lines("", place, completed=True)
        try:
            part = await self._door.cases.logs.stage_log(run, place.index + 1, by=person)
        except NotFound:
            return Lines("", place, completed=False)
        new = log_lines(part.blocks, place)
        if not new:
            return Lines("", place, part.completed)
        html = self._renderer.render("lines.html", lines=new)
        return Lines(html, Place(new[-1].index, new[-1].number), part.completed)
