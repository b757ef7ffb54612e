# SPDX-License-Identifier: Apache-2.0
"""The pages of events: the list, and the page of one with the deployments it led to."""

from collections.abc import Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.console.deployments_view import DeploymentRow, deployment_row
from pipecd.controlplane.console.events_view import (
    EVENT_STATUSES,
    event_row,
    events_by_day,
    parse_event_query,
    register_command,
)
from pipecd.controlplane.console.filled_page import filled_page
from pipecd.controlplane.console.formatting import pipectl_flags
from pipecd.controlplane.console.live_updates import TopicKind, list_topics
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.errors import Denied
from pipecd.proto.model.event_pb2 import Event

LIST_PATH = "/events"
_MAX_DEPLOYMENTS = 20


class EventPages:
    """Routes and handlers of the pages of events."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page = self._context.page
        return [
            Route(LIST_PATH, page(self.list_page), methods=["GET"]),
            Route(f"{LIST_PATH}/{{id}}", page(self.show_page), methods=["GET"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        user, query = session.user, parse_event_query(request.query_params)

        async def read(part: PageRequest) -> tuple[Sequence[Event], str]:
            listed = await self._context.cases.events.list(
                query.filter(user.project), part, by=user
            )
            return listed.items, listed.cursor

        found, cursor = await filled_page(read, query.matches, query.before)
        url = query.url()
        return self._context.render(
            request,
            "events.html",
            pipectl_flags=" \\\n  ".join(pipectl_flags(self._context.public_url(request))),
            days=events_by_day(found, self._context.local_now(request)),
            query=query,
            statuses=EVENT_STATUSES,
            chips=url.chips(query.active_filters()),
            url=url,
            older=url.with_params(before=cursor) if cursor else "",
        )

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        event = await self._context.cases.events.get(request.path_params["id"], by=session.user)
        now = self._context.local_now(request)
        rows: tuple[DeploymentRow, ...] = ()
        if event.trigger_commit_hash:
            caused = DeploymentFilter(
                session.user.project, trace_commit_hash=event.trigger_commit_hash
            )
            with suppress(Denied):
                listed = await self._context.cases.deployments.list(
                    caused, PageRequest(_MAX_DEPLOYMENTS), by=session.user
                )
                rows = tuple(deployment_row(each, now) for each in listed.items)
        return self._context.render(
            request,
            "event.html",
            row=event_row(event, now),
            register=register_command(event, self._context.public_url(request)),
            deployments=rows,
            topics=await list_topics(
                self._context, session.user, TopicKind.EVENTS, TopicKind.DEPLOYMENTS
            ),
        )
