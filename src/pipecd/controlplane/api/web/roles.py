# SPDX-License-Identifier: Apache-2.0
"""Roles and groups of a project, for people."""

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import web_pb2 as pb


class RoleRpcs:
    """The RPCs about roles and user groups."""

    def __init__(self, cases: UseCases) -> None:
        self._roles = cases.roles

    async def AddProjectRBACRole(
        self, request: pb.AddProjectRBACRoleRequest, caller: User
    ) -> pb.AddProjectRBACRoleResponse:
        await self._roles.add(request.name, request.policies, by=caller)
        return pb.AddProjectRBACRoleResponse()

    async def UpdateProjectRBACRole(
        self, request: pb.UpdateProjectRBACRoleRequest, caller: User
    ) -> pb.UpdateProjectRBACRoleResponse:
        await self._roles.update(request.name, request.policies, by=caller)
        return pb.UpdateProjectRBACRoleResponse()

    async def DeleteProjectRBACRole(
        self, request: pb.DeleteProjectRBACRoleRequest, caller: User
    ) -> pb.DeleteProjectRBACRoleResponse:
        await self._roles.delete(request.name, by=caller)
        return pb.DeleteProjectRBACRoleResponse()

    async def AddProjectUserGroup(
        self, request: pb.AddProjectUserGroupRequest, caller: User
    ) -> pb.AddProjectUserGroupResponse:
        await self._roles.add_group(request.sso_group, request.role, by=caller)
        return pb.AddProjectUserGroupResponse()

    async def DeleteProjectUserGroup(
        self, request: pb.DeleteProjectUserGroupRequest, caller: User
    ) -> pb.DeleteProjectUserGroupResponse:
        await self._roles.delete_group(request.sso_group, by=caller)
        return pb.DeleteProjectUserGroupResponse()
