# SPDX-License-Identifier: Apache-2.0
"""Projects: their settings, roles and user groups."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipecd.config.controlplane import DEFAULT_SESSION_HOURS
from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.sso import config_error
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, or_not_found
from pipecd.model.errors import AlreadyExists, Conflict, NotFound, UserMistake
from pipecd.proto.model.project_pb2 import (
    Project,
    ProjectRBACConfig,
    ProjectRBACPolicy,
    ProjectRBACRole,
    ProjectSSOConfig,
    ProjectStaticUser,
    ProjectUserGroup,
)
from pipecd.secrets import keys
from pipecd.secrets.keyfile import KeyFile

_GET = Permission(Resource.PROJECT, Action.GET)
_UPDATE = Permission(Resource.PROJECT, Action.UPDATE)

MAX_ID_LENGTH = 50
# The OAuth client of a project; it is never shown again.
CLIENT_FIELDS = ("client_id", "client_secret")


@dataclass(frozen=True)
class ConfigProject:
    """A project that the configuration file of the control plane declares."""

    id: str
    username: str
    password_hash: str
    description: str = ""


class StaticAdmin(NamedTuple):
    """The credentials of a static admin; the password cannot be read again."""

    username: str
    password: str


class ProjectUseCases:
    """Manages projects; one of the configuration file takes precedence over a stored one."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        access: Access,
        encryption_key: bytes,
        from_config: Sequence[ConfigProject],
    ) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._encryption_key = encryption_key
        self._from_config = {project.id: project for project in from_config}

    async def add(
        self,
        id: str,
        description: str = "",
        admin: StaticAdmin | None = None,
        *,
        shared_sso: str = "",
        allow_stray_as_viewer: bool = False,
    ) -> StaticAdmin:
        """Adds a project; only for operators of the control plane."""
        check_id(id)
        if id in self._from_config:
            raise AlreadyExists(f"project {id} is declared in the control-plane configuration")
        admin = admin or _new_admin()
        project = Project(
            id=id,
            desc=description,
            static_admin=await _static_user(admin),
            shared_sso_name=shared_sso,
            allow_stray_as_viewer=allow_stray_as_viewer,
        )
        await self._stores.projects.add(project)
        await self._bus.publish(Signal(Topic.PROJECT, id, id))
        return admin

    async def list(self) -> tuple[Project, ...]:
        """All stored projects without secrets; only for operators of the control plane."""
        return tuple(redacted(project) for project in await self._stores.projects.list())

    async def reset_admin(self, id: str) -> StaticAdmin:
        """Sets a new password for the static admin; only for operators of the control plane."""
        if id in self._from_config:
            raise _declared_in_config()
        admin = _new_admin()
        user = await _static_user(admin)

        def change(project: Project) -> None:
            username = project.static_admin.username
            project.static_admin.CopyFrom(user)
            project.static_admin.username = username or user.username

        error = f"Unable to find project {id}"
        changed = await or_not_found(self._stores.projects.update(id, change), error)
        await self._invalidate(id)
        return StaticAdmin(changed.static_admin.username, admin.password)

    async def read(self, id: str) -> Project:
        """The project with its secrets, for the sign-in; NotFound if it does not exist."""
        return self._from_config_file(id) or await self._stores.projects.get(id)

    async def read_cached(self, id: str) -> Project:
        """The same, possibly cached; the caller must not modify it."""
        return self._from_config_file(id) or await self._access.project(id)

    async def get(self, *, by: UserOrApiKey) -> Project:
        """The caller's project with all roles and groups, without secrets."""
        await self._access.require(by, _GET)
        project = await or_not_found(self.read(by.project), "Project is not found")
        roles, groups = rbac.roles_of(project), rbac.user_groups_of(project)
        project.ClearField("rbac_roles")
        project.rbac_roles.extend(roles)
        project.ClearField("user_groups")
        project.user_groups.extend(groups)
        return redacted(project)

    async def set_static_admin(self, username: str, password: str, *, by: UserOrApiKey) -> None:
        await self._access.require(by, _UPDATE)
        user = await _static_user(StaticAdmin(username, password))

        def change(project: Project) -> None:
            project.static_admin.CopyFrom(user)

        await self.change(change, by=by)

    async def enable_static_admin(self, *, by: UserOrApiKey) -> None:
        await self.change(lambda project: _set_admin_disabled(project, disabled=False), by=by)

    async def disable_static_admin(self, *, by: UserOrApiKey) -> None:
        await self.change(lambda project: _set_admin_disabled(project, disabled=True), by=by)

    async def set_sso(self, sso: ProjectSSOConfig, *, by: UserOrApiKey) -> None:
        """Replaces the single sign-on configuration; GitHub's secrets are stored encrypted.

        The client id and secret are never shown again, so empty ones leave the stored ones
        unchanged.
        """
        encrypted = ProjectSSOConfig()
        encrypted.CopyFrom(sso)
        # Upstream's console does not send it, and upstream rejects a stored zero.
        encrypted.session_ttl = sso.session_ttl or DEFAULT_SESSION_HOURS
        if encrypted.HasField("github"):
            key_file = KeyFile(self._encryption_key)
            for name in CLIENT_FIELDS:
                if plain := getattr(sso.github, name):
                    setattr(encrypted.github, name, key_file.encrypt(plain))

        def change(project: Project) -> None:
            merged = ProjectSSOConfig()
            merged.CopyFrom(encrypted)
            _fill_client(merged, project.sso)
            if (error := config_error(merged)) is not None:
                raise UserMistake(f"Invalid SSO configuration: {error}")
            project.sso.CopyFrom(merged)

        await self.change(change, by=by)

    async def remove_sso(self, *, by: UserOrApiKey) -> None:
        """Disables single sign-on; existing sessions stay valid."""
        await self.change(lambda project: project.ClearField("sso"), by=by)

    def is_declared(self, id: str) -> bool:
        """Whether the project is declared in the configuration file, and so cannot be changed."""
        return id in self._from_config

    async def set_legacy_teams(self, teams: ProjectRBACConfig, *, by: UserOrApiKey) -> None:
        await self.change(lambda project: project.rbac.CopyFrom(teams), by=by)

    async def change(self, change: Callable[[Project], None], *, by: UserOrApiKey) -> None:
        """Changes the settings of the caller's project."""
        await self._access.require(by, _UPDATE)
        if by.project in self._from_config:
            raise _declared_in_config()
        await or_not_found(self._stores.projects.get(by.project), "Project is not found")
        # NotFound errors of the change itself keep their message.
        await self._stores.projects.update(by.project, change)
        await self._invalidate(by.project)

    def _from_config_file(self, id: str) -> Project | None:
        configured = self._from_config.get(id)
        if configured is None:
            return None
        user = ProjectStaticUser(
            username=configured.username, password_hash=configured.password_hash
        )
        return Project(id=id, desc=configured.description, static_admin=user)

    async def _invalidate(self, id: str) -> None:
        self._access.invalidate(id)
        await self._bus.publish(Signal(Topic.PROJECT, id, id))


