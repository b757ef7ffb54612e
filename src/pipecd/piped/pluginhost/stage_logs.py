# SPDX-License-Identifier: Apache-2.0
"""Forwards stage logs from plugins to the control plane: masked, limited, spooled on disk."""

import asyncio
import base64
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError

from pipecd.model.errors import Unavailable
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.pluginhost.masking import LogMasker, SecretMasks, with_text
from pipecd.piped.state_file import StateFile
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.service import piped_pb2
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest as Checkpoint,
)
from pipecd.sdk.log import MAX_LOG_LENGTH, TRUNCATED, in_batches

log = structlog.get_logger()

ValueT = TypeVar("ValueT")

_MAX_LINE_LENGTH = 64 << 10
# The last lines say why a stage failed; they pass although the log is too long.
_LAST_LINES = 20
_MAX_STAGES = 1000
# After a spool could not be written, in seconds.
_RETRY_AFTER = 5.0
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class _SizeLimit:
    """Cuts the log of one stage when it is too long."""

    def __init__(self) -> None:
        self._last_index = -1
        self._bytes = 0
        self._cut: int | None = None

    def apply(self, blocks: Sequence[LogBlock], *, is_end: bool) -> Iterator[LogBlock]:
        """Yields the blocks to send; a block that was sent before is counted once."""
        for number, block in enumerate(blocks, start=1):
            if block.index > self._last_index:
                self._last_index = block.index
                self._bytes += len(block.log)
                if self._cut is None and self._bytes > MAX_LOG_LENGTH:
                    self._cut = block.index
            if self._cut is None or block.index < self._cut:
                yield block
            elif block.index == self._cut:
                yield with_text(block, TRUNCATED)
            elif is_end and number > len(blocks) - _LAST_LINES:
                yield block


class LogSpool:
    """The lines of a stage on disk, masked, until the control plane has received them."""

    def __init__(self, path: Path, masker: LogMasker, blocks: Sequence[LogBlock] = ()) -> None:
        """`blocks` are the lines that an earlier process left in the file."""
        self._state = StateFile(path, "a restart may lose lines of this stage")
        self._path, self._masker = path, masker
        self._blocks = list(blocks)
        # While the file cannot be written: when it is tried again.
        self._retry_at: float | None = None

    def add(self, *blocks: LogBlock) -> None:
        """Adds lines, which survive if piped is killed."""
        masked = self._masker.hide(blocks)
        self._blocks += masked
        self._write(lambda: _append(self._path, masked))

    @property
    def blocks(self) -> Sequence[LogBlock]:
        """The lines, as far as the control plane has not received them."""
        return self._blocks

    def forget_through(self, index: int) -> None:
        """Drops the lines up to this one, which the control plane has received."""
        self._blocks = [block for block in self._blocks if block.index > index]
        self._write(self._rewrite)

    def _rewrite(self) -> None:
        if not self._blocks:
            self._path.unlink(missing_ok=True)
            return
        # A piped that is killed meanwhile leaves either the old lines or the new ones.
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        _append(fresh, self._blocks)
        fresh.replace(self._path)

    def _write(self, write: Callable[[], None]) -> None:
        if self._retry_at is not None:
            if time.monotonic() < self._retry_at:
                return
            write = self._rewrite
        try:
            write()
        except OSError as e:
            # The stage goes on without its spool.
            self._retry_at = time.monotonic() + _RETRY_AFTER
            self._state.failed(e)
        else:
            self._retry_at = None
            self._state.succeeded()


def _append(path: Path, blocks: Sequence[LogBlock]) -> None:
    lines = b"".join(base64.b64encode(block.SerializeToString()) + b"\n" for block in blocks)
    try:
        file = os.open(path, _APPEND, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, _APPEND, 0o600)
    try:
        # A nearly full disk takes a part, and refuses the rest.
        while lines:
            lines = lines[os.write(file, lines) :]
    finally:
        os.close(file)


def read_spool(path: Path) -> list[LogBlock]:
    """Returns the lines that a killed piped left behind; a file with invalid ones is set aside."""
    state = StateFile(path, "lines of this stage are lost")
    blocks: list[LogBlock] = []
    invalid: Exception | None = None
    # After the last line there is nothing, or what a killed piped could not complete.
    for line in (state.read(bytes) or b"").split(b"\n")[:-1]:
        try:
            blocks.append(LogBlock.FromString(base64.b64decode(line, validate=True)))
        except (ValueError, DecodeError) as e:
            invalid = e
    if invalid is not None:
        state.set_aside(invalid)
    return blocks


