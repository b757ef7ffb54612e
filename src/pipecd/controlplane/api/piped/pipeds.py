# SPDX-License-Identifier: Apache-2.0
"""What a piped tells and asks about itself."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import piped_pb2 as pb


class PipedRpcs:
    """The RPCs about the calling piped."""

    def __init__(self, cases: UseCases) -> None:
        self._pipeds, self._address = cases.pipeds, cases.address

    async def ReportStat(
        self, request: pb.ReportStatRequest, caller: PipedCaller
    ) -> pb.ReportStatResponse:
        await self._pipeds.stat_reported(request.piped_stats, by=caller)
        return pb.ReportStatResponse()

    async def ReportPipedMeta(
        self, request: pb.ReportPipedMetaRequest, caller: PipedCaller
    ) -> pb.ReportPipedMetaResponse:
        piped = await self._pipeds.meta_reported(request, by=caller)
        return pb.ReportPipedMetaResponse(name=piped.name, web_base_url=self._address)

    async def GetDesiredVersion(
        self, _request: pb.GetDesiredVersionRequest, caller: PipedCaller
    ) -> pb.GetDesiredVersionResponse:
        return pb.GetDesiredVersionResponse(version=await self._pipeds.desired_version(by=caller))
