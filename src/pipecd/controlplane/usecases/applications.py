# SPDX-License-Identifier: Apache-2.0
"""Applications, for users and API keys."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipecd.controlplane.auth.rbac import Action, Permission, Resource, Scope
from pipecd.controlplane.auth.subject import PipedCaller, Subject, UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.documents import EVERYTHING, Page, PageRequest
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import (
    Access,
    Labelled,
    check_scope,
    operator_name,
)
from pipecd.controlplane.usecases.commands import CommandUseCases
from pipecd.controlplane.usecases.unregistered import reported_unregistered
from pipecd.model.application import name_problem
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import Conflict, NotFound, UserMistake
from pipecd.model.giturl import directory_url
from pipecd.model.ids import new_id
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.piped_pb2 import Piped

L = TypeVar("L", bound=Labelled)

_GET = Permission(Resource.APPLICATION, Action.GET)
_LIST = Permission(Resource.APPLICATION, Action.LIST)
_CREATE = Permission(Resource.APPLICATION, Action.CREATE)
_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)
_DELETE = Permission(Resource.APPLICATION, Action.DELETE)


@dataclass(frozen=True)
class ApplicationUpdate:
    """New values of an application; `deploy_targets` of None leaves them unchanged."""

    piped_id: str
    platform_provider: str
    config_filename: str
    deploy_targets: Mapping[str, DeployTargets] | None = None


class ApplicationUseCases:
    """Registers, changes, lists and syncs applications."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        access: Access,
        commands: CommandUseCases,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._commands, self._now = commands, now

    async def list(
        self, filter: ApplicationFilter, page: PageRequest = EVERYTHING, *, by: UserOrApiKey
    ) -> Page[Application]:
        """Newest update first."""
        return await self._access.list_page(
            lambda part: self._stores.applications.list(filter, part),
            page,
            by=by,
            permission=_LIST,
            project=filter.project,
        )

    async def list_derived(
        self, filter: ApplicationFilter, derive: Callable[[Application], L], *, by: UserOrApiKey
    ) -> tuple[L, ...]:
        """What `derive` makes of each application, newest update first; see the datastore."""

        async def fetch(_: PageRequest) -> Page[L]:
            return Page(await self._stores.applications.list_derived(filter, derive))

        listed = await self._access.list_page(
            fetch, EVERYTHING, by=by, permission=_LIST, project=filter.project
        )
        return listed.items

    async def get_many(self, ids: Collection[str], *, by: UserOrApiKey) -> dict[str, Application]:
        """Those of the applications that exist and that the caller may list, by id."""
        scope = await self._access.scope(by, _LIST)
        found = await self._stores.applications.get_many(tuple(ids))
        return {
            id: application
            for id, application in found.items()
            if application.project_id == by.project
            and not application.deleted
            and scope.covers(application.labels)
        }

    async def list_enabled(self, *, by: PipedCaller) -> tuple[Application, ...]:
        """The enabled applications of the calling piped."""
        return await self._stores.applications.list_enabled(by.project, by.piped)

    async def get(self, id: str, *, by: Subject) -> Application:
        return await self._access.application(id, by=by, permission=_GET)

    async def add(self, draft: Application, *, by: UserOrApiKey) -> str:
        """Registers an application and returns its id.

        The draft carries name, kind, piped, git path, platform provider or deploy targets,
        description, labels and whether it is disabled; its repository must be one of the piped's.
        """
        scope = await self._access.scope(by, _CREATE)
        check_scope(scope, draft)
        if problem := name_problem(draft.name):
            raise UserMistake(
                problem,
                hint="choose a shorter name, in the application configuration if it is set there",
            )
        if not scope.is_everything:
            await self._check_reported_labels(scope, draft, by)
        piped = await self._access.piped(draft.piped_id, by=by)
        application = Application(
            id=new_id(),
            name=draft.name,
            piped_id=piped.id,
            project_id=by.project,
            kind=draft.kind,
            git_path=complete_git_path(draft.git_path, piped),
            cloud_provider=draft.platform_provider,
            platform_provider=draft.platform_provider,
            deploy_targets_by_plugin=draft.deploy_targets_by_plugin,
            description=draft.description,
            labels=draft.labels,
            disabled=draft.disabled,
        )
        await self._stores.applications.add(application)
        await self._signal(application)
        return application.id

    async def _check_reported_labels(
        self, scope: Scope, draft: Application, by: UserOrApiKey
    ) -> None:
        """Denied if the piped has reported the application with labels out of the scope.

        The labels of a draft are what its author claims; those of Git replace them later.
        """
        path = draft.git_path
        for info in await reported_unregistered(self._stores.cache, by.project, draft.piped_id):
            if (info.repo_id, info.path, info.config_filename) == (
                path.repo.id,
                path.path,
                path.config_filename or info.config_filename,
            ):
                check_scope(scope, info)

    async def update(self, id: str, to: ApplicationUpdate, *, by: UserOrApiKey) -> None:
        before = await self._access.application(id, by=by, permission=_UPDATE)
        await self._access.piped(to.piped_id, by=by)

        def change(application: Application) -> None:
            application.piped_id = to.piped_id
            application.platform_provider = to.platform_provider
            application.cloud_provider = to.platform_provider
            application.git_path.config_filename = to.config_filename
            if to.deploy_targets is not None:
                _replace_targets(application, to.deploy_targets)

        after = await self._change(id, change)
        if after.piped_id != before.piped_id:
            # The previous piped has to stop watching the application.
            await self._signal(before)

    async def rename_config_file(
        self, ids: Sequence[str], filename: str, *, by: UserOrApiKey
    ) -> None:
        """Changes the configuration file of several applications, one by one."""
        for id in ids:
            await self._access.application(id, by=by, permission=_UPDATE)

        def change(application: Application) -> None:
            application.git_path.config_filename = filename

        for id in ids:
            await self._change(id, change)

    async def set_deploy_targets(
        self, id: str, targets: Mapping[str, DeployTargets], *, by: UserOrApiKey
    ) -> None:
        await self._access.application(id, by=by, permission=_UPDATE)
        await self._change(id, lambda application: _replace_targets(application, targets))

    async def enable(self, id: str, *, by: UserOrApiKey) -> None:
        await self._access.application(id, by=by, permission=_UPDATE)
        await self._change(id, lambda application: _set_disabled(application, disabled=False))

    async def disable(self, id: str, *, by: UserOrApiKey) -> None:
        await self._access.application(id, by=by, permission=_UPDATE)
        await self._change(id, lambda application: _set_disabled(application, disabled=True))

    async def delete(self, id: str, *, by: UserOrApiKey) -> None:
        """Marks the application as deleted; its deployments stay."""
        application = await self._access.application(id, by=by, permission=_DELETE)
        # Deleting twice is no error, as with upstream.
        if application.deleted:
            return
        now = to_unix(self._now())

        def change(application: Application) -> None:
            application.deleted = True
            application.disabled = True
            application.deleted_at = now

        await self._change(id, change)

    async def sync(
        self, id: str, strategy: SyncStrategy = SyncStrategy.AUTO, *, by: UserOrApiKey
    ) -> str:
        """Requests a sync and returns the id of the command."""
        application = await self._access.application(id, by=by, permission=_UPDATE)
        check_not_deleted(application)
        if application.disabled:
            raise Conflict(
                f"application {application.name} is disabled", hint="enable it before the sync"
            )
        command = Command(
            piped_id=application.piped_id,
            application_id=application.id,
            project_id=application.project_id,
            commander=operator_name(by),
            type=Command.SYNC_APPLICATION,
            sync_application=Command.SyncApplication(
                application_id=application.id,
                sync_strategy=common.SyncStrategy.ValueType(strategy),
            ),
        )
        return await self._commands.add(command)

    async def _change(self, id: str, change: Callable[[Application], None]) -> Application:
        def guarded(application: Application) -> None:
            check_not_deleted(application)
            change(application)

        application = await self._stores.applications.update(id, guarded)
        await self._signal(application)
        return application

    async def _signal(self, application: Application) -> None:
        await self._bus.publish(
            Signal(Topic.APPLICATION, application.id, application.project_id, application.piped_id)
        )


def check_not_deleted(application: Application) -> None:
    if application.deleted:
        raise UserMistake(f"application {application.name} is deleted")


def complete_git_path(path: common.ApplicationGitPath, piped: Piped) -> common.ApplicationGitPath:
    """The git path with the repository as the piped has configured it."""
    repository = next((r for r in piped.repositories if r.id == path.repo.id), None)
    if repository is None:
        known = ", ".join(each.id for each in piped.repositories)
        raise NotFound(
            "The requested repository is not found in the Piped configuration",
            hint=f"piped {piped.name} has {known}"
            if known
            else f"piped {piped.name} reports its repositories when it starts",
        )
    return common.ApplicationGitPath(
        repo=repository,
        path=path.path,
        config_filename=path.config_filename,
        url=directory_url(repository.remote, repository.branch, path.path),
    )


def _set_disabled(application: Application, *, disabled: bool) -> None:
    application.disabled = disabled


def _replace_targets(application: Application, targets: Mapping[str, DeployTargets]) -> None:
    application.deploy_targets_by_plugin.clear()
    for plugin, names in targets.items():
        application.deploy_targets_by_plugin[plugin].CopyFrom(names)
