# SPDX-License-Identifier: Apache-2.0
"""Projects: their settings, roles and user groups."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pipecd.config.controlplane import DEFAULT_SESSION_HOURS
from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.ended_sessions import EndingTarget, touched_by
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.sso import config_error
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, or_not_found
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.controlplane.usecases.settings_log import RecordedChange, log_change
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
from pipecd.secrets.keyfile import KeyFile, is_sealed

_GET = Permission(Resource.PROJECT, Action.GET)
_UPDATE = Permission(Resource.PROJECT, Action.UPDATE)

MAX_ID_LENGTH = 50
_NEW_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# The settings that decide where the client secret of a provider is sent.
_ADDRESS_FIELDS: Mapping[Literal["github", "oidc"], tuple[str, ...]] = {
    "github": ("base_url", "proxy_url"),
    "oidc": (
        "issuer",
        "authorization_endpoint",
        "token_endpoint",
        "user_info_endpoint",
        "proxy_url",
    ),
}
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
        endings: SessionEndings,
        encryption_key: bytes,
        from_config: Sequence[ConfigProject],
    ) -> None:
        self._stores, self._bus, self._access, self._endings = stores, bus, access, endings
        self._encryption_key = encryption_key
        self._from_config = {project.id: project for project in from_config}
        self._adding_first = asyncio.Lock()
        # Strangers ask on every visit of the sign-in page.
        self._had_any = bool(from_config)

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
        check_new_id(id)
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

    async def list_all(self) -> tuple[Project, ...]:
        """All projects, also those of the configuration file, without secrets; for operators."""
        stored = [p for p in await self.list() if p.id not in self._from_config]
        declared = [Project(id=p.id, desc=p.description) for p in self._from_config.values()]
        return (*declared, *stored)

    async def has_any(self) -> bool:
        """Whether the installation has a project, or had one since this process started."""
        self._had_any = self._had_any or bool(await self._stores.projects.list())
        return self._had_any

    async def add_first(self, id: str, admin: StaticAdmin) -> None:
        """Adds the first project of an installation; Conflict if there is one already."""
        async with self._adding_first:
            if await self.list_all():
                raise Conflict("this installation has a project already")
            await self.add(id, "", admin)

    async def reset_admin(self, id: str) -> StaticAdmin:
        """Sets a new password for the static admin and enables it; only for operators."""
        if id in self._from_config:
            raise _declared_in_config()
        admin = _new_admin()
        user = await _static_user(admin)

        def change(project: Project) -> None:
            username = project.static_admin.username
            project.static_admin.CopyFrom(user)
            project.static_admin.username = username or user.username
            project.static_admin_disabled = False

        error = f"Unable to find project {id}"
        changed = await or_not_found(self._update(id, change), error)
        return StaticAdmin(changed.static_admin.username, admin.password)

    async def unseal_secrets(self) -> int:
        """Stores sealed client secrets in plain text, as upstream reads them; for operators.

        Returns the number of projects that were changed.
        """
        key_file = KeyFile(self._encryption_key)

        def change(project: Project) -> None:
            oidc = project.sso.oidc
            oidc.client_secret = key_file.unseal(oidc.client_secret)

        sealed = [
            project.id
            for project in await self._stores.projects.list()
            if is_sealed(project.sso.oidc.client_secret)
        ]
        for id in sealed:
            await self._update(id, change)
        return len(sealed)

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
        def change(project: Project) -> None:
            project.static_admin_disabled = False

        await self.change(change, by=by)

    async def disable_static_admin(self, *, by: UserOrApiKey) -> None:
        """Disables the password; Conflict if there is no other way to sign in."""

        def change(project: Project) -> None:
            project.static_admin_disabled = True
            check_can_sign_in(project)

        await self.change(change, by=by)

    async def set_sso(self, sso: ProjectSSOConfig, *, by: UserOrApiKey) -> None:
        """Replaces the single sign-on configuration; its secrets are stored encrypted.

        The client id and secret are never shown again, so empty ones leave the stored ones
        unchanged. The secret is demanded again when it would be sent to another address: who may
        change the settings of a project need not know its secret.
        """
        encrypted = self._encrypted(sso)

        def change(project: Project) -> None:
            _replace_sso(project, encrypted)
            check_can_sign_in(project)

        await self.change(change, by=by)

    async def with_sso(self, sso: ProjectSSOConfig, *, by: UserOrApiKey) -> Project:
        """The project as `set_sso` would leave it; nothing is stored."""
        await self.require_update(by)
        if by.project in self._from_config:
            raise _declared_in_config()
        project = await self.read(by.project)
        _replace_sso(project, self._encrypted(sso))
        return project

    def _encrypted(self, sso: ProjectSSOConfig) -> ProjectSSOConfig:
        encrypted = ProjectSSOConfig()
        encrypted.CopyFrom(sso)
        # Upstream's console does not send it, and upstream rejects a stored zero.
        encrypted.session_ttl = sso.session_ttl or DEFAULT_SESSION_HOURS
        key_file = KeyFile(self._encryption_key)
        if sso.oidc.client_secret:
            encrypted.oidc.client_secret = key_file.seal(sso.oidc.client_secret)
        if encrypted.HasField("github"):
            for name in CLIENT_FIELDS:
                if plain := getattr(sso.github, name):
                    setattr(encrypted.github, name, key_file.encrypt(plain))
        return encrypted

    async def remove_sso(self, *, by: UserOrApiKey) -> None:
        """Disables single sign-on; Conflict if there is no other way to sign in."""

        def change(project: Project) -> None:
            project.ClearField("sso")
            check_can_sign_in(project)

        await self.change(change, by=by)

    def is_declared(self, id: str) -> bool:
        """Whether the project is declared in the configuration file, and so cannot be changed."""
        return id in self._from_config

    async def set_legacy_teams(self, teams: ProjectRBACConfig, *, by: UserOrApiKey) -> None:
        def change(project: Project) -> None:
            project.rbac.CopyFrom(teams)
            check_can_sign_in(project)

        await self.change(change, by=by)

    async def change(self, change: Callable[[Project], None], *, by: UserOrApiKey) -> None:
        """Changes the settings of the caller's project, and ends the sessions this touches."""
        await self.require_update(by)
        if by.project in self._from_config:
            raise _declared_in_config()
        await or_not_found(self._stores.projects.get(by.project), "Project is not found")
        recorded = RecordedChange(change)
        # NotFound errors of the change itself keep their message.
        await self._update(by.project, recorded)
        if recorded.fields:
            log_change("project settings changed", by=by, settings=recorded.fields)

    async def require_update(self, by: UserOrApiKey) -> None:
        """Denied unless the caller may change the settings of their project."""
        await self._access.require(by, _UPDATE)

    async def _update(self, id: str, change: Callable[[Project], None]) -> Project:
        touched: tuple[EndingTarget, ...] = ()

        def change_and_compare(project: Project) -> None:
            nonlocal touched
            before = Project()
            before.CopyFrom(project)
            change(project)
            touched = touched_by(before, project)

        changed = await self._stores.projects.update(id, change_and_compare)
        await self._invalidate(id)
        await self._endings.end(id, *touched)
        return changed

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
        raise UserMistake("a project needs an ID")
    if len(id) > MAX_ID_LENGTH:
        raise UserMistake(f"the ID of a project may have {MAX_ID_LENGTH} characters at most")
    unfit = [c for c in id if c in "/\\," or not c.isprintable()]
    if unfit or id != id.strip() or set(id) == {"."}:
        raise _unfit_id(id)


