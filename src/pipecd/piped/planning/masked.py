# SPDX-License-Identifier: Apache-2.0
"""Working copies of which no log, reason or result shows what is secret in them."""

import asyncio
import errno
import os
import shutil
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecd.model.errors import PipecdError
from pipecd.piped.pluginhost.masks import Masks
from pipecd.piped.source.sources import Source, Sources
from pipecd.proto.model.common_pb2 import ApplicationGitPath

_LEAST_ROOM = 64 * 1024


@dataclass(frozen=True)
class MaskedSources:
    """Makes working copies for one deployment and hides what is secret in them."""

    sources: Sources
    masks: Masks
    deployment_id: str
    copying: AbstractAsyncContextManager[Any]
    """Entered for as long as a copy is made, which limits how many are made at once."""

    async def at(
        self, git_path: ApplicationGitPath, commit: str, *, config_filename: str = "", into: Path
    ) -> Source:
        try:
            async with self.copying:
                source = await self.sources.at(
                    git_path, commit, config_filename=config_filename, into=into
                )
        except PipecdError as e:
            # Git says which file it could not write, and not why.
            if await asyncio.to_thread(_is_full, into):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(into)) from e
            raise
        if source.secrets:
            # A large one has many forms to look for.
            await asyncio.to_thread(self.masks.add, self.deployment_id, source.secrets)
        return source


def _is_full(place: Path) -> bool:
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free < _LEAST_ROOM
