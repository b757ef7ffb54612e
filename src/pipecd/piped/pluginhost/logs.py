# SPDX-License-Identifier: Apache-2.0
"""Passes the lines of stage logs on to the control plane, as many as it should hold."""

from collections.abc import Iterable, Iterator, Sequence

from pipecd.piped.api import PipedApi
from pipecd.piped.pluginhost.masks import Masks
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.service import piped_pb2
from pipecd.sdk.log import CUT, LONGEST_LOG

_LONGEST_LINE = 64 << 10
# The reason of an ending comes last and is read first.
_LAST_LINES = 20
_STAGES_REMEMBERED = 1000


class _Allowance:
    """How much of one stage's log has passed, and from which line on it is too much."""

    def __init__(self) -> None:
        self._last_index = -1
        self._bytes = 0
        self._cut: int | None = None

    def let_through(self, blocks: Sequence[LogBlock], *, is_end: bool) -> Iterator[LogBlock]:
        """The blocks that may pass; one that was sent before counts once."""
        for place, block in enumerate(blocks, start=1):
            if block.index > self._last_index:
                self._last_index = block.index
                self._bytes += len(block.log)
                if self._cut is None and self._bytes > LONGEST_LOG:
                    self._cut = block.index
            if self._cut is None or block.index < self._cut:
                yield block
            elif block.index == self._cut:
                yield _with_text(block, CUT)
            elif is_end and place > len(blocks) - _LAST_LINES:
                yield block


class LogRelay:
    """The two RPCs of PluginService that carry logs; secrets and floods do not get past it."""

    def __init__(self, api: PipedApi) -> None:
        self._api = api
        self.masks = Masks()
        self._allowances: dict[tuple[str, str], _Allowance] = {}

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        passed = self._allowance(request.deployment_id, request.stage_id).let_through(
            request.blocks, is_end=False
        )
        if blocks := list(self._fit_to_read(request.deployment_id, passed)):
            await self._api.report_stage_logs(
                piped_pb2.ReportStageLogsRequest(
                    deployment_id=request.deployment_id,
                    stage_id=request.stage_id,
                    retried_count=request.retried_count,
                    blocks=blocks,
                )
            )
        return pb.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        passed = self._allowance(request.deployment_id, request.stage_id).let_through(
            request.blocks, is_end=request.completed
        )
        await self._api.report_stage_logs_from_last_checkpoint(
            piped_pb2.ReportStageLogsFromLastCheckpointRequest(
                deployment_id=request.deployment_id,
                stage_id=request.stage_id,
                retried_count=request.retried_count,
                blocks=self._fit_to_read(request.deployment_id, passed),
                completed=request.completed,
            )
        )
        if request.completed:
            self._allowances.pop((request.deployment_id, request.stage_id), None)
        return pb.ReportStageLogsFromLastCheckpointResponse()

    def _allowance(self, deployment_id: str, stage_id: str) -> _Allowance:
        key = (deployment_id, stage_id)
        if key not in self._allowances and len(self._allowances) >= _STAGES_REMEMBERED:
            # A stage that never closes its log must not be remembered for ever.
            del self._allowances[next(iter(self._allowances))]
        return self._allowances.setdefault(key, _Allowance())

    def _fit_to_read(self, deployment_id: str, blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
        """Without secrets, and no line longer than a page."""
        for block in blocks:
            text = self.masks.hide(deployment_id, block.log)
            if len(text) > _LONGEST_LINE:
                text = f"{text[:_LONGEST_LINE]}…"
            yield block if text == block.log else _with_text(block, text)


def _with_text(block: LogBlock, text: str) -> LogBlock:
    return LogBlock(
        index=block.index, log=text, severity=block.severity, created_at=block.created_at
    )