class LogRelay:
    """The two RPCs of PluginService that carry logs.

    The end of a log stays here until the scheduler takes it: a log must not be closed before it is
    certain that the stage will not run again. So do checkpoints while the control plane is
    unavailable.
    """

    def __init__(
        self, api: ControlPlaneClient, *, logs: Callable[[str], Path] | None = None
    ) -> None:
        """`logs` returns the directory in which the logs of a deployment are spooled."""
        self._api, self._logs = api, logs
        self.masks = SecretMasks()
        self._limits: dict[tuple[str, str], _SizeLimit] = {}
        self._unsent: dict[tuple[str, str], list[Checkpoint]] = {}
        self._spools: dict[tuple[str, str], LogSpool] = {}
        # Reports and checkpoints repeat the same lines in different requests.
        self._reported: dict[tuple[str, str], LogMasker] = {}
        self._checkpointed: dict[tuple[str, str], LogMasker] = {}

    def spool(self, deployment_id: str, stage_id: str) -> LogSpool | None:
        """Returns the spool of a stage that runs in this process."""
        if self._logs is None:
            return None
        return self._spool_at(self._logs(deployment_id) / stage_id, deployment_id, stage_id)

    def _spool_at(
        self, path: Path, deployment_id: str, stage_id: str, blocks: Sequence[LogBlock] = ()
    ) -> LogSpool:
        masker = LogMasker(self.masks, deployment_id)
        key = (deployment_id, stage_id)
        return _get_or_add(self._spools, key, lambda: LogSpool(path, masker, blocks))

    async def send_spooled(self, deployment_id: str, stage_id: str) -> None:
        """Sends what an earlier process had not sent; it stays on disk until it is received."""
        if self._logs is None:
            return
        path = self._logs(deployment_id) / stage_id
        if not (blocks := await asyncio.to_thread(read_spool, path)):
            return
        self._spool_at(path, deployment_id, stage_id, blocks)
        for batch in in_batches(blocks):
            self._add_unsent(
                pb.ReportStageLogsFromLastCheckpointRequest(
                    deployment_id=deployment_id, stage_id=stage_id, blocks=batch
                )
            )
        await self._send_unsent((deployment_id, stage_id))

    def forget_spooled(self, deployment_id: str, stage_id: str) -> None:
        """Deletes the spool of a stage that has ended; the rest of its log is in the journal."""
        if (spool := self._spools.pop((deployment_id, stage_id), None)) is not None:
            spool.forget_through(sys.maxsize)

    def take_unsent(self, deployment_id: str, stage_id: str) -> tuple[Checkpoint, ...]:
        """Returns what is left to send of the log of a stage that has ended.

        In an outage a stage may end before it could hand over all of its lines; its spool has them.
        """
        key = (deployment_id, stage_id)
        limit = self._limits.pop(key, None) or _SizeLimit()
        for by_stage in (self._reported, self._checkpointed):
            by_stage.pop(key, None)
        unsent = _without_repeated(self._unsent.pop(key, ()))
        spool = self._spools.get(key)
        if spool is None or any(checkpoint.completed for checkpoint in unsent):
            return unsent
        known = {block.index for checkpoint in unsent for block in checkpoint.blocks}
        rest = [block for block in spool.blocks if block.index not in known]
        if not rest:
            return unsent
        batches = list(in_batches(list(limit.apply(rest, is_end=True))))
        return unsent + tuple(
            Checkpoint(
                deployment_id=deployment_id,
                stage_id=stage_id,
                blocks=_truncate_lines(blocks),
                # The stage had no time to close its log either.
                completed=blocks is batches[-1],
            )
            for blocks in batches
        )

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        key = (request.deployment_id, request.stage_id)
        passed = _get_or_add(self._limits, key, _SizeLimit).apply(request.blocks, is_end=False)
        masked = self._masker(self._reported, key).hide(list(passed))
        if blocks := list(_truncate_lines(masked)):
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
        self._add_unsent(request)
        if not request.completed:
            await self._send_unsent((request.deployment_id, request.stage_id))
        return pb.ReportStageLogsFromLastCheckpointResponse()

    def _add_unsent(self, request: pb.ReportStageLogsFromLastCheckpointRequest) -> None:
        key, is_end = (request.deployment_id, request.stage_id), request.completed
        passed = _get_or_add(self._limits, key, _SizeLimit).apply(request.blocks, is_end=is_end)
        masked = self._masker(self._checkpointed, key).hide(list(passed), is_end=is_end)
        checkpoint = Checkpoint(
            deployment_id=request.deployment_id,
            stage_id=request.stage_id,
            retried_count=request.retried_count,
            blocks=_truncate_lines(masked),
            completed=request.completed,
        )
        _get_or_add(self._unsent, key, list[Checkpoint]).append(checkpoint)

    async def _send_unsent(self, key: tuple[str, str]) -> None:
        """Sends in order, as far as the control plane accepts it."""
        try:
            while unsent := self._unsent.get(key):
                await self._api.report_stage_logs_from_last_checkpoint(unsent[0])
                sent = unsent.pop(0)
                if (spool := self._spools.get(key)) is not None and sent.blocks:
                    spool.forget_through(sent.blocks[-1].index)
        except Unavailable as e:
            log.warning(
                "stage log not sent, retrying later",
                deployment=key[0],
                stage_id=key[1],
                error=str(e),
            )

    def _masker(self, of: dict[tuple[str, str], LogMasker], key: tuple[str, str]) -> LogMasker:
        return _get_or_add(of, key, lambda: LogMasker(self.masks, key[0]))


def _without_repeated(checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Leaves out checkpoints whose lines a later one has, as after a call that was cancelled."""
    kept: list[Checkpoint] = []
    later: set[int] = set()
    for checkpoint in reversed(checkpoints):
        indexes = {block.index for block in checkpoint.blocks}
        if checkpoint.completed or not indexes <= later:
            kept.append(checkpoint)
        later |= indexes
    return tuple(reversed(kept))


def _truncate_lines(blocks: Sequence[LogBlock]) -> Iterator[LogBlock]:
    """Yields the blocks with overlong lines cut."""
    for block in blocks:
        is_long = len(block.log) > _MAX_LINE_LENGTH
        yield with_text(block, f"{block.log[:_MAX_LINE_LENGTH]}…") if is_long else block


def _get_or_add(
    of: dict[tuple[str, str], ValueT], key: tuple[str, str], new: Callable[[], ValueT]
) -> ValueT:
    """Returns the value of a stage; drops the oldest stage when there are too many."""
    if key not in of and len(of) >= _MAX_STAGES:
        del of[next(iter(of))]
    return of.setdefault(key, new())
