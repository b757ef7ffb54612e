# SPDX-License-Identifier: Apache-2.0
"""Ended deployments of a year: a block of chunks, each filled up before the next is begun.

The files are those of upstream, byte for byte, except that a chunk counts what is in it and that
years are those of UTC.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pipecd.controlplane.insight.finished import (
    FAILED,
    Ended,
    Finished,
    from_entry,
    to_entry,
)
from pipecd.controlplane.insight.gojson import go_json

USUAL_CHUNK = 1000
_NO_LABELS: Mapping[str, str] = {}

Chunk = tuple[Finished, ...]


@dataclass(frozen=True)
class ChunkMeta:
    """What a chunk holds: from when to when, how many, and whether it is full."""

    index: int
    first: int
    last: int
    count: int
    completed: bool

    @property
    def id(self) -> str:
        return f"chunk_{self.index}"


@dataclass(frozen=True)
class Block:
    """The chunks of one year."""

    year: int
    chunks: tuple[ChunkMeta, ...] = ()

    @property
    def id(self) -> str:
        return f"block_{self.year}"

    def between(self, start: int, end: int) -> tuple[ChunkMeta, ...]:
        """The chunks that may hold deployments of that time, both ends included."""
        return tuple(c for c in self.chunks if c.first <= end and c.last >= start)


def year_of(moment: int) -> int:
    return datetime.fromtimestamp(moment, UTC).year


def years_near(start: int, end: int) -> range:
    """The blocks to look into: upstream cuts years in the time zone of its process."""
    day = 86400
    return range(year_of(max(0, start - day)), year_of(end + day) + 1)


def block_path(project: str, year: int) -> str:
    return f"insights/{project}/completed-deployments/block_{year}/block_meta.json"


def chunk_path(project: str, year: int, chunk: ChunkMeta) -> str:
    return f"insights/{project}/completed-deployments/block_{year}/{chunk.id}.json"


def write_block(block: Block) -> bytes:
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


def read_block(content: bytes, year: int) -> Block:
    """Reads a block file; ValueError or KeyError when it is none."""
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


def write_chunk(meta: ChunkMeta, chunk: Chunk) -> bytes:
    return go_json({"chunk_id": meta.id, "deployments": [to_entry(one) for one in chunk]})


def read_chunk(content: bytes) -> Chunk:
    """Reads a chunk file; ValueError or KeyError when it is none."""
    entries: list[Mapping[str, Any]] = json.loads(content).get("deployments") or []
    return tuple(from_entry(entry) for entry in entries)


def read_ends(content: bytes) -> Iterator[Ended]:
    """Reads only what the charts need of a chunk file, which may be one of hundreds."""
    for entry in json.loads(content).get("deployments") or ():
        yield Ended(
            entry["completed_at"],
            entry["app_id"],
            entry.get("labels") or _NO_LABELS,
            entry["complete_status"] == FAILED,
        )


def to_look_at(block: Block, new: Sequence[Finished]) -> tuple[ChunkMeta, ...]:
    """The chunks that may hold some of the new ones already, and the one to be filled up."""
    times = [one.completed_at for one in new]
    near = block.between(min(times), max(times)) if times else ()
    return tuple(c for c in block.chunks if c in near or not c.completed)


def filled(
    block: Block, known: Mapping[int, Chunk], new: Iterable[Finished], *, most: int = USUAL_CHUNK
) -> tuple[Block, dict[int, Chunk]]:
    """The block with the new deployments, each once, and the chunks that changed.

    `known` has the content of the chunks of `to_look_at`. A chunk is believed before what the block
    says about it, as the block is written after its chunks.
    """
    most = most or USUAL_CHUNK
    metas = {c.index: c for c in block.chunks}
    for index, chunk in known.items():
        if not metas[index].completed:
            metas[index] = _meta_of(index, chunk, most)
    seen = {one.id for chunk in known.values() for one in chunk}
    waiting = [one for id, one in {one.id: one for one in new}.items() if id not in seen]
    changed: dict[int, Chunk] = {}
    while waiting:
        index = _open_chunk(metas)
        before = known.get(index, ())
        room = most - len(before)
        changed[index] = (*before, *waiting[:room])
        metas[index] = _meta_of(index, changed[index], most)
        waiting = waiting[room:]
    return Block(block.year, tuple(metas[index] for index in sorted(metas))), changed


def _open_chunk(metas: Mapping[int, ChunkMeta]) -> int:
    last = max(metas, default=-1)
    return last + 1 if last < 0 or metas[last].completed else last


def _meta_of(index: int, chunk: Chunk, most: int) -> ChunkMeta:
    times = [one.completed_at for one in chunk]
    return ChunkMeta(
        index=index,
        first=min(times, default=0),
        last=max(times, default=0),
        count=len(chunk),
        completed=len(chunk) >= most,
    )
