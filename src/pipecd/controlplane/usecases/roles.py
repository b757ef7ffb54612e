# SPDX-License-Identifier: Apache-2.0
"""The roles of a project and the groups that have them."""

from collections.abc import Sequence

from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.usecases.projects import Projects
from pipecd.model.errors import AlreadyExists, Conflict, NotFound
from pipecd.proto.model.project_pb2 import (
    Project,
    ProjectRBACPolicy,
    ProjectRBACRole,
    ProjectUserGroup,
)

Policies = Sequence[ProjectRBACPolicy]


class Roles:
    """Custom roles and user groups."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    async def add(self, name: str, policies: Policies, *, by: UserOrApiKey) -> None:
        role = ProjectRBACRole(name=name, policies=policies)

        def change(project: Project) -> None:
            if any(known.name == name for known in rbac.roles_of(project)):
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
        """Removes a custom role; groups that name it keep it, but it grants nothing any more."""

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
        """Takes the role from a group, wherever it was given."""

        def change(project: Project) -> None:
            if not any(g.sso_group == sso_group for g in rbac.user_groups_of(project)):
                raise NotFound(f"group {sso_group} has no role")
            kept = [g for g in project.user_groups if g.sso_group != sso_group]
            project.ClearField("user_groups")
            project.user_groups.extend(kept)
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
