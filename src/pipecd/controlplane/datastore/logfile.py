# SPDX-License-Identifier: Apache-2.0
"""The file of a stage log: one JSON block per line, `EOL` at the end of a completed one."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipecd.controlplane.stores.stagelogs import StageRun
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import Conflict
from pipecd.proto.model.logblock_pb2 import LogBlock

END = b"EOL"


@dataclass(frozen=True)
class LogFile:
    """The blocks in the order of their index, and whether the log is closed."""

    blocks: tuple[LogBlock, ...] = ()
    completed: bool = False

    @property
    def last_index(self) -> int:
        return self.blocks[-1].index if self.blocks else -1


def log_path(run: StageRun) -> str:
    return f"log/{run.deployment_id}/{run.stage_id}/{run.retried_count}.txt"


def merge_blocks(*sources: Iterable[LogBlock]) -> tuple[LogBlock, ...]:
    """Every block once, by index; of two with the same index the earlier source wins."""
    merged: dict[int, LogBlock] = {}
    for blocks in sources:
        for block in blocks:
            merged.setdefault(block.index, block)
    return tuple(merged[index] for index in sorted(merged))


def format_log(log: LogFile) -> bytes:
    lines = "".join(f"{to_json(block)}\n" for block in log.blocks)
    return lines.encode() + (END if log.completed else b"")


def parse_log(content: bytes, path: str) -> LogFile:
    # Only the line feed ends a line; a log may hold any other separator, and be of any length.
    lines = content.split(b"\n")
    completed = lines[-1] == END
    blocks: list[LogBlock] = []
    for number, line in enumerate(lines[:-1] if completed else lines, start=1):
        if not line:
            continue
        try:
            blocks.append(from_json(line, LogBlock))
        except ValueError as e:
            raise Conflict(
                f"the log file {path} is damaged at line {number}",
                hint="remove that line from the file",
            ) from e
    return LogFile(merge_blocks(blocks), completed)
