# SPDX-License-Identifier: Apache-2.0
"""Event definitions: what an event changes, from application files and from `.pipe/`."""

import asyncio
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import structlog

from pipecd.config.application import (
    GIT_UPDATE,
    EventWatcherFileSpec,
    EventWatchSpec,
    ReplacementSpec,
    config_path,
)
from pipecd.config.piped import EventWatcherRepoSpec
from pipecd.config.read import ApplicationConfig, read_event_watcher
from pipecd.config.shared_config import SHARED_CONFIG
from pipecd.git.mirror import Mirror
from pipecd.git.objects import Blob
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.model.eventkey import event_key
from pipecd.piped.eventwatcher.replacement import FieldFormat, Replacement
from pipecd.piped.plan.paths import path_patterns
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.proto.model.application_pb2 import Application

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class EventDefinition:
    """What one event changes; `origin` is the file that defines it."""

    origin: str
    name: str
    labels: Mapping[str, str]
    replacements: tuple[Replacement, ...]
    message: str = ""
    makes_pull_request: bool = False
    problem: str = ""
    """Why nothing can be changed, for the status of the event."""

    @cached_property
    def key(self) -> str:
        """The key of the events that match."""
        return event_key(self.name, self.labels)


def application_definitions(
    watches: Iterable[EventWatchSpec], *, origin: str, directory: str
) -> Iterator[EventDefinition]:
    """The definitions of an application file, without those of other handlers."""
    for watch in watches:
        if watch.handler.type != GIT_UPDATE or not watch.matcher.name:
            continue
        config = watch.handler.config
        replacements, problem = _replacements(config.replacements, origin, directory)
        yield EventDefinition(
            origin=origin,
            name=watch.matcher.name,
            labels=watch.matcher.labels,
            replacements=replacements,
            message=config.commit_message,
            makes_pull_request=config.make_pull_request,
            problem=problem,
        )


def file_definitions(
    file: EventWatcherFileSpec, *, origin: str, message: str
) -> Iterator[EventDefinition]:
    """The definitions of a file in `.pipe/`, whose paths begin at the root of the repository."""
    for event in file.events:
        replacements, problem = _replacements(event.replacements, origin, "")
        yield EventDefinition(
            origin=origin,
            name=event.name,
            labels=event.labels,
            replacements=replacements,
            message=message,
            problem=problem,
        )


def _replacements(
    specs: tuple[ReplacementSpec, ...], origin: str, directory: str
) -> tuple[tuple[Replacement, ...], str]:
    if not specs:
        return (), f"{origin} has no replacements for this event"
    try:
        return tuple(_replacement(spec, origin, directory) for spec in specs), ""
    except UserMistake as e:
        return (), str(e)


def _replacement(spec: ReplacementSpec, origin: str, directory: str) -> Replacement:
    if not spec.file:
        raise UserMistake(f"{origin} has a replacement without a file", hint="write file")
    if not spec.fields:
        raise UserMistake(
            f"{origin} does not define which value in {spec.file} is replaced",
            hint="write yamlField, jsonField, HCLField or regex",
        )
    format_ = FieldFormat(spec.fields[0])
    paths = {
        FieldFormat.YAML: spec.yaml_field,
        FieldFormat.JSON: spec.json_field,
        FieldFormat.HCL: spec.hcl_field,
        FieldFormat.REGEX: spec.regex,
    }
    # Normalised, so that two spellings of one path are one file.
    file = posixpath.normpath(posixpath.join(directory, spec.file))
    return Replacement(file, format_, paths[format_])


@dataclass(frozen=True)
class _Cached:
    commit: str
    applications: frozenset[tuple[str, str]]
    definitions: tuple[EventDefinition, ...]


class DefinitionReader:
    """The definitions of one repository, from application files and from `.pipe/`."""

    def __init__(
        self, mirror: Mirror, configs: ApplicationConfigs, settings: EventWatcherRepoSpec
    ) -> None:
        self._mirror, self._configs, self._settings = mirror, configs, settings
        self._cached: _Cached | None = None
        self._logged_errors: frozenset[str] = frozenset()

    async def at(
        self, commit: str, applications: Iterable[Application]
    ) -> tuple[EventDefinition, ...]:
        """What is defined at a commit; a file that cannot be read hides no other one."""
        paths = frozenset((config_path(a.git_path), a.git_path.path) for a in applications)
        cached = self._cached
        if cached is not None and (cached.commit, cached.applications) == (commit, paths):
            return cached.definitions
        errors: list[str] = []
        definitions = await self._from_shared_files(commit, errors)
        configs = await self._configs.at(self._mirror.objects, commit, [path for path, _ in paths])
        for path, directory in sorted(paths):
            config = configs[path]
            # The trigger reports the invalid ones.
            if isinstance(config, ApplicationConfig):
                watches = config.spec.event_watcher
                definitions += application_definitions(watches, origin=path, directory=directory)
        # Each error is logged once, not at every commit.
        for error in sorted(frozenset(errors) - self._logged_errors):
            log.warning(
                "invalid event definitions", repository=self._mirror.repository.id, error=error
            )
        self._logged_errors = frozenset(errors)
        self._cached = _Cached(commit, paths, tuple(definitions))
        return self._cached.definitions

    async def _from_shared_files(self, commit: str, errors: list[str]) -> list[EventDefinition]:
        files = [file.path for file in await self._mirror.objects.files(commit, SHARED_CONFIG)]
        includes, excludes = self._settings.includes, self._settings.excludes
        try:
            matches = path_patterns(excludes or includes).match
            selected = [
                path
                for path in files
                if not (excludes or includes)
                or matches(path.removeprefix(f"{SHARED_CONFIG}/")) is not bool(excludes)
            ]
        except UserMistake as e:
            errors.append(f"eventWatcher.gitRepos of the piped configuration: {e}")
            return []
        located = await self._mirror.objects.locate(commit, selected)
        blobs = {path: blob for path, blob in located.items() if isinstance(blob, Blob)}
        contents = await self._mirror.objects.read(blobs.values())
        texts = {path: contents[blob.id] for path, blob in blobs.items()}
        return await asyncio.to_thread(self._parse, texts, errors)

    def _parse(self, texts: dict[str, bytes], errors: list[str]) -> list[EventDefinition]:
        definitions: list[EventDefinition] = []
        for path, text in texts.items():
            try:
                file = read_event_watcher(text, file=path)
            except PipecdError as e:
                errors.append(str(e))
                continue
            if file is not None:
                message = self._settings.commit_message
                definitions += file_definitions(file, origin=path, message=message)
        return definitions
