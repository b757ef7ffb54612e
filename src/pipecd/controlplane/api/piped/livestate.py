# SPDX-License-Identifier: Apache-2.0
"""What is running, as a piped sees it."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import piped_pb2 as pb


class LiveStateRpcs:
    """The RPCs about live state."""

    def __init__(self, cases: UseCases) -> None:
        self._livestate = cases.livestate

    async def ReportApplicationLiveState(
        self, request: pb.ReportApplicationLiveStateRequest, caller: PipedCaller
    ) -> pb.ReportApplicationLiveStateResponse:
        await self._livestate.report(request.snapshot, by=caller)
        return pb.ReportApplicationLiveStateResponse()

    async def ReportApplicationLiveStateEvents(
        self, request: pb.ReportApplicationLiveStateEventsRequest, caller: PipedCaller
    ) -> pb.ReportApplicationLiveStateEventsResponse:
        await self._livestate.report_events(request.kubernetes_events, by=caller)
        return pb.ReportApplicationLiveStateEventsResponse()
