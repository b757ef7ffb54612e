# SPDX-License-Identifier: Apache-2.0
"""Writes ended deployments into the blocks and chunks that upstream knows."""

import asyncio
from collections.abc import Sequence

from pipecd.controlplane.filestore import Files
from pipecd.controlplane.insight.chunks import (
    Block,
    Chunk,
    block_path,
    chunk_path,
    filled,
    read_block,
    read_chunk,
    to_look_at,
    write_block,
    write_chunk,
    year_of,
)
from pipecd.controlplane.insight.decoding import decoded
from pipecd.controlplane.insight.finished import Finished, finished
from pipecd.model.errors import NotFound
from pipecd.proto.model.deployment_pb2 import Deployment


class ChunkWriter:
    """Fills the chunks of a project, each up to `most` deployments."""

    def __init__(self, files: Files, *, most: int) -> None:
        self._files, self._most = files, most

    async def take(self, project: str, deployments: Sequence[Deployment], _since: int) -> None:
        by_year: dict[int, list[Finished]] = {}
        for deployment in deployments:
            if (one := finished(deployment)) is not None:
                by_year.setdefault(year_of(one.completed_at), []).append(one)
        for year, new in by_year.items():
            await self._add(project, year, new)

    async def _add(self, project: str, year: int, new: Sequence[Finished]) -> None:
        block = await self._block(project, year)
        known = {
            meta.index: await self._chunk(chunk_path(project, year, meta))
            for meta in to_look_at(block, new)
        }
        grown, changed = await asyncio.to_thread(filled, block, known, new, most=self._most)
        for meta in grown.chunks:
            if meta.index in changed:
                content = await asyncio.to_thread(write_chunk, meta, changed[meta.index])
                await self._files.put(chunk_path(project, year, meta), content)
        if grown != block:
            # The block comes last: what it tells of exists.
            await self._files.put(block_path(project, year), write_block(grown))

    async def _block(self, project: str, year: int) -> Block:
        path = block_path(project, year)
        try:
            content = await self._files.get(path)
        except NotFound:
            return Block(year)
        return decoded(path, content, lambda text: read_block(text, year))

    async def _chunk(self, path: str) -> Chunk:
        try:
            content = await self._files.get(path)
        except NotFound:
            return ()
        return await asyncio.to_thread(decoded, path, content, read_chunk)
