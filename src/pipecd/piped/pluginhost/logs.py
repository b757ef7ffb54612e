# SPDX-License-Identifier: Apache-2.0
"""Passes the lines of stage logs on to the control plane."""

from collections.abc import Iterable, Iterator

from pipecd.piped.api import PipedApi
from pipecd.piped.pluginhost.masks import Masks
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.service import piped_pb2


class LogRelay:
    """The two RPCs of PluginService that carry logs; secrets do not get past it."""

    def __init__(self, api: PipedApi) -> None:
        self._api = api
        self.masks = Masks()

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        await self._api.report_stage_logs(
            piped_pb2.ReportStageLogsRequest(
                deployment_id=request.deployment_id,
                stage_id=request.stage_id,
                retried_count=request.retried_count,
                blocks=self._masked(request.deployment_id, request.blocks),
            )
        )
        return pb.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        await self._api.report_stage_logs_from_last_checkpoint(
            piped_pb2.ReportStageLogsFromLastCheckpointRequest(
                deployment_id=request.deployment_id,
                stage_id=request.stage_id,
                retried_count=request.retried_count,
                blocks=self._masked(request.deployment_id, request.blocks),
                completed=request.completed,
            )
        )
        return pb.ReportStageLogsFromLastCheckpointResponse()

    def _masked(self, deployment_id: str, blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
        for block in blocks:
            text = self.masks.hide(deployment_id, block.log)
            if text == block.log:
                yield block
            else:
                yield LogBlock(
                    index=block.index,
                    log=text,
                    severity=block.severity,
                    created_at=block.created_at,
                )
