# SPDX-License-Identifier: Apache-2.0
"""Applications, for people."""

from pipecd.controlplane.api.web.options import switch
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.controlplane.usecases.enumeration import known
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service import web_pb2 as pb


class ApplicationRpcs:
    """The RPCs about applications."""

    def __init__(self, cases: UseCases) -> None:
        self._applications, self._reports = cases.applications, cases.application_reports
        self._livestate, self._encryption = cases.livestate, cases.encryption

    async def AddApplication(
        self, request: pb.AddApplicationRequest, caller: User
    ) -> pb.AddApplicationResponse:
        draft = Application(
            name=request.name,
            piped_id=request.piped_id,
            git_path=request.git_path,
            kind=request.kind,
            platform_provider=request.platform_provider,
            deploy_targets_by_plugin=request.deploy_targets_by_plugin,
            description=request.description,
            labels=request.labels,
        )
        id = await self._applications.add(draft, by=caller)
        return pb.AddApplicationResponse(application_id=id)

    async def UpdateApplication(
        self, request: pb.UpdateApplicationRequest, caller: User
    ) -> pb.UpdateApplicationResponse:
        to = ApplicationUpdate(
            piped_id=request.piped_id,
            platform_provider=request.platform_provider,
            config_filename=request.config_filename,
            deploy_targets=request.deploy_targets_by_plugin,
        )
        await self._applications.update(request.application_id, to, by=caller)
        return pb.UpdateApplicationResponse()

    async def EnableApplication(
        self, request: pb.EnableApplicationRequest, caller: User
    ) -> pb.EnableApplicationResponse:
        await self._applications.enable(request.application_id, by=caller)
        return pb.EnableApplicationResponse()

    async def DisableApplication(
        self, request: pb.DisableApplicationRequest, caller: User
    ) -> pb.DisableApplicationResponse:
        await self._applications.disable(request.application_id, by=caller)
        return pb.DisableApplicationResponse()

    async def DeleteApplication(
        self, request: pb.DeleteApplicationRequest, caller: User
    ) -> pb.DeleteApplicationResponse:
        await self._applications.delete(request.application_id, by=caller)
        return pb.DeleteApplicationResponse()

    async def ListApplications(
        self, request: pb.ListApplicationsRequest, caller: User
    ) -> pb.ListApplicationsResponse:
        options = request.options
        wanted = ApplicationFilter(
            project=caller.project,
            enabled=switch(options),
            kinds=tuple(options.kinds[:1]),
            sync_statuses=tuple(options.sync_statuses[:1]),
            name=options.name,
            piped_id=options.piped_id,
            labels=options.labels,
        )
        found = await self._applications.listed(wanted, by=caller)
        return pb.ListApplicationsResponse(applications=found.items)

    async def SyncApplication(
        self, request: pb.SyncApplicationRequest, caller: User
    ) -> pb.SyncApplicationResponse:
        strategy = known(SyncStrategy, request.sync_strategy)
        command = await self._applications.sync(request.application_id, strategy, by=caller)
        return pb.SyncApplicationResponse(command_id=command)

    async def GetApplication(
        self, request: pb.GetApplicationRequest, caller: User
    ) -> pb.GetApplicationResponse:
        application = await self._applications.get(request.application_id, by=caller)
        return pb.GetApplicationResponse(application=application)

    async def GenerateApplicationSealedSecret(
        self, request: pb.GenerateApplicationSealedSecretRequest, caller: User
    ) -> pb.GenerateApplicationSealedSecretResponse:
        sealed = await self._encryption.encrypt(
            request.piped_id, request.data, base64_encoding=request.base64_encoding, by=caller
        )
        return pb.GenerateApplicationSealedSecretResponse(data=sealed)

    async def ListUnregisteredApplications(
        self, _request: pb.ListUnregisteredApplicationsRequest, caller: User
    ) -> pb.ListUnregisteredApplicationsResponse:
        infos = await self._reports.unregistered_of(by=caller)
        return pb.ListUnregisteredApplicationsResponse(applications=infos)

    async def GetApplicationLiveState(
        self, request: pb.GetApplicationLiveStateRequest, caller: User
    ) -> pb.GetApplicationLiveStateResponse:
        snapshot = await self._livestate.get(request.application_id, by=caller)
        return pb.GetApplicationLiveStateResponse(snapshot=snapshot)
