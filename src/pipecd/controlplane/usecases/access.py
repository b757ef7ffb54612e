# SPDX-License-Identifier: Apache-2.0
"""Who may touch what: every door's permission and ownership checks.

A piped reaches only its own applications, deployments and commands. A program with an API key or a
person reaches only their project, and a person only what their roles grant there.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

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

M = TypeVar("M", bound=Message)
T = TypeVar("T")
PROJECT_TTL_SECONDS = 10.0
MAX_PROJECTS = 10_000


class Foreign(Denied):
    """The thing exists in another project."""


class Labelled(Protocol):
    """Something that policies can tell apart by its labels."""

    @property
    def labels(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class _Known:
    """A project as last read, and the roles that follow from it."""

    project: Project
    roles: tuple[ProjectRBACRole, ...]


class Access:
    """The one place where permission and ownership are decided."""

    def __init__(
        self, stores: Stores, *, config_projects: frozenset[str] = frozenset(), now: Now = utc_now
    ) -> None:
        self._stores, self._config_projects = stores, config_projects
        self._projects = LruCache[str, _Known](
            MAX_PROJECTS, ttl=PROJECT_TTL_SECONDS, clock=seconds_clock(now)
        )

    async def scope(
        self, by: Subject, permission: Permission, *, writes: bool | None = None
    ) -> Scope:
        """On what the caller has the permission, or Denied when on nothing.

        `writes` tells whether an API key needs to be one that may write; as a rule, everything but
        reading does.
        """
        match by:
            case ApiKeyCaller():
                needs_write = not permission.action.is_reading if writes is None else writes
                if needs_write and not by.may_write:
                    raise Denied("Permission denied")
                return EVERYTHING
            case User():
                scope = rbac.scope_of(await self._held(by), permission)
                if scope.is_empty:
                    raise Denied("Permission Denied")
                return scope
            case PipedCaller():
                raise Denied("Permission denied")

    async def require(
        self, by: Subject, permission: Permission, *, writes: bool | None = None
    ) -> None:
        """Denied unless the caller has the permission on everything of its kind."""
        if not (await self.scope(by, permission, writes=writes)).is_everything:
            raise Denied("Permission Denied")

    async def require_any_role(self, by: UserOrApiKey) -> None:
        """Denied for a person without any known role."""
        if isinstance(by, User) and not await self._held(by):
            raise Denied("Permission Denied")

    async def application(
        self, id: str, *, by: Subject, permission: Permission, writes: bool | None = None
    ) -> Application:
        """The application, if the caller may do this to it."""
        if isinstance(by, PipedCaller):
            return await self.own_application(id, by=by)
        scope = await self.scope(by, permission, writes=writes)
        application = await found(self._stores.applications.get(id), "Application is not found")
        check_project(by, application.project_id, "application")
        check_scope(scope, application)
        return application

    async def deployment(self, id: str, *, by: Subject, permission: Permission) -> Deployment:
        """The deployment, if the caller may do this to it."""
        if isinstance(by, PipedCaller):
            return await self.own_deployment(id, by=by)
        scope = await self.scope(by, permission)
        deployment = await found(self._stores.deployments.get(id), "Deployment is not found")
        check_project(by, deployment.project_id, "deployment")
        check_scope(scope, deployment)
        return deployment

    async def piped(self, id: str, *, by: UserOrApiKey) -> Piped:
        """The piped, if it is one of the caller's project."""
        piped = await found(self._stores.pipeds.get(id), "Piped is not found")
        check_project(by, piped.project_id, "piped")
        return piped

    async def own_application(self, id: str, *, by: PipedCaller) -> Application:
        application = await found(
            self._stores.applications.get(id), f"Entity was not found to get application {id}"
        )
        check_own_application(by, application)
        return application

    async def own_deployment(self, id: str, *, by: PipedCaller) -> Deployment:
        deployment = await found(
            self._stores.deployments.get(id), f"Entity was not found to get deployment {id}"
        )
        check_own_deployment(by, deployment)
        return deployment

    async def project(self, id: str) -> Project:
        """A stored project as last read; not to be changed."""
        return (await self._known(id)).project

    def invalidate(self, project: str) -> None:
        """Drops what is known about a project."""
        self._projects.invalidate(lambda known: known.project.id == project)

    def invalidate_all(self) -> None:
        self._projects.clear()

    async def _held(self, by: User) -> tuple[ProjectRBACRole, ...]:
        return rbac.roles_named(await self._roles_of(by.project), by.roles)

    async def _roles_of(self, project: str) -> tuple[ProjectRBACRole, ...]:
        # A project of the configuration file hides one of the same name in the store.
        if project in self._config_projects:
            return rbac.BUILT_IN_ROLES
        try:
            return (await self._known(project)).roles
        except NotFound as e:
            raise Denied("Permission Denied") from e

    async def _known(self, id: str) -> _Known:
        async def load() -> _Known:
            project = await self._stores.projects.get(id)
            return _Known(project, rbac.roles_of(project))

        return await self._projects.get_or_load(id, load)


async def found(reading: Awaitable[T], message: str) -> T:
    """What is read, or NotFound in the words that clients know."""
    try:
        return await reading
    except NotFound as e:
        raise NotFound(message) from e


def check_project(by: Subject, project: str, noun: str) -> None:
    if project != by.project:
        raise Foreign(f"Requested {noun} does not belong to your project")


def check_scope(scope: Scope, thing: Labelled) -> None:
    if not scope.covers(thing.labels):
        raise Denied("Permission Denied")


def check_own_application(by: PipedCaller, application: Application) -> None:
    if (application.project_id, application.piped_id) != (by.project, by.piped):
        raise Denied("requested application doesn't belong to the piped")


def check_own_deployment(by: PipedCaller, deployment: Deployment) -> None:
    if (deployment.project_id, deployment.piped_id) != (by.project, by.piped):
        raise Denied("requested deployment doesn't belong to the piped")


async def visible(
    fetch: Callable[[PageRequest], Awaitable[Page[M]]],
    page: PageRequest,
    may_see: Callable[[M], bool] | None,
) -> Page[M]:
    """A page of those things that the caller may see.

    It reads on while too few were visible, so it may hold more than the size asked for.
    """
    if may_see is None:
        return await fetch(page)
    items: list[M] = []
    while True:
        part = await fetch(page)
        items += (item for item in part.items if may_see(item))
        if not part.cursor or not page.size or len(items) >= page.size:
            return Page(tuple(items), part.cursor)
        page = PageRequest(page.size, part.cursor, page.min_updated_at)


def sight(scope: Scope) -> Callable[[Labelled], bool] | None:
    """What a list must be narrowed to; None when everything may be seen."""
    return None if scope.is_everything else lambda thing: scope.covers(thing.labels)


def commander(by: UserOrApiKey) -> str:
    """The name under which commands of this caller are recorded."""
    return by.name if isinstance(by, User) else by.key_id


def creator(by: UserOrApiKey) -> str:
    """The name under which keys made by this caller are recorded."""
    return by.name
