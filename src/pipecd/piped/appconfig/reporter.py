# SPDX-License-Identifier: Apache-2.0
"""Reports the application files found in Git: new ones, and changed names, labels, descriptions."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from pipecd.config.application import is_application_file
from pipecd.config.read import ApplicationConfig
from pipecd.git.commit import Commit
from pipecd.git.mirror import Mirror, Mirrors
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.errors import PipecdError
from pipecd.piped.appconfig.discovery import (
    changed_info,
    found_info,
    has_labels,
    is_sendable,
    mistake_in,
    unregistered,
)
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.cache.commands import REASON_KEY, CommandCache
from pipecd.piped.cache.heads import Head, RepositoryHeads
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.source.configs import ApplicationConfigs, config_path
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.service.piped_pb2 import (
    ReportUnregisteredApplicationConfigurationsRequest,
    UpdateApplicationConfigurationsRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_NET = 600.0


@dataclass(frozen=True)
class _Listing:
    """The application files of a repository at one commit."""

    commit: str
    paths: tuple[str, ...]


@dataclass(kw_only=True)
class AppConfigReporter:
    """Scans a repository when its head or its applications change, and now and then anyway."""

    api: ControlPlaneClient
    applications: ApplicationCache
    heads: RepositoryHeads
    mirrors: Mirrors
    configs: ApplicationConfigs
    commands: CommandCache
    schedule: RefreshSchedule
    piped_id: str
    selector: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self._listings: dict[str, _Listing] = {}
        self._found: dict[str, tuple[ApplicationInfo, ...]] = {}
        self._sent: tuple[ApplicationInfo, ...] | None = None
        self._told: dict[str, dict[str, str]] = {}
        self._scanning = asyncio.Lock()

    async def run(self) -> None:
        await self.applications.wait_until_loaded()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._on_changes(), name="application files that change")
            tasks.create_task(self._on_pace(), name="application files now and then")
            tasks.create_task(self._on_command(), name="application files on command")

    async def _on_changes(self) -> None:
        heads = [self.heads.changes_of(mirror.repository.id) for mirror in self.mirrors]
        watch = watch_any(self.applications.changes, *heads)
        while True:
            await self._scan(again=False)
            await watch.wait(_NET)

    async def _on_pace(self) -> None:
        while True:
            await self.schedule.wait()
            # The control plane keeps the list in its cache only and may have lost it.
            await self._scan(again=True)

    async def _on_command(self) -> None:
        """Looks at once when somebody asks for it; upstream's piped leaves such commands lying."""
        watch = self.commands.changes.watch()
        while True:
            for command in self.commands.of_kind(CommandKind.UPDATE_APPLICATION_CONFIG):
                await self._follow(command)
            await watch.wait(_NET)

    async def _follow(self, command: Command) -> None:
        application = self.applications.get(command.application_id)
        repository = application.git_path.repo.id if application else ""
        if command.update_application_config.config:
            await self._refuse(command, "piped writes no application files, change them in Git")
        elif repository not in self.mirrors:
            await self._refuse(command, "the application or its repository is unknown here")
        else:
            await self.heads.poll(repository)
            await self._scan(again=True)
            await self.commands.report(command, CommandStatus.SUCCEEDED)

    async def _refuse(self, command: Command, reason: str) -> None:
        metadata = {REASON_KEY: reason}
        await self.commands.report(command, CommandStatus.FAILED, metadata=metadata)

    async def _scan(self, *, again: bool) -> None:
        async with self._scanning:
            changed: list[ApplicationInfo] = []
            for mirror in self.mirrors:
                head = self.heads.of(mirror.repository.id)
                if head.commit is None:
                    continue
                try:
                    changed += await self._look(mirror, head.commit)
                except PipecdError as e:
                    log.warning(
                        "application files not read", repository=mirror.repository.id, error=str(e)
                    )
            await self._update(changed)
            if all(self.heads.of(mirror.repository.id) != Head() for mirror in self.mirrors):
                await self._report_found(again=again)

    async def _look(self, mirror: Mirror, head: Commit) -> list[ApplicationInfo]:
        """Remembers the unregistered applications of a repository, returns the changed ones."""
        id_ = mirror.repository.id
        known = {config_path(a.git_path): a for a in self.applications.of_repository(id_)}
        candidates = unregistered(await self._list(mirror, head), known)
        configs = await self.configs.at(mirror.objects, head.hash, [*known, *candidates])
        self._tell(
            id_,
            {
                path: mistake_in(config)
                for path, config in configs.items()
                # The trigger tells why an application cannot be read.
                if path not in known or isinstance(config, ApplicationConfig)
            },
        )
        self._found[id_] = tuple(
            info
            for path in candidates
            if isinstance(config := configs[path], ApplicationConfig)
            and has_labels(config.spec.labels, self.selector)
            and (info := found_info(path, config, repository_id=id_, piped_id=self.piped_id))
        )
        return [
            info
            for path, application in known.items()
            if isinstance(config := configs[path], ApplicationConfig)
            and (info := changed_info(application, config))
        ]

    def _tell(self, repository: str, mistakes: Mapping[str, str]) -> None:
        """Says once what is wrong with a file, and once that it is mended."""
        before = self._told.get(repository, {})
        self._told[repository] = {path: mistake for path, mistake in mistakes.items() if mistake}
        about = log.bind(repository=repository)
        for path, mistake in mistakes.items():
            if mistake and before.get(path) != mistake:
                about.warning("application file is not usable", path=path, error=mistake)
            elif not mistake and path in before:
                about.info("application file is usable now", path=path)

    async def _list(self, mirror: Mirror, head: Commit) -> tuple[str, ...]:
        listing = self._listings.get(mirror.repository.id)
        if listing is None or listing.commit != head.hash:
            files = [
                f.path for f in await mirror.objects.files(head.hash) if is_application_file(f.path)
            ]
            for path in files:
                if not is_sendable(path):
                    log.warning(
                        "application file left out, its name is not UTF-8", path=ascii(path)
                    )
            listing = _Listing(head.hash, tuple(path for path in files if is_sendable(path)))
            self._listings[mirror.repository.id] = listing
        return listing.paths

    async def _update(self, changed: list[ApplicationInfo]) -> None:
        if not changed:
            return
        request = UpdateApplicationConfigurationsRequest(applications=changed)
        try:
            await self.api.update_application_configurations(request)
        except PipecdError as e:
            log.warning("changed applications not reported", error=str(e))
            return
        log.info("changed applications reported", applications=[info.id for info in changed])
        self.applications.refresh_soon()

    async def _report_found(self, *, again: bool) -> None:
        found = tuple(
            info for mirror in self.mirrors for info in self._found.get(mirror.repository.id, ())
        )
        if found == self._sent and not (again and found):
            return
        request = ReportUnregisteredApplicationConfigurationsRequest(applications=found)
        try:
            await self.api.report_unregistered_application_configurations(request)
        except PipecdError as e:
            log.warning("unregistered applications not reported", error=str(e))
            return
        self._sent = found
