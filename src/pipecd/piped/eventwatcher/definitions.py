# SPDX-License-Identifier: Apache-2.0
"""Finds the definitions of a repository; they are read again only when its head has moved."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from pipecd.config.piped import EventWatcherRepoSpec
from pipecd.config.read import ApplicationConfig, read_event_watcher
from pipecd.config.shared_config import SHARED_CONFIG
from pipecd.git.mirror import Mirror
from pipecd.git.objects import Blob
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.eventwatcher.definition import Definition, of_application, of_file
from pipecd.piped.plan.paths import path_patterns
from pipecd.piped.source.configs import ApplicationConfigs, config_path
from pipecd.proto.model.application_pb2 import Application

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True)
class _Read:
    commit: str
    applications: frozenset[tuple[str, str]]
    found: tuple[Definition, ...]


class Definitions:
    """The definitions of one repository, from application files and from `.pipe/`."""

    def __init__(
        self, mirror: Mirror, configs: ApplicationConfigs, settings: EventWatcherRepoSpec
    ) -> None:
        self._mirror, self._configs, self._settings = mirror, configs, settings
        self._read: _Read | None = None
        self._mistakes: frozenset[str] = frozenset()

    async def at(self, commit: str, applications: Iterable[Application]) -> tuple[Definition, ...]:
        """What is defined at a commit; a file that cannot be read hides no other one."""
        paths = frozenset((config_path(a.git_path), a.git_path.path) for a in applications)
        if self._read is None or (self._read.commit, self._read.applications) != (commit, paths):
            mistakes: list[str] = []
            found = [
                *await self._of_directory(commit, mistakes),
                *await self._of_applications(commit, sorted(paths)),
            ]
            self._tell(mistakes)
            self._read = _Read(commit, paths, tuple(found))
        return self._read.found

    async def _of_applications(
        self, commit: str, paths: Sequence[tuple[str, str]]
    ) -> list[Definition]:
        """Those of the files that can be read; of the others the trigger tells."""
        configs = await self._configs.at(self._mirror.objects, commit, [path for path, _ in paths])
        found: list[Definition] = []
        for path, directory in paths:
            config = configs[path]
            if isinstance(config, ApplicationConfig):
                watched = config.spec.event_watcher
                found += of_application(watched, origin=path, directory=directory)
        return found

    async def _of_directory(self, commit: str, mistakes: list[str]) -> list[Definition]:
        files = [file.path for file in await self._mirror.objects.files(commit, SHARED_CONFIG)]
        try:
            kept = [path for path in files if self._is_kept(path.removeprefix(f"{SHARED_CONFIG}/"))]
        except UserMistake as e:
            mistakes.append(f"eventWatcher.gitRepos of the piped configuration: {e}")
            return []
        places = await self._mirror.objects.locate(commit, kept)
        blobs = {path: place for path, place in places.items() if isinstance(place, Blob)}
        contents = await self._mirror.objects.read(blobs.values())
        texts = {path: contents[blob.id] for path, blob in blobs.items()}
        return await asyncio.to_thread(self._parsed, texts, mistakes)

    def _is_kept(self, path: str) -> bool:
        if self._settings.excludes:
            return not path_patterns(self._settings.excludes).match(path)
        includes = self._settings.includes
        return not includes or path_patterns(includes).match(path)

    def _parsed(self, texts: dict[str, bytes], mistakes: list[str]) -> list[Definition]:
        found: list[Definition] = []
        for path, text in texts.items():
            try:
                file = read_event_watcher(text, file=path)
            except PipecdError as e:
                mistakes.append(str(e))
                continue
            if file is not None:
                found += of_file(file, origin=path, message=self._settings.commit_message)
        return found

    def _tell(self, mistakes: Iterable[str]) -> None:
        """Says once what cannot be read."""
        now = frozenset(mistakes)
        for mistake in sorted(now - self._mistakes):
            log.warning(
                "event definitions not read", repository=self._mirror.repository.id, error=mistake
            )
        self._mistakes = now
