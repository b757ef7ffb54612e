# SPDX-License-Identifier: Apache-2.0
"""Applications, for programs."""

from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.controlplane.usecases.enumeration import named
from pipecd.model.application import ApplicationKind
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service import api_pb2 as pb


class ApplicationRpcs:
    """The RPCs about applications."""

    def __init__(self, cases: UseCases) -> None:
        self._applications = cases.applications

    async def AddApplication(
        self, request: pb.AddApplicationRequest, caller: ApiKeyCaller
    ) -> pb.AddApplicationResponse:
        draft = Application(
            name=request.name,
            piped_id=request.piped_id,
            git_path=request.git_path,
            kind=request.kind,
            platform_provider=request.platform_provider,
            description=request.description,
            labels=request.labels,
        )
        id = await self._applications.add(draft, by=caller)
        return pb.AddApplicationResponse(application_id=id)

    async def SyncApplication(
        self, request: pb.SyncApplicationRequest, caller: ApiKeyCaller
    ) -> pb.SyncApplicationResponse:
        command = await self._applications.sync(request.application_id, by=caller)
        return pb.SyncApplicationResponse(command_id=command)

    async def GetApplication(
        self, request: pb.GetApplicationRequest, caller: ApiKeyCaller
    ) -> pb.GetApplicationResponse:
        application = await self._applications.get(request.application_id, by=caller)
        return pb.GetApplicationResponse(application=application)

    async def ListApplications(
        self, request: pb.ListApplicationsRequest, caller: ApiKeyCaller
    ) -> pb.ListApplicationsResponse:
        mistake = "Invalid application kind"
        wanted = ApplicationFilter(
            project=caller.project,
            enabled=not request.disabled,
            kinds=(named(ApplicationKind, request.kind, mistake),) if request.kind else (),
            name=request.name,
            piped_id=request.piped_id,
            labels=request.labels,
        )
        page = PageRequest(size=max(0, request.limit), cursor=request.cursor)
        found = await self._applications.listed(wanted, page, by=caller)
        return pb.ListApplicationsResponse(applications=found.items, cursor=found.cursor)

    async def UpdateApplication(
        self, request: pb.UpdateApplicationRequest, caller: ApiKeyCaller
    ) -> pb.UpdateApplicationResponse:
        to = ApplicationUpdate(
            piped_id=request.piped_id,
            platform_provider=request.platform_provider,
            config_filename=request.git_path.config_filename,
        )
        await self._applications.update(request.application_id, to, by=caller)
        return pb.UpdateApplicationResponse(application_id=request.application_id)

    async def DeleteApplication(
        self, request: pb.DeleteApplicationRequest, caller: ApiKeyCaller
    ) -> pb.DeleteApplicationResponse:
        await self._applications.delete(request.application_id, by=caller)
        return pb.DeleteApplicationResponse(application_id=request.application_id)

    async def EnableApplication(
        self, request: pb.EnableApplicationRequest, caller: ApiKeyCaller
    ) -> pb.EnableApplicationResponse:
        await self._applications.enable(request.application_id, by=caller)
        return pb.EnableApplicationResponse(application_id=request.application_id)

    async def DisableApplication(
        self, request: pb.DisableApplicationRequest, caller: ApiKeyCaller
    ) -> pb.DisableApplicationResponse:
        await self._applications.disable(request.application_id, by=caller)
        return pb.DisableApplicationResponse(application_id=request.application_id)

    async def RenameApplicationConfigFile(
        self, request: pb.RenameApplicationConfigFileRequest, caller: ApiKeyCaller
    ) -> pb.RenameApplicationConfigFileResponse:
        await self._applications.rename_config_file(
            request.application_ids, request.new_filename, by=caller
        )
        return pb.RenameApplicationConfigFileResponse()

    async def UpdateApplicationDeployTargets(
        self, request: pb.UpdateApplicationDeployTargetsRequest, caller: ApiKeyCaller
    ) -> pb.UpdateApplicationDeployTargetsResponse:
        await self._applications.set_deploy_targets(
            request.application_id, request.deploy_targets_by_plugin, by=caller
        )
        return pb.UpdateApplicationDeployTargetsResponse()