def check_id(id: str) -> None:
    """Refuses an id that does not fit into file paths, piped tokens and columns."""
    if not id:
        raise UserMistake("a project needs an id")
    if len(id) > MAX_ID_LENGTH:
        raise UserMistake(f"the id of a project may have {MAX_ID_LENGTH} characters at most")
    unfit = [c for c in id if c in "/\\," or not c.isprintable()]
    if unfit or id != id.strip() or set(id) == {"."}:
        raise UserMistake(
            f"{id!r} cannot be the id of a project",
            hint="use letters, digits, hyphens, underscores and dots",
        )


def redacted(project: Project) -> Project:
    """The project without secrets."""
    if project.HasField("static_admin"):
        project.static_admin.password_hash = keys.REDACTED
    for name in ("github", "google", "oidc"):
        if project.HasField("sso") and project.sso.HasField(name):
            provider = getattr(project.sso, name)
            provider.client_id = keys.REDACTED
            provider.client_secret = keys.REDACTED
    return project


def _fill_client(new: ProjectSSOConfig, old: ProjectSSOConfig) -> None:
    """Fills empty client fields with the stored ones of the same provider."""
    for provider in ("github", "oidc"):
        if new.HasField(provider) and old.HasField(provider):
            fields, stored = getattr(new, provider), getattr(old, provider)
            for name in CLIENT_FIELDS:
                setattr(fields, name, getattr(fields, name) or getattr(stored, name))


