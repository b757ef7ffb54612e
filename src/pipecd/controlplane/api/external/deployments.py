# SPDX-License-Identifier: Apache-2.0
"""Deployments, their logs and commands, for programs."""

from collections.abc import Sequence

from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.enumeration import named
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import STATUS_PREFIX, DeploymentStatus
from pipecd.proto.service import api_pb2 as pb


class DeploymentRpcs:
    """The RPCs about deployments."""

    def __init__(self, cases: UseCases) -> None:
        self._deployments, self._logs, self._commands = (
            cases.deployments,
            cases.logs,
            cases.commands,
        )

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, caller: ApiKeyCaller
    ) -> pb.GetDeploymentResponse:
        deployment = await self._deployments.get(request.deployment_id, by=caller)
        return pb.GetDeploymentResponse(deployment=deployment)

    async def ListDeployments(
        self, request: pb.ListDeploymentsRequest, caller: ApiKeyCaller
    ) -> pb.ListDeploymentsResponse:
        wanted = DeploymentFilter(
            project=caller.project,
            statuses=tuple(_status(name) for name in _first(request.statuses)),
            kinds=tuple(_kind(name) for name in _first(request.kinds)),
            application_ids=_first(request.application_ids),
            application_name=request.application_name,
            labels=request.labels,
        )
        page = PageRequest(size=max(0, request.limit), cursor=request.cursor)
        found = await self._deployments.listed(wanted, page, by=caller)
        return pb.ListDeploymentsResponse(deployments=found.items, cursor=found.cursor)

    async def ListStageLogs(
        self, request: pb.ListStageLogsRequest, caller: ApiKeyCaller
    ) -> pb.ListStageLogsResponse:
        logs = await self._logs.of_deployment(request.deployment_id, by=caller)
        return pb.ListStageLogsResponse(
            stage_logs={
                stage: pb.StageLog(blocks=log.blocks, completed=log.completed)
                for stage, log in logs.items()
            }
        )

    async def GetCommand(
        self, request: pb.GetCommandRequest, caller: ApiKeyCaller
    ) -> pb.GetCommandResponse:
        command = await self._commands.get(request.command_id, by=caller)
        return pb.GetCommandResponse(command=command)


def _first(values: Sequence[str]) -> tuple[str, ...]:
    # Clients may send several, but the first one counts; empty ones are as good as none.
    return tuple(value for value in values if value)[:1]


def _status(name: str) -> DeploymentStatus:
    mistake = f"{name} is invalid deployment status"
    return named(DeploymentStatus, name.removeprefix(STATUS_PREFIX), mistake)


def _kind(name: str) -> ApplicationKind:
    return named(ApplicationKind, name, f"{name} is invalid application kind")
