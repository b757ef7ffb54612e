# SPDX-License-Identifier: Apache-2.0
"""The completed deployments of a year: a block of chunks, each filled before the next starts.

The files are those of upstream, byte for byte, except that the count of a chunk is correct and that
years are in UTC.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipecd.controlplane.insight.deployments import (
    FAILURE,
    CompletedDeployment,
    DeploymentResult,
    deployment_from_json,
    deployment_to_json,
)
from pipecd.controlplane.insight.files import go_json
from pipecd.model.clock import from_unix

DEFAULT_CHUNK_SIZE = 1000
_NO_LABELS: Mapping[str, str] = {}

Chunk = tuple[CompletedDeployment, ...]


@dataclass(frozen=True)
class ChunkMeta:
    """The time range and size of a chunk; `completed` means that it is full."""

    index: int
    first: int
    last: int
    count: int
    completed: bool

    @property
    def id(self) -> str:
        return f"chunk_{self.index}"

    def overlaps(self, start: int, end: int) -> bool:
        """Whether it may have deployments of this time range, both ends included."""
        return self.first <= end and self.last >= start


@dataclass(frozen=True)
class Block:
    """The chunks of one year."""

    year: int
    chunks: tuple[ChunkMeta, ...] = ()

    @property
    def id(self) -> str:
        return f"block_{self.year}"

    def between(self, start: int, end: int) -> tuple[ChunkMeta, ...]:
        """The chunks that may have deployments of this time range, both ends included."""
        return tuple(chunk for chunk in self.chunks if chunk.overlaps(start, end))


def year_of(timestamp: int) -> int:
    return from_unix(timestamp).year


def block_years(start: int, end: int) -> range:
    """The years of the blocks to read; upstream uses the time zone of its process, not UTC."""
    day = 86400
    return range(year_of(max(0, start - day)), year_of(end + day) + 1)


def block_path(project: str, year: int) -> str:
    return f"insights/{project}/completed-deployments/block_{year}/block_meta.json"


def chunk_path(project: str, year: int, chunk: ChunkMeta) -> str:
    return f"insights/{project}/completed-deployments/block_{year}/{chunk.id}.json"


def encode_block(block: Block) -> bytes:
    chunks: list[dict[str, Any]] = [
        {
            "chunk_id": chunk.id,
            "chunk_index": chunk.index,
            "min_timestamp": chunk.first,
            "max_timestamp": chunk.last,
            "count": chunk.count,
            "completed": chunk.completed,
        }
        for chunk in block.chunks
    ]
    return go_json({"block_id": block.id, "chunk_metadata": chunks or None})


def decode_block(content: bytes, year: int) -> Block:
    """Decodes a block file; raises ValueError or KeyError if it is invalid."""
    entries: list[Mapping[str, Any]] = json.loads(content).get("chunk_metadata") or []
    chunks = (
        ChunkMeta(
            index=int(entry["chunk_index"]),
            first=int(entry["min_timestamp"]),
            last=int(entry["max_timestamp"]),
            count=int(entry["count"]),
            completed=bool(entry["completed"]),
        )
        for entry in entries
    )
    return Block(year, tuple(sorted(chunks, key=lambda chunk: chunk.index)))


def encode_chunk(meta: ChunkMeta, chunk: Chunk) -> bytes:
    return go_json({"chunk_id": meta.id, "deployments": [deployment_to_json(d) for d in chunk]})


def decode_chunk(content: bytes) -> Chunk:
    """Decodes a chunk file; raises ValueError or KeyError if it is invalid."""
    entries: list[Mapping[str, Any]] = json.loads(content).get("deployments") or []
    return tuple(deployment_from_json(entry) for entry in entries)


def decode_results(content: bytes) -> Iterator[DeploymentResult]:
    """Decodes only the fields that charts need; a chart may read hundreds of chunk files."""
    for entry in json.loads(content).get("deployments") or ():
        yield DeploymentResult(
            entry["completed_at"],
            entry["app_id"],
            entry.get("labels") or _NO_LABELS,
            entry["complete_status"] == FAILURE,
        )


def chunks_to_read(block: Block, new: Sequence[CompletedDeployment]) -> tuple[ChunkMeta, ...]:
    """The chunks that may have some of the new deployments already, and the chunk to fill."""
    times = [one.completed_at for one in new]
    near = block.between(min(times), max(times)) if times else ()
    return tuple(c for c in block.chunks if c in near or not c.completed)


def add_deployments(
    block: Block,
    chunks: Mapping[int, Chunk],
    new: Iterable[CompletedDeployment],
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> tuple[Block, dict[int, Chunk]]:
    """Adds each new deployment once; returns the new block and the chunks that changed.

    `chunks` has the content of the chunks of `chunks_to_read`. Where a chunk and its entry in the
    block differ the chunk is right, because the block is written after its chunks.
    """
    chunk_size = chunk_size or DEFAULT_CHUNK_SIZE
    metas = {c.index: c for c in block.chunks}
    for index, chunk in chunks.items():
        if not metas[index].completed:
            metas[index] = _chunk_meta(index, chunk, chunk_size)
    stored = {deployment.id for chunk in chunks.values() for deployment in chunk}
    pending = [one for id, one in {one.id: one for one in new}.items() if id not in stored]
    changed: dict[int, Chunk] = {}
    while pending:
        index = max(metas, default=0)
        if index in metas and metas[index].completed:
            index += 1
        before = chunks.get(index, ())
        free = chunk_size - len(before)
        changed[index] = (*before, *pending[:free])
        metas[index] = _chunk_meta(index, changed[index], chunk_size)
        pending = pending[free:]
    return Block(block.year, tuple(metas[index] for index in sorted(metas))), changed


def _chunk_meta(index: int, chunk: Chunk, chunk_size: int) -> ChunkMeta:
    times = [deployment.completed_at for deployment in chunk]
    return ChunkMeta(
        index=index,
        first=min(times, default=0),
        last=max(times, default=0),
        count=len(chunk),
        completed=len(chunk) >= chunk_size,
    )
