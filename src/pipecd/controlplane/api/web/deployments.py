# SPDX-License-Identifier: Apache-2.0
"""Deployments, their logs, traces, chains and commands, for people."""

from pipecd.controlplane.api.web.options import page_of
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import web_pb2 as pb


class DeploymentRpcs:
    """The RPCs about deployments."""

    def __init__(self, cases: UseCases) -> None:
        self._deployments, self._logs = cases.deployments, cases.logs
        self._commands, self._chains = cases.commands, cases.chains

    async def ListDeployments(
        self, request: pb.ListDeploymentsRequest, caller: User
    ) -> pb.ListDeploymentsResponse:
        options = request.options
        wanted = DeploymentFilter(
            project=caller.project,
            statuses=tuple(options.statuses[:1]),
            kinds=tuple(options.kinds[:1]),
            application_ids=tuple(options.application_ids[:1]),
            application_name=options.application_name,
            labels=options.labels,
        )
        found = await self._deployments.listed(wanted, page_of(request), by=caller)
        return pb.ListDeploymentsResponse(deployments=found.items, cursor=found.cursor)

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, caller: User
    ) -> pb.GetDeploymentResponse:
        deployment = await self._deployments.get(request.deployment_id, by=caller)
        return pb.GetDeploymentResponse(deployment=deployment)

    async def GetStageLog(
        self, request: pb.GetStageLogRequest, caller: User
    ) -> pb.GetStageLogResponse:
        run = StageRun(request.deployment_id, request.stage_id, request.retried_count)
        part = await self._logs.stage_log(run, request.offset_index, by=caller)
        return pb.GetStageLogResponse(blocks=part.blocks, completed=part.completed)

    async def CancelDeployment(
        self, request: pb.CancelDeploymentRequest, caller: User
    ) -> pb.CancelDeploymentResponse:
        command = await self._deployments.cancel(
            request.deployment_id, request.force_rollback, request.force_no_rollback, by=caller
        )
        return pb.CancelDeploymentResponse(command_id=command)

    async def SkipStage(self, request: pb.SkipStageRequest, caller: User) -> pb.SkipStageResponse:
        command = await self._deployments.skip(request.deployment_id, request.stage_id, by=caller)
        return pb.SkipStageResponse(command_id=command)

    async def ApproveStage(
        self, request: pb.ApproveStageRequest, caller: User
    ) -> pb.ApproveStageResponse:
        command = await self._deployments.approve(
            request.deployment_id, request.stage_id, by=caller
        )
        return pb.ApproveStageResponse(command_id=command)

    async def ListDeploymentTraces(
        self, request: pb.ListDeploymentTracesRequest, caller: User
    ) -> pb.ListDeploymentTracesResponse:
        found = await self._deployments.traces(
            request.options.commit_hash, page_of(request), by=caller
        )
        traces = [
            pb.ListDeploymentTracesResponse.DeploymentTraceRes(
                trace=item.trace, deployments=item.deployments
            )
            for item in found.items
        ]
        return pb.ListDeploymentTracesResponse(traces=traces, cursor=found.cursor)

    async def ListDeploymentChains(
        self, request: pb.ListDeploymentChainsRequest, caller: User
    ) -> pb.ListDeploymentChainsResponse:
        found = await self._chains.listed(page_of(request), by=caller)
        return pb.ListDeploymentChainsResponse(deployment_chains=found.items, cursor=found.cursor)

    async def GetDeploymentChain(
        self, request: pb.GetDeploymentChainRequest, caller: User
    ) -> pb.GetDeploymentChainResponse:
        chain = await self._chains.get(request.deployment_chain_id, by=caller)
        return pb.GetDeploymentChainResponse(deployment_chain=chain)

    async def GetCommand(
        self, request: pb.GetCommandRequest, caller: User
    ) -> pb.GetCommandResponse:
        command = await self._commands.get(request.command_id, by=caller)
        return pb.GetCommandResponse(command=command)
