# SPDX-License-Identifier: Apache-2.0
"""What the operator of an installation does without signing in, by the commands of `pipecd`.

Arguments and results are plain data, because the commands send them to a running server when that
is the only process that can open the database.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases.api_keys import (
    MANAGE_SESSIONS,
    READ_ONLY,
    READ_WRITE,
    READ_WRITE_APPROVE,
    ApiKeyUseCases,
    KeyRole,
)
from pipecd.controlplane.usecases.projects import (
    ProjectUseCases,
    StaticAdmin,
    check_can_sign_in,
)
from pipecd.model.clock import from_unix
from pipecd.model.errors import NotFound, UserMistake
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.secrets.keys import new_secret

Arguments: TypeAlias = Mapping[str, str]
Rows: TypeAlias = list[dict[str, str]]

# What an API key may do, by the names that commands have for it.
KEY_ROLES: Mapping[str, KeyRole] = {
    "READ_ONLY": READ_ONLY,
    "READ_WRITE": READ_WRITE,
    "READ_WRITE_APPROVE": READ_WRITE_APPROVE,
    "MANAGE_SESSIONS": MANAGE_SESSIONS,
}
_KEY_ROLE_NAMES: Mapping[KeyRole, str] = {role: name for name, role in KEY_ROLES.items()}

# The creator of what an operator adds.
OPERATOR = "operator"
_PASSWORD_LENGTH = 30


class InstallationUseCases:
    """Runs the operations by name; `shared_sso` are the names of the shared SSO configurations."""

    def __init__(
        self, projects: ProjectUseCases, api_keys: ApiKeyUseCases, shared_sso: frozenset[str]
    ) -> None:
        self._projects, self._api_keys, self._shared_sso = projects, api_keys, shared_sso
        self._operations: dict[str, Callable[[Arguments], Awaitable[Rows]]] = {
            "add-project": self._add_project,
            "list-projects": self._list_projects,
            "show-project": self._show_project,
            "update-project": self._update_project,
            "reset-password": self._reset_password,
            "add-api-key": self._add_api_key,
            "set-api-key-role": self._set_api_key_role,
            "list-api-keys": self._list_api_keys,
            "disable-api-key": self._disable_api_key,
        }

    async def run(self, operation: str, arguments: Arguments) -> Rows:
        handler = self._operations.get(operation)
        if handler is None:
            raise UserMistake(
                f"the running server does not offer {operation}",
                hint="restart it with the version of this command",
            )
        return await handler(arguments)

    async def _add_project(self, arguments: Arguments) -> Rows:
        shared_sso = arguments["shared_sso"]
        self._check_shared_sso(shared_sso)
        password = arguments["password"] or new_secret(_PASSWORD_LENGTH)
        admin = StaticAdmin(arguments["username"], password)
        await self._projects.add(
            arguments["id"], arguments["description"], admin, shared_sso=shared_sso
        )
        return [_credentials(arguments["id"], admin)]

    async def _list_projects(self, _arguments: Arguments) -> Rows:
        return [
            {
                "id": project.id,
                "description": project.desc,
                "password": "disabled" if project.static_admin_disabled else "enabled",
                "shared_sso": project.shared_sso_name,
                "created_at": _time(project.created_at),
            }
            for project in await self._projects.list_all()
        ]

    async def _show_project(self, arguments: Arguments) -> Rows:
        operator = await self._operator_of(arguments["id"])
        project = await self._projects.get(by=operator)
        keys = await self._api_keys.list(by=operator, enabled=True)
        provider = ProjectSSOConfig.Provider.Name(project.sso.provider)
        return [
            {
                "id": project.id,
                "description": project.desc,
                "username": project.static_admin.username,
                "password": "disabled" if project.static_admin_disabled else "enabled",
                "sso": provider if project.HasField("sso") else "",
                "shared_sso": project.shared_sso_name,
                "users_without_role": "viewers" if project.allow_stray_as_viewer else "refused",
                "roles": ", ".join(role.name for role in project.rbac_roles),
                "user_groups": ", ".join(f"{g.sso_group}: {g.role}" for g in project.user_groups),
                "api_keys": str(len(keys)),
                "created_at": _time(project.created_at),
            }
        ]

    async def _update_project(self, arguments: Arguments) -> Rows:
        """Changes what the arguments name, and nothing else."""
        operator = await self._operator_of(arguments["id"])
        self._check_shared_sso(arguments.get("shared_sso", ""))

        def change(project: Project) -> None:
            project.desc = arguments.get("description", project.desc)
            project.shared_sso_name = arguments.get("shared_sso", project.shared_sso_name)
            if "password" in arguments:
                project.static_admin_disabled = arguments["password"] == "disabled"  # noqa: S105
            if "users_without_role" in arguments:
                project.allow_stray_as_viewer = arguments["users_without_role"] == "viewers"
            check_can_sign_in(project)

        await self._projects.change(change, by=operator)
        return await self._show_project(arguments)

    def _check_shared_sso(self, name: str) -> None:
        if name and name not in self._shared_sso:
            raise UserMistake(
                f"there is no shared SSO configuration {name}",
                hint="name one of spec.sharedSSOConfigs of the control plane",
            )

    async def _reset_password(self, arguments: Arguments) -> Rows:
        return [_credentials(arguments["id"], await self._projects.reset_admin(arguments["id"]))]

    async def _add_api_key(self, arguments: Arguments) -> Rows:
        operator = await self._operator_of(arguments["project"])
        role = KEY_ROLES[arguments["role"]]
        key = await self._api_keys.generate(arguments["name"], **role._asdict(), by=operator)
        return [{"key": key}]

    async def _set_api_key_role(self, arguments: Arguments) -> Rows:
        operator = await self._operator_of(arguments["project"])
        role = KEY_ROLES[arguments["role"]]
        await self._api_keys.set_role(arguments["id"], **role._asdict(), by=operator)
        return []

    async def _list_api_keys(self, arguments: Arguments) -> Rows:
        operator = await self._operator_of(arguments["project"])
        roles = await self._api_keys.roles(by=operator)
        return [
            {
                "id": key.id,
                "name": key.name,
                "role": _KEY_ROLE_NAMES[roles.get(key.id, KeyRole(key.role))],
                "status": "disabled" if key.disabled else "enabled",
                "creator": key.creator,
                "last_used_at": _time(key.last_used_at),
            }
            for key in await self._api_keys.list(by=operator)
        ]

    async def _disable_api_key(self, arguments: Arguments) -> Rows:
        operator = await self._operator_of(arguments["project"])
        await self._api_keys.disable(arguments["id"], by=operator)
        return []

    async def _operator_of(self, project: str) -> User:
        known = [each.id for each in await self._projects.list_all()]
        if project not in known:
            raise NotFound(
                f"there is no project {project}",
                hint=f"the projects are: {', '.join(known)}" if known else "add it first",
            )
        return User(project, OPERATOR, ("Admin",))


def _credentials(project: str, admin: StaticAdmin) -> dict[str, str]:
    return {"project": project, "username": admin.username, "password": admin.password}


def _time(seconds: int) -> str:
    return from_unix(seconds).strftime("%Y-%m-%d %H:%M:%S UTC") if seconds else ""
