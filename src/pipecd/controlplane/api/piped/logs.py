# SPDX-License-Identifier: Apache-2.0
"""The logs of running stages."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import piped_pb2 as pb


class LogRpcs:
    """The RPCs that append to stage logs."""

    def __init__(self, cases: UseCases) -> None:
        self._logs = cases.logs

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest, caller: PipedCaller
    ) -> pb.ReportStageLogsResponse:
        await self._logs.append(_run(request), request.blocks, by=caller)
        return pb.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest, caller: PipedCaller
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        await self._logs.checkpoint(
            _run(request), request.blocks, completed=request.completed, by=caller
        )
        return pb.ReportStageLogsFromLastCheckpointResponse()


def _run(
    request: pb.ReportStageLogsRequest | pb.ReportStageLogsFromLastCheckpointRequest,
) -> StageRun:
    return StageRun(request.deployment_id, request.stage_id, request.retried_count)
