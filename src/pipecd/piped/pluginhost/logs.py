# SPDX-License-Identifier: Apache-2.0
"""Passes the lines of stage logs on to the control plane, as many as it should hold."""

import asyncio
import base64
import binascii
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError

from pipecd.model.errors import Unavailable
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.pluginhost.masks import MaskedLog, Masks, with_text
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.service import piped_pb2
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest as Checkpoint,
)
from pipecd.sdk.log import CUT, LONGEST_LOG

log = structlog.get_logger()

ValueT = TypeVar("ValueT")

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
                yield with_text(block, CUT)
            elif is_end and place > len(blocks) - _LAST_LINES:
                yield block


class LogSpool:
    """The lines of a stage on disk, without secrets, until the control plane has them."""

    def __init__(self, path: Path, masked: MaskedLog) -> None:
        self._path, self._masked = path, masked
        self._blocks: list[LogBlock] = []
        self._is_broken = False

    def add(self, block: LogBlock) -> None:
        """Keeps a line; what is written here is there after piped was killed."""
        hidden = self._masked.hide([block])
        self._blocks += hidden
        self._do(lambda: _append(self._path, hidden))

    def forget_through(self, index: int) -> None:
        """The control plane has everything up to this line."""
        self._blocks = [block for block in self._blocks if block.index > index]
        self._do(self._rewrite)

    def _rewrite(self) -> None:
        if not self._blocks:
            self._path.unlink(missing_ok=True)
            return
        # A piped that is killed meanwhile finds the old lines or the new ones.
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        _append(fresh, self._blocks)
        fresh.replace(self._path)

    def _do(self, write: Callable[[], None]) -> None:
        if self._is_broken:
            return
        try:
            write()
        except OSError as e:
            # A stage is worth more than the memory of its log.
            self._is_broken = True
            log.warning("a stage log is not kept on disk", path=str(self._path), error=str(e))


def _append(path: Path, blocks: Sequence[LogBlock]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("ab") as file:
        for block in blocks:
            file.write(base64.b64encode(block.SerializeToString()) + b"\n")


def read_spool(path: Path) -> list[LogBlock]:
    """The lines that a killed piped left behind; it may have been killed amid the last one."""
    blocks: list[LogBlock] = []
    with suppress(FileNotFoundError, binascii.Error, DecodeError):
        for line in path.read_bytes().splitlines():
            blocks.append(LogBlock.FromString(base64.b64decode(line, validate=True)))
    return blocks


class LogRelay:
    """The two RPCs of PluginService that carry logs; secrets and floods do not get past it.

    The end of a log is kept for whoever runs the stage: a log must not be closed before it is
    certain that the stage will not run again. What the control plane was away for is kept too.
    """

    def __init__(
        self, api: ControlPlaneClient, *, logs: Callable[[str], Path] | None = None
    ) -> None:
        """`logs` says where the lines of a deployment are kept until they have left."""
        self._api, self._logs = api, logs
        self.masks = Masks()
        self._allowances: dict[tuple[str, str], _Allowance] = {}
        self._kept: dict[tuple[str, str], list[Checkpoint]] = {}
        self._spools: dict[tuple[str, str], LogSpool] = {}
        # Reports and checkpoints have the same lines, each in its own requests.
        self._reported: dict[tuple[str, str], MaskedLog] = {}
        self._checkpointed: dict[tuple[str, str], MaskedLog] = {}

    def spool(self, deployment_id: str, stage_id: str) -> LogSpool | None:
        """Where a stage in this process keeps its lines."""
        if self._logs is None:
            return None
        path = self._logs(deployment_id) / stage_id
        masked = MaskedLog(self.masks, deployment_id)
        return _remembered(self._spools, (deployment_id, stage_id), lambda: LogSpool(path, masked))

    async def send_spooled(self, deployment_id: str, stage_id: str) -> None:
        """Sends what a killed piped could not send any more."""
        if self._logs is None:
            return
        path = self._logs(deployment_id) / stage_id
        if blocks := await asyncio.to_thread(read_spool, path):
            await self.ReportStageLogsFromLastCheckpoint(
                pb.ReportStageLogsFromLastCheckpointRequest(
                    deployment_id=deployment_id, stage_id=stage_id, blocks=blocks
                )
            )
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def forget_spooled(self, deployment_id: str, stage_id: str) -> None:
        """The stage is over, and the rest of its log is kept elsewhere."""
        if (spool := self._spools.pop((deployment_id, stage_id), None)) is not None:
            spool.forget_through(sys.maxsize)

    def take_end(self, deployment_id: str, stage_id: str) -> tuple[Checkpoint, ...]:
        """What is left to be told about the log of a stage that is over."""
        for remembered in (self._allowances, self._reported, self._checkpointed):
            remembered.pop((deployment_id, stage_id), None)
        return tuple(self._kept.pop((deployment_id, stage_id), ()))

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        key = (request.deployment_id, request.stage_id)
        passed = self._allowance(*key).let_through(request.blocks, is_end=False)
        hidden = self._masked(self._reported, key).hide(list(passed))
        if blocks := list(_fit_to_read(hidden)):
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
        key, is_end = (request.deployment_id, request.stage_id), request.completed
        passed = self._allowance(*key).let_through(request.blocks, is_end=is_end)
        hidden = self._masked(self._checkpointed, key).hide(list(passed), is_end=is_end)
        checkpoint = Checkpoint(
            deployment_id=request.deployment_id,
            stage_id=request.stage_id,
            retried_count=request.retried_count,
            blocks=_fit_to_read(hidden),
            completed=request.completed,
        )
        _remembered(self._kept, key, list[Checkpoint]).append(checkpoint)
        if not request.completed:
            await self._send_kept(key)
        return pb.ReportStageLogsFromLastCheckpointResponse()

    async def _send_kept(self, key: tuple[str, str]) -> None:
        """Sends what is kept in its order, as far as the control plane takes it."""
        try:
            while kept := self._kept.get(key):
                await self._api.report_stage_logs_from_last_checkpoint(kept[0])
                sent = kept.pop(0)
                if (spool := self._spools.get(key)) is not None and sent.blocks:
                    spool.forget_through(sent.blocks[-1].index)
        except Unavailable as e:
            log.warning("stage log not sent, keeping it", stage=key[1], error=str(e))

    def _allowance(self, deployment_id: str, stage_id: str) -> _Allowance:
        return _remembered(self._allowances, (deployment_id, stage_id), _Allowance)

    def _masked(self, of: dict[tuple[str, str], MaskedLog], key: tuple[str, str]) -> MaskedLog:
        return _remembered(of, key, lambda: MaskedLog(self.masks, key[0]))


def _fit_to_read(blocks: Sequence[LogBlock]) -> Iterator[LogBlock]:
    """No line longer than a page."""
    for block in blocks:
        is_long = len(block.log) > _LONGEST_LINE
        yield with_text(block, f"{block.log[:_LONGEST_LINE]}…") if is_long else block


def _remembered(
    of: dict[tuple[str, str], ValueT], key: tuple[str, str], new: Callable[[], ValueT]
) -> ValueT:
    """What is remembered of a stage; one that never ends must not be remembered for ever."""
    if key not in of and len(of) >= _STAGES_REMEMBERED:
        del of[next(iter(of))]
    return of.setdefault(key, new())
