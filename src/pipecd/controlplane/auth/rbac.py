# SPDX-License-Identifier: Apache-2.0
"""RBAC: which permissions the roles of a project grant. Pure decisions over stored policies.

A policy grants its actions on its resources. A resource with labels covers only objects that have
all of these labels, so it covers no object without labels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from pipecd.proto.model import project_pb2 as pb
from pipecd.proto.model.project_pb2 import Project, ProjectRBACPolicy, ProjectRBACRole


class Resource(IntEnum):
    """The resource types of a policy."""

    ALL = 0
    APPLICATION = 1
    DEPLOYMENT = 2
    EVENT = 3
    PIPED = 4
    DEPLOYMENT_CHAIN = 5
    PROJECT = 6
    API_KEY = 7
    INSIGHT = 8


class Action(IntEnum):
    """The actions of a policy."""

    ALL = 0
    GET = 1
    LIST = 2
    CREATE = 3
    UPDATE = 4
    DELETE = 5

    @property
    def is_reading(self) -> bool:
        return self in (Action.GET, Action.LIST)


@dataclass(frozen=True)
class Permission:
    """An action on a resource type."""

    resource: Resource
    action: Action


Labels: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class Scope:
    """The objects a permission covers: those with all the labels of at least one entry."""

    labels: tuple[Labels, ...]

    @property
    def is_empty(self) -> bool:
        return not self.labels

    @property
    def is_everything(self) -> bool:
        return any(not required for required in self.labels)

    def covers(self, labels: Labels) -> bool:
        return any(
            all(labels.get(key) == value for key, value in required.items())
            for required in self.labels
        )


EVERYTHING = Scope(({},))
NOTHING = Scope(())

ADMIN = "Admin"
EDITOR = "Editor"
VIEWER = "Viewer"


def _policy(resources: Iterable[Resource], actions: Iterable[Action]) -> ProjectRBACPolicy:
    return ProjectRBACPolicy(
        resources=[
            pb.ProjectRBACResource(type=pb.ProjectRBACResource.ResourceType.ValueType(resource))
            for resource in resources
        ],
        actions=[ProjectRBACPolicy.Action.ValueType(action) for action in actions],
    )


def _built_in(name: str, *policies: ProjectRBACPolicy) -> ProjectRBACRole:
    return ProjectRBACRole(name=name, policies=policies, is_builtin=True)


_READING = (Action.GET, Action.LIST)

# The built-in roles of upstream. The grants on deployment chains are ours: upstream grants them to
# nobody, although a user who sees the deployments may as well see the chain between them.

BUILT_IN_ROLES: tuple[ProjectRBACRole, ...] = (
    _built_in(ADMIN, _policy([Resource.ALL], [Action.ALL])),
    _built_in(
        EDITOR,
        _policy([Resource.APPLICATION, Resource.DEPLOYMENT], [Action.ALL]),
        _policy([Resource.PIPED, Resource.DEPLOYMENT_CHAIN], _READING),
        _policy([Resource.PROJECT, Resource.INSIGHT], [Action.GET]),
        _policy([Resource.EVENT], [Action.LIST]),
    ),
    _built_in(
        VIEWER,
        _policy([Resource.APPLICATION, Resource.DEPLOYMENT, Resource.PIPED], _READING),
        _policy([Resource.DEPLOYMENT_CHAIN], _READING),
        _policy([Resource.PROJECT, Resource.INSIGHT], [Action.GET]),
        _policy([Resource.EVENT], [Action.LIST]),
    ),
)
BUILT_IN_NAMES = frozenset(role.name for role in BUILT_IN_ROLES)

# What API keys have access to, as with upstream; only users administer a project and its keys.
API_KEY_RESOURCES = frozenset(
    {
        Resource.APPLICATION,
        Resource.DEPLOYMENT,
        Resource.EVENT,
        Resource.PIPED,
        Resource.DEPLOYMENT_CHAIN,
        Resource.INSIGHT,
    }
)


def roles_of(project: Project) -> tuple[ProjectRBACRole, ...]:
    """The built-in roles and then the project's own; a stored role cannot take a built-in name."""
    own = (role for role in project.rbac_roles if role.name not in BUILT_IN_NAMES)
    return (*BUILT_IN_ROLES, *own)


def user_groups_of(project: Project) -> tuple[pb.ProjectUserGroup, ...]:
    """The teams of the old configuration as groups of the built-in roles, then the stored ones."""
    legacy: dict[str, str] = {}
    for team, role in (
        (project.rbac.admin, ADMIN),
        (project.rbac.editor, EDITOR),
        (project.rbac.viewer, VIEWER),
    ):
        if team:
            # A team with several roles gets the highest one, which comes first.
            legacy.setdefault(team, role)
    return (
        *(pb.ProjectUserGroup(sso_group=team, role=role) for team, role in legacy.items()),
        *project.user_groups,
    )


def roles_named(
    roles: Iterable[ProjectRBACRole], names: Iterable[str]
) -> tuple[ProjectRBACRole, ...]:
    """The roles with these names; unknown names are ignored."""
    names = frozenset(names)
    return tuple(role for role in roles if role.name in names)


def scope_of(roles: Iterable[ProjectRBACRole], permission: Permission) -> Scope:
    """The scope in which these roles together grant the permission."""
    return Scope(
        tuple(
            dict(resource.labels)
            for role in roles
            for policy in role.policies
            if _includes(policy.actions, permission.action)
            for resource in policy.resources
            if _includes((resource.type,), permission.resource)
        )
    )


def _includes(granted: Iterable[int], value: int) -> bool:
    # 0 is ALL in both enums.
    return any(each in (0, value) for each in granted)