def check_new_id(id: str) -> None:
    """Refuses an id that a new project should not have, although one of upstream may have it.

    It is a part of addresses, and pipeds send it in a header, which has ASCII characters only.
    """
    check_id(id)
    if not _NEW_ID.fullmatch(id):
        raise _unfit_id(id)


def _unfit_id(id: str) -> UserMistake:
    return UserMistake(
        f"{id!r} cannot be the ID of a project",
        hint="use the letters a to z and A to Z, digits, hyphens, underscores and dots, "
        "with a letter or digit first",
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


def _replace_sso(project: Project, encrypted: ProjectSSOConfig) -> None:
    """Sets the configuration; empty secrets are those that are stored."""
    merged = ProjectSSOConfig()
    merged.CopyFrom(encrypted)
    _fill_client(merged, project.sso)
    if (error := config_error(merged)) is not None:
        raise UserMistake(f"Invalid SSO configuration: {error}")
    project.sso.CopyFrom(merged)


def _fill_client(new: ProjectSSOConfig, old: ProjectSSOConfig) -> None:
    """Fills empty client fields with the stored ones of the same provider and addresses."""
    for provider, address_fields in _ADDRESS_FIELDS.items():
        if not (new.HasField(provider) and old.HasField(provider)):
            continue
        fields, stored = getattr(new, provider), getattr(old, provider)
        fields.client_id = fields.client_id or stored.client_id
        if fields.client_secret or not stored.client_secret:
            continue
        if any(getattr(fields, name) != getattr(stored, name) for name in address_fields):
            raise UserMistake(
                "Enter the client secret again: it would be sent to another address than before."
            )
        fields.client_secret = stored.client_secret


def _declared_in_config() -> Conflict:
    return Conflict("Failed to update a debug project specified in the control-plane configuration")


def _new_admin() -> StaticAdmin:
    return StaticAdmin(keys.new_secret(10), keys.new_secret(30))


async def _static_user(admin: StaticAdmin) -> ProjectStaticUser:
    hashed = await asyncio.to_thread(keys.hash_key, admin.password)
    return ProjectStaticUser(username=admin.username, password_hash=hashed)


def check_can_sign_in(project: Project) -> None:
    """Conflict if nobody could sign in to the project."""
    if project.static_admin_disabled and not _has_single_sign_on(project):
        raise Conflict(
            "Nobody could sign in any more: without a static admin the project needs single "
            "sign-on that gives users a role"
        )


def _has_single_sign_on(project: Project) -> bool:
    if project.shared_sso_name:
        return True
    if not project.HasField("sso") or config_error(project.sso) is not None:
        return False
    # With GitHub, roles come only from user groups.
    by_groups = project.sso.provider == ProjectSSOConfig.Provider.GITHUB
    return not by_groups or project.allow_stray_as_viewer or bool(rbac.user_groups_of(project))


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

    async def update_group(self, sso_group: str, role: str, *, by: UserOrApiKey) -> None:
        """Gives another role to a group that has one."""

        def change(project: Project) -> None:
            if not rbac.roles_named(rbac.roles_of(project), (role,)):
                raise NotFound(f"role {role} does not exist")
            _remove_group(project, sso_group)
            project.user_groups.append(ProjectUserGroup(sso_group=sso_group, role=role))

        await self._projects.change(change, by=by)

    async def delete_group(self, sso_group: str, *, by: UserOrApiKey) -> None:
        """Removes the role of a group, also that of the legacy configuration."""

        def change(project: Project) -> None:
            _remove_group(project, sso_group)
            check_can_sign_in(project)

        await self._projects.change(change, by=by)


def _remove_group(project: Project, sso_group: str) -> None:
    if not any(g.sso_group == sso_group for g in rbac.user_groups_of(project)):
        raise NotFound(f"group {sso_group} has no role")
    others = [g for g in project.user_groups if g.sso_group != sso_group]
    project.ClearField("user_groups")
    project.user_groups.extend(others)
    for team in ("admin", "editor", "viewer"):
        if project.HasField("rbac") and getattr(project.rbac, team) == sso_group:
            setattr(project.rbac, team, "")


def _position(project: Project, name: str) -> int:
    if name in rbac.BUILT_IN_NAMES:
        raise Conflict(f"role {name} is built in and cannot be changed")
    for position, role in enumerate(project.rbac_roles):
        if role.name == name:
            return position
    raise NotFound(f"role {name} does not exist")
