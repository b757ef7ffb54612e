# SPDX-License-Identifier: Apache-2.0
"""Permission and ownership checks, the same for every API.

A piped has access to its own applications, deployments and commands only. An API key or a user has
access to their project only, and a user to what their roles grant there.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pipecd.cache import LruCache
from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.rbac import EVERYTHING, Permission, Scope
from pipecd.controlplane.auth.subject import (
    ApiKeyCaller,
    PipedCaller,
    Subject,
    User,
    UserOrApiKey,
)
from pipecd.controlplane.datastore.documents import Page, PageRequest
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.clock import Now, seconds_clock, utc_now
from pipecd.model.errors import Denied, NotFound
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.project_pb2 import Project, ProjectRBACRole

T = TypeVar("T")
PROJECT_TTL_SECONDS = 10.0
MAX_PROJECTS = 10_000


class ForeignProject(Denied):
    """The object belongs to another project."""


class MissingPermission(Denied):
    """No role of the user grants the permission; the message is upstream's."""

    def __init__(self, permission: Permission) -> None:
        super().__init__("Permission Denied")
        self.permission = permission


class Labelled(Protocol):
    """An object whose labels RBAC policies can match."""

    @property
    def labels(self) -> Mapping[str, str]: ...


L = TypeVar("L", bound=Labelled)


@dataclass(frozen=True)
class _CachedProject:
    """A project as last read, with its roles."""

    project: Project
    roles: tuple[ProjectRBACRole, ...]


class Access:
    """Decides permission and ownership."""

    def __init__(
        self, stores: Stores, *, config_projects: frozenset[str] = frozenset(), now: Now = utc_now
    ) -> None:
        self._stores, self._config_projects = stores, config_projects
        self._projects = LruCache[str, _CachedProject](
            MAX_PROJECTS, ttl=PROJECT_TTL_SECONDS, clock=seconds_clock(now)
        )

    async def scope(
        self, by: Subject, permission: Permission, *, writes: bool | None = None
    ) -> Scope:
        """The scope in which the caller has the permission; Denied if it is empty.

        `writes` says whether an API key needs write access; by default, every action but GET and
        LIST does.
        """
        match by:
            case ApiKeyCaller():
                needs_write = not permission.action.is_reading if writes is None else writes
                if permission.resource not in rbac.API_KEY_RESOURCES or (
                    needs_write and not by.may_write
                ):
                    raise Denied("Permission denied")
                return EVERYTHING
            case User():
                scope = rbac.scope_of(await self._roles_of_user(by), permission)
                if scope.is_empty:
                    raise MissingPermission(permission)
                return scope
            case PipedCaller():
                raise Denied("Permission denied")

    async def require(
        self, by: Subject, permission: Permission, *, writes: bool | None = None
    ) -> None:
        """Denied unless the caller has the permission on all objects of the resource type."""
        if not (await self.scope(by, permission, writes=writes)).is_everything:
            raise MissingPermission(permission)

    async def require_any_role(self, by: UserOrApiKey) -> None:
        """Denied for a user without any role of the project."""
        if isinstance(by, User) and not await self._roles_of_user(by):
            raise Denied("Permission Denied")

    async def application(
        self, id: str, *, by: Subject, permission: Permission, writes: bool | None = None
    ) -> Application:
        """The application, if the caller has the permission on it."""
        if isinstance(by, PipedCaller):
            return await self.own_application(id, by=by)
        scope = await self.scope(by, permission, writes=writes)
        application = await or_not_found(
            self._stores.applications.get(id), "Application is not found"
        )
        check_project(by, application.project_id, "application")
        check_scope(scope, application)
        return application

    async def deployment(self, id: str, *, by: Subject, permission: Permission) -> Deployment:
        """The deployment, if the caller has the permission on it."""
        if isinstance(by, PipedCaller):
            return await self.own_deployment(id, by=by)
        scope = await self.scope(by, permission)
        deployment = await or_not_found(self._stores.deployments.get(id), "Deployment is not found")
        check_project(by, deployment.project_id, "deployment")
        check_scope(scope, deployment)
        return deployment

    async def piped(self, id: str, *, by: UserOrApiKey) -> Piped:
        """The piped, if it belongs to the caller's project."""
        piped = await or_not_found(self._stores.pipeds.get(id), "Piped is not found")
        check_project(by, piped.project_id, "piped")
        return piped

    async def own_application(self, id: str, *, by: PipedCaller) -> Application:
        application = await or_not_found(
            self._stores.applications.get(id), f"Entity was not found to get application {id}"
        )
        check_own_application(by, application)
        return application

    async def own_deployment(self, id: str, *, by: PipedCaller) -> Deployment:
        deployment = await or_not_found(
            self._stores.deployments.get(id), f"Entity was not found to get deployment {id}"
        )
        check_own_deployment(by, deployment)
        return deployment

    async def list_page(
        self,
        fetch: Callable[[PageRequest], Awaitable[Page[L]]],
        page: PageRequest,
        *,
        by: UserOrApiKey,
        permission: Permission,
        project: str,
    ) -> Page[L]:
        """A page of the project's objects on which the caller has the permission.

        It fetches further pages until enough objects are visible, so it may exceed the page size.
        """
        scope = await self.scope(by, permission)
        check_project(by, project, "project")
        if scope.is_everything:
            return await fetch(page)
        items: list[L] = []
        while True:
            part = await fetch(page)
            items += (item for item in part.items if scope.covers(item.labels))
            if not part.cursor or not page.size or len(items) >= page.size:
                return Page(tuple(items), part.cursor)
            page = PageRequest(page.size, part.cursor, page.min_updated_at)

    async def project(self, id: str) -> Project:
        """The stored project, possibly cached; the caller must not modify it."""
        return (await self._cached(id)).project

    def invalidate(self, project: str) -> None:
        """Drops the cached project."""
        self._projects.invalidate(lambda cached: cached.project.id == project)

    def invalidate_all(self) -> None:
        self._projects.clear()

    async def _roles_of_user(self, by: User) -> tuple[ProjectRBACRole, ...]:
        # A project of the configuration file takes precedence over a stored one.
        if by.project in self._config_projects:
            return rbac.roles_named(rbac.BUILT_IN_ROLES, by.roles)
        try:
            cached = await self._cached(by.project)
        except NotFound as e:
            raise Denied("Permission Denied") from e
        return rbac.roles_named(cached.roles, by.roles)

    async def _cached(self, id: str) -> _CachedProject:
        async def load() -> _CachedProject:
            project = await self._stores.projects.get(id)
            return _CachedProject(project, rbac.roles_of(project))

        return await self._projects.get_or_load(id, load)


