# SPDX-License-Identifier: Apache-2.0
"""Copies the objects of one filestore to another."""

import asyncio

from pipecd.controlplane.filestore import Files
from pipecd.model.errors import UserMistake

CONCURRENT = 8


async def refuse_files(target: Files) -> None:
    """Raises UserMistake if the filestore has objects."""
    if paths := await target.list(""):
        raise UserMistake(
            f"the new filestore has objects already, the first is {paths[0]}",
            hint="a copy needs an empty filestore: choose another bucket or directory",
        )


async def copy_files(source: Files, target: Files) -> int:
    """Copies all objects, replacing those of the same path, and returns their number."""
    paths = await source.list("")
    waiting = iter(paths)

    async def copy() -> None:
        # The iterator is shared, so that each object is copied once.
        for path in waiting:
            await target.put(path, await source.get(path))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENT):
            tasks.create_task(copy())
    return len(paths)
