# SPDX-License-Identifier: Apache-2.0
"""Events, for people."""

from pipecd.controlplane.api.web.options import page_of
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import web_pb2 as pb


class EventRpcs:
    """The RPCs about events."""

    def __init__(self, cases: UseCases) -> None:
        self._events = cases.events

    async def ListEvents(
        self, request: pb.ListEventsRequest, caller: User
    ) -> pb.ListEventsResponse:
        options = request.options
        wanted = EventFilter(
            project=caller.project,
            name=options.name,
            statuses=tuple(options.statuses[:1]),
            labels=options.labels,
        )
        found = await self._events.listed(wanted, page_of(request), by=caller)
        return pb.ListEventsResponse(events=found.items, cursor=found.cursor)
