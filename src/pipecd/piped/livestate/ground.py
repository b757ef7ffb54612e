# SPDX-License-Identifier: Apache-2.0
"""What Git says about an application at the head of its branch, as a directory for plugins.

A working copy stays for the next look, and another one is made only when something in it is no
longer the same at the head. One with secrets in it, or with a whole repository, does not stay.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.config.read import ApplicationConfig
from pipecd.git.mirror import Mirrors
from pipecd.model.errors import PipecdError
from pipecd.piped.source.configs import ApplicationConfigs, config_path
from pipecd.piped.source.sources import Source, SourceDigest, Sources
from pipecd.proto.model.application_pb2 import Application

# Making many at a time would only keep deployments from theirs.
_AT_ONCE = 2


@dataclass(frozen=True)
class Ground:
    """What an application needs at a commit."""

    commit: str
    config: ApplicationConfig
    need: SourceDigest


@dataclass(frozen=True)
class _Kept:
    """A working copy that may serve again."""

    need: SourceDigest
    source: Source

    def is_of(self, need: SourceDigest) -> bool:
        """Whether it has what is needed; somebody may have cleared it away."""
        return self.need == need and self.source.application_directory.is_dir()


class Grounds:
    """Finds out what Git says about applications and makes working copies of it."""

    def __init__(
        self, mirrors: Mirrors, configs: ApplicationConfigs, sources: Sources, directory: Path
    ) -> None:
        self._mirrors, self._configs, self._sources = mirrors, configs, sources
        self._directory = directory
        self._kept: dict[str, _Kept] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def at(self, application: Application, commit: str) -> Ground:
        """What an application needs at a commit; a wrong configuration is raised."""
        git_path = application.git_path
        mirror, path = self._mirrors.of(git_path.repo.id), config_path(git_path)
        config = (await self._configs.at(mirror.objects, commit, [path]))[path]
        if isinstance(config, PipecdError):
            raise config
        return Ground(commit, config, await self._sources.digest(git_path, commit, config))

    @asynccontextmanager
    async def copy(self, application: Application, ground: Ground) -> AsyncGenerator[Source]:
        """A working copy for as long as the block runs, and perhaps for the next one."""
        kept = self._kept.pop(application.id, None)
        if kept is None or not kept.is_of(ground.need):
            kept = _Kept(ground.need, await self._made(application, ground))
        try:
            yield kept.source
        finally:
            if kept.source.secrets or ground.need.is_whole_repository:
                await _removed(kept.source.directory)
            else:
                self._kept[application.id] = kept

    async def forget(self, application_id: str) -> None:
        """Nobody looks at the application any more."""
        self._kept.pop(application_id, None)
        await _removed(self._directory / application_id)

    async def forget_all(self) -> None:
        """Removes what an earlier piped has left."""
        await _removed(self._directory)

    async def _made(self, application: Application, ground: Ground) -> Source:
        into = self._directory / application.id
        async with self._turns:
            return await self._sources.at(application.git_path, ground.commit, into=into)


async def _removed(directory: Path) -> None:
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