async def or_not_found(reading: Awaitable[T], message: str) -> T:
    """The result; NotFound gets upstream's message."""
    try:
        return await reading
    except NotFound as e:
        raise NotFound(message) from e


def check_project(by: Subject, project: str, noun: str) -> None:
    if project != by.project:
        raise ForeignProject(f"Requested {noun} does not belong to your project")


def check_scope(scope: Scope, target: Labelled) -> None:
    if not scope.covers(target.labels):
        raise Denied("Permission Denied")


def check_own_application(by: PipedCaller, application: Application) -> None:
    if (application.project_id, application.piped_id) != (by.project, by.piped):
        raise Denied("requested application doesn't belong to the piped")


def check_own_deployment(by: PipedCaller, deployment: Deployment) -> None:
    if (deployment.project_id, deployment.piped_id) != (by.project, by.piped):
        raise Denied("requested deployment doesn't belong to the piped")


def person(by: UserOrApiKey) -> str:
    """The name under which an approval of this caller counts.

    An API key approves for the user who created it, so that nobody counts twice. Its own name is
    never that of a user, who may be an approver.
    """
    if isinstance(by, User):
        return by.name
    return by.creator or f"API key {by.name}"


def operator_name(by: UserOrApiKey) -> str:
    """The name that a deployment shows for who requested it, cancelled it or skipped a stage."""
    if isinstance(by, User):
        return by.name
    return f"API key {by.name} created by {by.creator}" if by.creator else f"API key {by.name}"


def caller_id(by: UserOrApiKey) -> str:
    """The name of a user or the id of an API key, for the log of the control plane."""
    return by.name if isinstance(by, User) else by.key_id
