# SPDX-License-Identifier: Apache-2.0
"""The deployments of a piped, from their creation to their end."""

from collections.abc import Callable

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import piped_pb2 as pb

# Hears the project of a new deployment.
Created = Callable[[str], None]


class DeploymentRpcs:
    """The RPCs about deployments and their stages."""

    def __init__(self, cases: UseCases, created: Created | None = None) -> None:
        self._deployments, self._reports = cases.deployments, cases.deployment_reports
        self._created = created

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, caller: PipedCaller
    ) -> pb.GetDeploymentResponse:
        deployment = await self._deployments.get(request.id, by=caller)
        return pb.GetDeploymentResponse(deployment=deployment)

    async def ListNotCompletedDeployments(
        self, _request: pb.ListNotCompletedDeploymentsRequest, caller: PipedCaller
    ) -> pb.ListNotCompletedDeploymentsResponse:
        # Everything fits in one page. The cursor stays empty, as clients read on until it is.
        deployments = await self._reports.not_completed(by=caller)
        return pb.ListNotCompletedDeploymentsResponse(deployments=deployments)

    async def CreateDeployment(
        self, request: pb.CreateDeploymentRequest, caller: PipedCaller
    ) -> pb.CreateDeploymentResponse:
        await self._reports.create(request.deployment, by=caller)
        if self._created is not None:
            self._created(caller.project)
        return pb.CreateDeploymentResponse()

    async def ReportDeploymentPlanned(
        self, request: pb.ReportDeploymentPlannedRequest, caller: PipedCaller
    ) -> pb.ReportDeploymentPlannedResponse:
        await self._reports.planned(request, by=caller)
        return pb.ReportDeploymentPlannedResponse()

    async def ReportDeploymentStatusChanged(
        self, request: pb.ReportDeploymentStatusChangedRequest, caller: PipedCaller
    ) -> pb.ReportDeploymentStatusChangedResponse:
        await self._reports.status_changed(request, by=caller)
        return pb.ReportDeploymentStatusChangedResponse()

    async def ReportDeploymentCompleted(
        self, request: pb.ReportDeploymentCompletedRequest, caller: PipedCaller
    ) -> pb.ReportDeploymentCompletedResponse:
        await self._reports.completed(request, by=caller)
        return pb.ReportDeploymentCompletedResponse()

    async def ReportStageStatusChanged(
        self, request: pb.ReportStageStatusChangedRequest, caller: PipedCaller
    ) -> pb.ReportStageStatusChangedResponse:
        await self._reports.stage_changed(request, by=caller)
        return pb.ReportStageStatusChangedResponse()
