# SPDX-License-Identifier: Apache-2.0
"""The events that a piped's event watcher acts on."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.events import EventReport
from pipecd.proto.model import event_pb2 as model
from pipecd.proto.service import piped_pb2 as pb

_STATUSES = {
    pb.ListEventsRequest.ALL: (),
    pb.ListEventsRequest.NOT_HANDLED: (model.EVENT_NOT_HANDLED,),
    pb.ListEventsRequest.SUCCESS: (model.EVENT_SUCCESS,),
    pb.ListEventsRequest.FAILURE: (model.EVENT_FAILURE,),
    pb.ListEventsRequest.OUTDATED: (model.EVENT_OUTDATED,),
}


class EventRpcs:
    """The RPCs about events."""

    def __init__(self, cases: UseCases) -> None:
        self._events = cases.events

    async def GetLatestEvent(
        self, request: pb.GetLatestEventRequest, caller: PipedCaller
    ) -> pb.GetLatestEventResponse:
        event = await self._events.latest(request.name, request.labels, by=caller)
        return pb.GetLatestEventResponse(event=event)

    async def ListEvents(
        self, request: pb.ListEventsRequest, caller: PipedCaller
    ) -> pb.ListEventsResponse:
        wanted = EventFilter(
            project=caller.project,
            statuses=_STATUSES[request.status],
            # "from" is a word of Python, so the field is read by its name.
            created_from=max(0, getattr(request, "from")),
            created_to=max(0, request.to),
        )
        events = await self._events.by_creation(
            wanted, descending=request.order == pb.DESC, by=caller
        )
        return pb.ListEventsResponse(events=events)

    async def ReportEventStatuses(
        self, request: pb.ReportEventStatusesRequest, caller: PipedCaller
    ) -> pb.ReportEventStatusesResponse:
        reports = [
            EventReport(event.id, event.status, event.status_description)
            for event in request.events
        ]
        await self._events.report_statuses(reports, by=caller)
        return pb.ReportEventStatusesResponse()
