# SPDX-License-Identifier: Apache-2.0
"""Reports application files in Git: unregistered ones, and changed names, labels, descriptions."""

import asyncio
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from pipecd.config.application import config_path, is_application_file
from pipecd.config.read import ApplicationConfig
from pipecd.git.commit import Commit
from pipecd.git.mirror import Mirror, Mirrors
from pipecd.model.backoff import Backoff
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.errors import PipecdError
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.heads import RepositoryHead, RepositoryHeads
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.proto.model import common_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.service.piped_pb2 import (
    ReportUnregisteredApplicationConfigurationsRequest,
    UpdateApplicationConfigurationsRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_RESYNC = 600.0
_BACKOFF = Backoff(first=1.0, longest=60.0)


def changed_application(
    application: Application, config: ApplicationConfig
) -> ApplicationInfo | None:
    """Returns what to report about a registered application, None if nothing changed in Git."""
    spec, git_path = config.spec, application.git_path
    is_same = (
        spec.name == application.name
        and spec.description == application.description
        and dict(spec.labels) == dict(application.labels)
    )
    if is_same or not spec.name:
        return None
    return ApplicationInfo(
        id=application.id,
        name=spec.name,
        kind=_kind(config),
        labels=spec.labels,
        repo_id=git_path.repo.id,
        path=git_path.path,
        config_filename=git_path.config_filename,
        piped_id=application.piped_id,
        description=spec.description,
    )


def unregistered_application(
    path: str, config: ApplicationConfig, *, repository_id: str, piped_id: str
) -> ApplicationInfo | None:
    """Returns what to report about an application file that no application is registered for."""
    spec = config.spec
    if not spec.name:
        return None
    return ApplicationInfo(
        name=spec.name,
        kind=_kind(config),
        labels=spec.labels,
        repo_id=repository_id,
        path=reported_directory(path),
        config_filename=posixpath.basename(path),
        piped_id=piped_id,
        description=spec.description,
    )


def reported_directory(path: str) -> str:
    """Returns the directory of a file with at least two characters, as the API requires."""
    directory = posixpath.dirname(path)
    return f"./{directory}" if len(directory) < 2 else directory


def _kind(config: ApplicationConfig) -> "common_pb2.ApplicationKind.ValueType":
    # An application with plugins has no kind; upstream's piped sends zero then.
    return common_pb2.ApplicationKind.ValueType(int(config.application_kind or 0))


def _is_utf8(path: str) -> bool:
    """Whether a path can be sent, which protobuf restricts to UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(kw_only=True)
class AppConfigReporter:
    """Scans a repository when its head or its applications change, on command and by schedule."""

    api: ControlPlaneClient
    applications: ApplicationCache
    heads: RepositoryHeads
    mirrors: Mirrors
    configs: ApplicationConfigs
    commands: CommandCache
    schedule: RefreshSchedule
    piped_id: str
    selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """The labels that an unregistered application must have to be reported."""

    def __post_init__(self) -> None:
        # By repository: the head that was listed, with the paths of its application files.
        self._listed: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._unregistered: dict[str, tuple[ApplicationInfo, ...]] = {}
        self._reported: tuple[ApplicationInfo, ...] | None = None
        # By repository: the errors that were logged, by path.
        self._logged_errors: dict[str, dict[str, str]] = {}
        self._scanning = asyncio.Lock()

    async def run(self) -> None:
        await self.applications.wait_until_loaded()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scan_on_change(), name="application files: changes")
            tasks.create_task(self._scan_by_schedule(), name="application files: schedule")
            tasks.create_task(self._scan_on_command(), name="application files: commands")

    async def _scan_on_change(self) -> None:
        heads = [self.heads.changes_of(mirror.repository.id) for mirror in self.mirrors]
        watch = watch_any(self.applications.changes, *heads)
        failures = 0
        while True:
            is_reported = await self._scan(report_again=False)
            failures = 0 if is_reported else failures + 1
            # A control plane that answers errors keeps its streams: nothing else scans again soon.
            await watch.wait(_BACKOFF.after(failures) if failures else _RESYNC)

    async def _scan_by_schedule(self) -> None:
        while True:
            await self.schedule.wait()
            # The control plane has the list in its cache only and may have lost it.
            await self._scan(report_again=True)

    async def _scan_on_command(self) -> None:
        """Scans at once on command; upstream's piped leaves such commands unhandled."""
        watch = self.commands.changes.watch()
        while True:
            for command in self.commands.of_kind(CommandKind.UPDATE_APPLICATION_CONFIG):
                application = self.applications.get(command.application_id)
                repository = application.git_path.repo.id if application else ""
                if command.update_application_config.config:
                    await self.commands.reject(
                        command, "piped writes no application files, change them in Git"
                    )
                elif repository not in self.mirrors:
                    await self.commands.reject(
                        command, "the application or its repository is unknown to this piped"
                    )
                else:
                    await self.heads.poll(repository)
                    await self._scan(report_again=True)
                    await self.commands.report(command, CommandStatus.SUCCEEDED)
            await watch.wait(_RESYNC)

    async def _scan(self, *, report_again: bool) -> bool:
        """Reports what changed; returns whether the control plane has all of it."""
        async with self._scanning:
            changed: list[ApplicationInfo] = []
            for mirror in self.mirrors:
                head = self.heads.of(mirror.repository.id)
                if head.commit is None:
                    continue
                try:
                    changed += await self._scan_repository(mirror, head.commit)
                except PipecdError as e:
                    log.warning(
                        "application files cannot be read",
                        repository=mirror.repository.id,
                        error=str(e),
                    )
            is_reported = not changed or await self._report_changed(changed)
            if all(
                self.heads.of(mirror.repository.id) != RepositoryHead() for mirror in self.mirrors
            ):
                is_reported &= await self._report_unregistered(again=report_again)
            return is_reported

    async def _scan_repository(self, mirror: Mirror, head: Commit) -> list[ApplicationInfo]:
        """Stores the unregistered applications of a repository and returns the changed ones."""
        id_ = mirror.repository.id
        registered = {config_path(a.git_path): a for a in self.applications.of_repository(id_)}
        candidates = [p for p in await self._list(mirror, head) if p not in registered]
        configs = await self.configs.at(mirror.objects, head.hash, [*registered, *candidates])
        errors: dict[str, str] = {}
        for path, config in configs.items():
            if isinstance(config, ApplicationConfig):
                is_named = bool(config.spec.name)
                errors[path] = (
                    "" if is_named else "spec.name must be set to register the application"
                )
            elif path not in registered:
                # The trigger reports why the file of a registered application cannot be read.
                errors[path] = str(config)
        self._log_errors(id_, errors)
        self._unregistered[id_] = tuple(
            info
            for path in candidates
            if isinstance(config := configs[path], ApplicationConfig)
            and self.selector.items() <= config.spec.labels.items()
            and (
                info := unregistered_application(
                    path, config, repository_id=id_, piped_id=self.piped_id
                )
            )
        )
        return [
            info
            for path, application in registered.items()
            if isinstance(config := configs[path], ApplicationConfig)
            and (info := changed_application(application, config))
        ]

    async def _list(self, mirror: Mirror, head: Commit) -> tuple[str, ...]:
        commit, paths = self._listed.get(mirror.repository.id, ("", ()))
        if commit != head.hash:
            tree = await mirror.objects.files(head.hash)
            files = [file.path for file in tree if is_application_file(file.path)]
            for path in files:
                if not _is_utf8(path):
                    log.warning("application file ignored, its path is not UTF-8", path=ascii(path))
            paths = tuple(path for path in files if _is_utf8(path))
            self._listed[mirror.repository.id] = (head.hash, paths)
        return paths

    def _log_errors(self, repository: str, errors: Mapping[str, str]) -> None:
        """Logs once that a file is invalid, and once that it is valid again."""
        before = self._logged_errors.get(repository, {})
        self._logged_errors[repository] = {path: error for path, error in errors.items() if error}
        about = log.bind(repository=repository)
        for path, error in errors.items():
            if error and before.get(path) != error:
                about.warning("application file is invalid", path=path, error=error)
            elif not error and path in before:
                about.info("application file is valid again", path=path)

    async def _report_changed(self, changed: Sequence[ApplicationInfo]) -> bool:
        request = UpdateApplicationConfigurationsRequest(applications=changed)
        names = [info.name for info in changed]
        try:
            await self.api.update_application_configurations(request)
        except PipecdError as e:
            log.warning("changed applications not reported", applications=names, error=str(e))
            return False
        log.info("changed applications reported", applications=names)
        self.applications.refresh_soon()
        return True

    async def _report_unregistered(self, *, again: bool) -> bool:
        unregistered = tuple(
            info
            for mirror in self.mirrors
            for info in self._unregistered.get(mirror.repository.id, ())
        )
        if unregistered == self._reported and not (again and unregistered):
            return True
        request = ReportUnregisteredApplicationConfigurationsRequest(applications=unregistered)
        try:
            await self.api.report_unregistered_application_configurations(request)
        except PipecdError as e:
            log.warning("unregistered applications not reported", error=str(e))
            return False
        self._reported = unregistered
        return True
