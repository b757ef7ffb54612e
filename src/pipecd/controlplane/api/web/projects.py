# SPDX-License-Identifier: Apache-2.0
"""The project of a person and its settings."""

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import web_pb2 as pb


class ProjectRpcs:
    """The RPCs about the project and about oneself."""

    def __init__(self, cases: UseCases) -> None:
        self._projects = cases.projects

    async def GetMe(self, _request: pb.GetMeRequest, caller: User) -> pb.GetMeResponse:
        return pb.GetMeResponse(
            subject=caller.name, avatar_url=caller.avatar_url, project_id=caller.project
        )

    async def GetProject(
        self, _request: pb.GetProjectRequest, caller: User
    ) -> pb.GetProjectResponse:
        return pb.GetProjectResponse(project=await self._projects.get(by=caller))

    async def UpdateProjectStaticAdmin(
        self, request: pb.UpdateProjectStaticAdminRequest, caller: User
    ) -> pb.UpdateProjectStaticAdminResponse:
        await self._projects.set_static_admin(request.username, request.password, by=caller)
        return pb.UpdateProjectStaticAdminResponse()

    async def EnableStaticAdmin(
        self, _request: pb.EnableStaticAdminRequest, caller: User
    ) -> pb.EnableStaticAdminResponse:
        await self._projects.enable_static_admin(by=caller)
        return pb.EnableStaticAdminResponse()

    async def DisableStaticAdmin(
        self, _request: pb.DisableStaticAdminRequest, caller: User
    ) -> pb.DisableStaticAdminResponse:
        await self._projects.disable_static_admin(by=caller)
        return pb.DisableStaticAdminResponse()

    async def UpdateProjectSSOConfig(
        self, request: pb.UpdateProjectSSOConfigRequest, caller: User
    ) -> pb.UpdateProjectSSOConfigResponse:
        await self._projects.set_sso(request.sso, by=caller)
        return pb.UpdateProjectSSOConfigResponse()

    async def UpdateProjectRBACConfig(
        self, request: pb.UpdateProjectRBACConfigRequest, caller: User
    ) -> pb.UpdateProjectRBACConfigResponse:
        await self._projects.set_legacy_teams(request.rbac, by=caller)
        return pb.UpdateProjectRBACConfigResponse()
