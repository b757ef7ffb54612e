# SPDX-License-Identifier: Apache-2.0
"""The desired state of an application at the head of its branch, as a directory for plugins.

A working copy is reused by the next comparison and replaced only when a file in it has changed at
the head. One with decrypted secrets in it, or of a whole repository, is removed after its use.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.config.application import config_path
from pipecd.config.read import ApplicationConfig
from pipecd.git.mirror import Mirrors
from pipecd.model.errors import PipecdError
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.sources import Source, SourceDigest, Sources
from pipecd.proto.model.application_pb2 import Application

# More at a time would only delay the working copies of deployments.
_MAX_CONCURRENT_COPIES = 2


@dataclass(frozen=True)
class DesiredState:
    """The configuration of an application at a commit, and the digest of its source."""

    commit: str
    config: ApplicationConfig
    digest: SourceDigest


@dataclass(frozen=True)
class _CachedCopy:
    digest: SourceDigest
    source: Source


class DesiredStates:
    """Reads the desired state of applications from Git and creates working copies of it."""

    def __init__(
        self, mirrors: Mirrors, configs: ApplicationConfigs, sources: Sources, directory: Path
    ) -> None:
        self._mirrors, self._configs, self._sources = mirrors, configs, sources
        self._directory = directory
        self._cached: dict[str, _CachedCopy] = {}
        self._copying = asyncio.Semaphore(_MAX_CONCURRENT_COPIES)

    async def at(self, application: Application, commit: str) -> DesiredState:
        """The desired state at a commit; raises if the configuration is invalid."""
        git_path = application.git_path
        mirror, path = self._mirrors.of(git_path.repo.id), config_path(git_path)
        config = (await self._configs.at(mirror.objects, commit, [path]))[path]
        if isinstance(config, PipecdError):
            raise config
        return DesiredState(commit, config, await self._sources.digest(git_path, commit, config))

    @asynccontextmanager
    async def working_copy(
        self, application: Application, desired: DesiredState
    ) -> AsyncGenerator[Source]:
        """A working copy for as long as the block runs, cached for the next one if possible."""
        copy = self._cached.pop(application.id, None)
        # The directory may have been deleted by another process.
        is_usable = copy is not None and copy.source.application_directory.is_dir()
        if copy is None or not is_usable or copy.digest != desired.digest:
            into = self._directory / application.id
            async with self._copying:
                source = await self._sources.at(application.git_path, desired.commit, into=into)
            copy = _CachedCopy(desired.digest, source)
        try:
            yield copy.source
        finally:
            if copy.source.secrets or desired.digest.is_whole_repository:
                await _remove(copy.source.directory)
            else:
                self._cached[application.id] = copy

    async def remove(self, application_id: str) -> None:
        """Removes the working copy of an application."""
        self._cached.pop(application_id, None)
        await _remove(self._directory / application_id)

    async def remove_all(self) -> None:
        """Removes the working copies of an earlier piped."""
        await _remove(self._directory)


async def _remove(directory: Path) -> None:
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
