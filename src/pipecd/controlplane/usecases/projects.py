# SPDX-License-Identifier: Apache-2.0
"""Projects and their settings."""

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
from pipecd.controlplane.usecases.access import Access, found
from pipecd.model.errors import AlreadyExists, Conflict, UserMistake
from pipecd.proto.model.project_pb2 import (
    Project,
    ProjectRBACConfig,
    ProjectSSOConfig,
    ProjectStaticUser,
)
from pipecd.secrets import keys
from pipecd.secrets.keyfile import KeyFile

_GET = Permission(Resource.PROJECT, Action.GET)
_UPDATE = Permission(Resource.PROJECT, Action.UPDATE)

LONGEST_ID = 50
# What a project shows to another site, and to nobody else.
CLIENT = ("client_id", "client_secret")


@dataclass(frozen=True)
class ConfigProject:
    """A project that the configuration file of the control plane declares."""

    id: str
    username: str
    password_hash: str
    description: str = ""


class StaticAdmin(NamedTuple):
    """The password of a project's administrator, told this once and never again."""

    username: str
    password: str


class Projects:
    """All projects; one of the configuration file hides a stored one of the same name."""

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
        """Makes a project; asked by whoever runs the control plane, no door offers it to others."""
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

    async def listed(self) -> tuple[Project, ...]:
        """All stored projects, redacted; for whoever runs the control plane."""
        return tuple(redacted(project) for project in await self._stores.projects.list())

    async def reset_admin(self, id: str) -> StaticAdmin:
        """Gives the administrator a new password; for whoever runs the control plane."""
        if id in self._from_config:
            raise _declared_in_config()
        admin = _new_admin()
        user = await _static_user(admin)

        def change(project: Project) -> None:
            username = project.static_admin.username
            project.static_admin.CopyFrom(user)
            project.static_admin.username = username or user.username

        missing = f"Unable to find project {id}"
        changed = await found(self._stores.projects.update(id, change), missing)
        await self._changed(id)
        return StaticAdmin(changed.static_admin.username, admin.password)

    async def known(self, id: str) -> Project:
        """The project with everything, for the sign-in; NotFound when there is none."""
        return self._declared(id) or await self._stores.projects.get(id)

    async def remembered(self, id: str) -> Project:
        """The same, as it was read at most a moment ago; not to be changed."""
        return self._declared(id) or await self._access.project(id)

    async def get(self, *, by: UserOrApiKey) -> Project:
        """The caller's project with all roles and groups, without secrets."""
        await self._access.require(by, _GET)
        project = await found(self.known(by.project), "Project is not found")
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
        """Replaces the single sign-on; the secrets of GitHub are stored encrypted.

        Nobody is shown the id and the secret of the client again, so those that are left empty stay
        as they are.
        """
        sealed = ProjectSSOConfig()
        sealed.CopyFrom(sso)
        # Upstream's console does not ask for it, and upstream refuses a stored zero.
        sealed.session_ttl = sso.session_ttl or DEFAULT_SESSION_HOURS
        if sealed.HasField("github"):
            key_file = KeyFile(self._encryption_key)
            for name in CLIENT:
                if plain := getattr(sso.github, name):
                    setattr(sealed.github, name, key_file.encrypt(plain))

        def change(project: Project) -> None:
            whole = ProjectSSOConfig()
            whole.CopyFrom(sealed)
            _keep_client(whole, project.sso)
            if (error := config_error(whole)) is not None:
                raise UserMistake(f"Invalid SSO configuration: {error}")
            project.sso.CopyFrom(whole)

        await self.change(change, by=by)

    async def remove_sso(self, *, by: UserOrApiKey) -> None:
        """Nobody can sign in through another site any more; those who did stay signed in."""
        await self.change(lambda project: project.ClearField("sso"), by=by)

    def is_declared(self, id: str) -> bool:
        """Whether the configuration file has the project, so that nobody can change it here."""
        return id in self._from_config

    async def set_legacy_teams(self, teams: ProjectRBACConfig, *, by: UserOrApiKey) -> None:
        await self.change(lambda project: project.rbac.CopyFrom(teams), by=by)

    async def change(self, change: Callable[[Project], None], *, by: UserOrApiKey) -> None:
        """Changes the settings of the caller's project."""
        await self._access.require(by, _UPDATE)
        if by.project in self._from_config:
            raise _declared_in_config()
        await found(self._stores.projects.get(by.project), "Project is not found")
        # What a change does not find is told in its own words.
        await self._stores.projects.update(by.project, change)
        await self._changed(by.project)

    def _declared(self, id: str) -> Project | None:
        declared = self._from_config.get(id)
        if declared is None:
            return None
        user = ProjectStaticUser(username=declared.username, password_hash=declared.password_hash)
        return Project(id=id, desc=declared.description, static_admin=user)

    async def _changed(self, id: str) -> None:
        self._access.invalidate(id)
        await self._bus.publish(Signal(Topic.PROJECT, id, id))


def check_id(id: str) -> None:
    """Refuses an id that cannot stand in paths of files, tokens of pipeds and columns."""
    if not id:
        raise UserMistake("a project needs an id")
    if len(id) > LONGEST_ID:
        raise UserMistake(f"the id of a project may have {LONGEST_ID} characters at most")
    unfit = [c for c in id if c in "/\\," or not c.isprintable()]
    if unfit or id != id.strip() or set(id) == {"."}:
        raise UserMistake(
            f"{id!r} cannot be the id of a project",
            hint="use letters, digits, hyphens, underscores and dots",
        )


def redacted(project: Project) -> Project:
    """The project without anything that opens a door."""
    if project.HasField("static_admin"):
        project.static_admin.password_hash = keys.REDACTED
    for name in ("github", "google", "oidc"):
        if project.HasField("sso") and project.sso.HasField(name):
            provider = getattr(project.sso, name)
            provider.client_id = keys.REDACTED
            provider.client_secret = keys.REDACTED
    return project


def _keep_client(new: ProjectSSOConfig, old: ProjectSSOConfig) -> None:
    """Fills in what was left empty of the client with what is stored for the same provider."""
    for provider in ("github", "oidc"):
        if new.HasField(provider) and old.HasField(provider):
            mine, stored = getattr(new, provider), getattr(old, provider)
            for name in CLIENT:
                setattr(mine, name, getattr(mine, name) or getattr(stored, name))


def _declared_in_config() -> Conflict:
    return Conflict("Failed to update a debug project specified in the control-plane configuration")


def _new_admin() -> StaticAdmin:
    return StaticAdmin(keys.new_secret(10), keys.new_secret(30))


async def _static_user(admin: StaticAdmin) -> ProjectStaticUser:
    hashed = await asyncio.to_thread(keys.hash_key, admin.password)
    return ProjectStaticUser(username=admin.username, password_hash=hashed)


def _set_admin_disabled(project: Project, *, disabled: bool) -> None:
    project.static_admin_disabled = disabled
