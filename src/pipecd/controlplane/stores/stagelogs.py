# SPDX-License-Identifier: Apache-2.0
"""The log of one stage, durable from the first block on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipecd.proto.model.logblock_pb2 import LogBlock


@dataclass(frozen=True)
class StageRun:
    """Which run of which stage a log belongs to."""

    deployment_id: str
    stage_id: str
    retried_count: int = 0


@dataclass(frozen=True)
class StageLogPart:
    """Blocks in the order of their index; `completed` says that none will follow."""

    blocks: tuple[LogBlock, ...]
    completed: bool


class StageLogs(Protocol):
    """Blocks since the last checkpoint in the datastore, checkpoints in the filestore."""

    async def append(self, run: StageRun, blocks: Sequence[LogBlock]) -> None:
        """Adds the blocks whose index is new; Conflict when the log is completed already."""
        ...

    async def checkpoint(
        self, run: StageRun, blocks: Sequence[LogBlock], *, completed: bool
    ) -> None:
        """Adds the blocks whose index is new and moves everything to the filestore."""
        ...

    async def read(self, run: StageRun, *, from_index: int = 0) -> StageLogPart:
        """The blocks with that index or a greater one, or NotFound when nothing was ever logged."""
        ...
