# SPDX-License-Identifier: Apache-2.0
"""The applications of a piped and what it reports about them."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.service import piped_pb2 as pb


class ApplicationRpcs:
    """The RPCs about applications."""

    def __init__(self, cases: UseCases) -> None:
        self._applications, self._reports = cases.applications, cases.application_reports

    async def ListApplications(
        self, _request: pb.ListApplicationsRequest, caller: PipedCaller
    ) -> pb.ListApplicationsResponse:
        applications = await self._applications.enabled_of(by=caller)
        return pb.ListApplicationsResponse(applications=applications)

    async def ReportApplicationSyncState(
        self, request: pb.ReportApplicationSyncStateRequest, caller: PipedCaller
    ) -> pb.ReportApplicationSyncStateResponse:
        await self._reports.sync_state(request.application_id, request.state, by=caller)
        return pb.ReportApplicationSyncStateResponse()

    async def ReportApplicationDeployingStatus(
        self, request: pb.ReportApplicationDeployingStatusRequest, caller: PipedCaller
    ) -> pb.ReportApplicationDeployingStatusResponse:
        await self._reports.deploying(request.application_id, request.deploying, by=caller)
        return pb.ReportApplicationDeployingStatusResponse()

    async def ReportApplicationMostRecentDeployment(
        self, request: pb.ReportApplicationMostRecentDeploymentRequest, caller: PipedCaller
    ) -> pb.ReportApplicationMostRecentDeploymentResponse:
        await self._reports.most_recent(
            request.application_id,
            DeploymentStatus(request.status),
            request.deployment,
            by=caller,
        )
        return pb.ReportApplicationMostRecentDeploymentResponse()

    async def GetApplicationMostRecentDeployment(
        self, request: pb.GetApplicationMostRecentDeploymentRequest, caller: PipedCaller
    ) -> pb.GetApplicationMostRecentDeploymentResponse:
        deployment = await self._reports.most_recent_of(
            request.application_id, DeploymentStatus(request.status), by=caller
        )
        return pb.GetApplicationMostRecentDeploymentResponse(deployment=deployment)

    async def UpdateApplicationConfigurations(
        self, request: pb.UpdateApplicationConfigurationsRequest, caller: PipedCaller
    ) -> pb.UpdateApplicationConfigurationsResponse:
        await self._reports.configurations(request.applications, by=caller)
        return pb.UpdateApplicationConfigurationsResponse()

    async def ReportUnregisteredApplicationConfigurations(
        self, request: pb.ReportUnregisteredApplicationConfigurationsRequest, caller: PipedCaller
    ) -> pb.ReportUnregisteredApplicationConfigurationsResponse:
        await self._reports.unregistered(request.applications, by=caller)
        return pb.ReportUnregisteredApplicationConfigurationsResponse()
