# SPDX-License-Identifier: Apache-2.0
"""Events and plan previews, for the pipelines of source repositories."""

from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import api_pb2 as pb


class PreviewRpcs:
    """The RPCs that build pipelines call."""

    def __init__(self, cases: UseCases) -> None:
        self._events, self._previews = cases.events, cases.previews

    async def RegisterEvent(
        self, request: pb.RegisterEventRequest, caller: ApiKeyCaller
    ) -> pb.RegisterEventResponse:
        return pb.RegisterEventResponse(event_id=await self._events.register(request, by=caller))

    async def RequestPlanPreview(
        self, request: pb.RequestPlanPreviewRequest, caller: ApiKeyCaller
    ) -> pb.RequestPlanPreviewResponse:
        commands = await self._previews.request(request, by=caller)
        return pb.RequestPlanPreviewResponse(commands=commands)

    async def GetPlanPreviewResults(
        self, request: pb.GetPlanPreviewResultsRequest, caller: ApiKeyCaller
    ) -> pb.GetPlanPreviewResultsResponse:
        results = await self._previews.results(
            request.commands, request.command_handle_timeout, by=caller
        )
        return pb.GetPlanPreviewResultsResponse(results=results)