def _declared_in_config() -> Conflict:
    return Conflict("Failed to update a debug project specified in the control-plane configuration")


def _new_admin() -> StaticAdmin:
    return StaticAdmin(keys.new_secret(10), keys.new_secret(30))


async def _static_user(admin: StaticAdmin) -> ProjectStaticUser:
    hashed = await asyncio.to_thread(keys.hash_key, admin.password)
    return ProjectStaticUser(username=admin.username, password_hash=hashed)


def _set_admin_disabled(project: Project, *, disabled: bool) -> None:
    project.static_admin_disabled = disabled


Policies = Sequence[ProjectRBACPolicy]


class Roles:
    """Manages custom roles and user groups of a project."""

    def __init__(self, projects: ProjectUseCases) -> None:
        self._projects = projects

    async def add(self, name: str, policies: Policies, *, by: UserOrApiKey) -> None:
        role = ProjectRBACRole(name=name, policies=policies)

        def change(project: Project) -> None:
            if any(role.name == name for role in rbac.roles_of(project)):
                raise AlreadyExists(f"role {name} exists already")
            project.rbac_roles.append(role)

        await self._projects.change(change, by=by)

    async def update(self, name: str, policies: Policies, *, by: UserOrApiKey) -> None:
        def change(project: Project) -> None:
            role = project.rbac_roles[_position(project, name)]
            del role.policies[:]
            role.policies.extend(policies)

        await self._projects.change(change, by=by)

    async def delete(self, name: str, *, by: UserOrApiKey) -> None:
        """Deletes a custom role; groups that name it keep it, but it grants nothing."""

        def change(project: Project) -> None:
            del project.rbac_roles[_position(project, name)]

        await self._projects.change(change, by=by)

    async def add_group(self, sso_group: str, role: str, *, by: UserOrApiKey) -> None:
        def change(project: Project) -> None:
            if any(g.sso_group == sso_group for g in rbac.user_groups_of(project)):
                raise AlreadyExists(f"group {sso_group} has a role already")
            if not rbac.roles_named(rbac.roles_of(project), (role,)):
                raise NotFound(f"role {role} does not exist")
            project.user_groups.append(ProjectUserGroup(sso_group=sso_group, role=role))

        await self._projects.change(change, by=by)

    async def delete_group(self, sso_group: str, *, by: UserOrApiKey) -> None:
        """Removes the role of a group, also that of the legacy configuration."""

        def change(project: Project) -> None:
            if not any(g.sso_group == sso_group for g in rbac.user_groups_of(project)):
                raise NotFound(f"group {sso_group} has no role")
            others = [g for g in project.user_groups if g.sso_group != sso_group]
            project.ClearField("user_groups")
            project.user_groups.extend(others)
            for team in ("admin", "editor", "viewer"):
                if project.HasField("rbac") and getattr(project.rbac, team) == sso_group:
                    setattr(project.rbac, team, "")

        await self._projects.change(change, by=by)


def _position(project: Project, name: str) -> int:
    if name in rbac.BUILT_IN_NAMES:
        raise Conflict(f"role {name} is built in and cannot be changed")
    for position, role in enumerate(project.rbac_roles):
        if role.name == name:
            return position
    raise NotFound(f"role {name} does not exist")
