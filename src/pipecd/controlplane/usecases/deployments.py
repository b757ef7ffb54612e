# SPDX-License-Identifier: Apache-2.0
"""Deployments, for users and API keys."""

from dataclasses import dataclass

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import Subject, UserOrApiKey
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import EVERYTHING, Page, PageRequest
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import (
    Access,
    commander,
)
from pipecd.controlplane.usecases.commands import CommandUseCases
from pipecd.model.deployment import DeploymentStatus, ManualOperation, StageStatus
from pipecd.model.errors import Conflict, Denied
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.trace_pb2 import DeploymentTrace

_GET = Permission(Resource.DEPLOYMENT, Action.GET)
_LIST = Permission(Resource.DEPLOYMENT, Action.LIST)
_UPDATE = Permission(Resource.DEPLOYMENT, Action.UPDATE)

# v0 stages do not declare their manual operations; this one can be skipped.
ANALYSIS_STAGE = "ANALYSIS"
APPROVERS_KEY = "Approvers"


@dataclass(frozen=True)
class TracedDeployments:
    """A commit of a source repository and the deployments it caused."""

    trace: DeploymentTrace
    deployments: tuple[Deployment, ...]


@dataclass(frozen=True)
class TracePage:
    """A page of deployment traces; an empty `cursor` means that it is the last one."""

    items: tuple[TracedDeployments, ...]
    cursor: str


class DeploymentUseCases:
    """Lists deployments, and sends the commands that cancel, approve or skip."""

    def __init__(self, stores: Stores, access: Access, commands: CommandUseCases) -> None:
        self._stores, self._access, self._commands = stores, access, commands

    async def list(
        self, filter: DeploymentFilter, page: PageRequest = EVERYTHING, *, by: UserOrApiKey
    ) -> Page[Deployment]:
        """Newest update first."""
        return await self._access.list_page(
            lambda part: self._stores.deployments.list(filter, part),
            page,
            by=by,
            permission=_LIST,
            project=filter.project,
        )

    async def traces(
        self, commit_hash: str, page: PageRequest = EVERYTHING, *, by: UserOrApiKey
    ) -> TracePage:
        """Commits of source repositories with the deployments they caused, newest update first."""
        scope = await self._access.scope(by, _LIST)
        listed = await self._stores.traces.list(by.project, commit_hash, page)
        traces: list[TracedDeployments] = []
        for trace in listed.items:
            filter = DeploymentFilter(project=by.project, trace_commit_hash=trace.commit_hash)
            deployments = await self._stores.deployments.list(filter)
            visible = tuple(d for d in deployments.items if scope.covers(d.labels))
            # The commit of a trace is as secret as its deployments.
            if visible or scope.is_everything:
                traces.append(TracedDeployments(trace, visible))
        return TracePage(tuple(traces), listed.cursor)

    async def get(self, id: str, *, by: Subject) -> Deployment:
        return await self._access.deployment(id, by=by, permission=_GET)

    async def cancel(
        self, id: str, force_rollback: bool, force_no_rollback: bool, *, by: UserOrApiKey
    ) -> str:
        """Requests the cancellation of a deployment and returns the id of the command."""
        deployment = await self._access.deployment(id, by=by, permission=_UPDATE)
        check_not_completed(deployment)
        command = _command_for(deployment, by)
        command.type = Command.CANCEL_DEPLOYMENT
        command.cancel_deployment.deployment_id = deployment.id
        command.cancel_deployment.force_rollback = force_rollback
        command.cancel_deployment.force_no_rollback = force_no_rollback
        return await self._commands.add(command)

    async def approve(self, deployment_id: str, stage_id: str, *, by: UserOrApiKey) -> str:
        """Approves a waiting stage and returns the id of the command."""
        deployment = await self._access.deployment(deployment_id, by=by, permission=_UPDATE)
        stage = running_stage(deployment, stage_id)
        approvers = approvers_of(stage)
        if approvers and by.name not in approvers:
            raise Denied(
                f"You can't approve this deployment because you ({by.name}) are not in the "
                f"approver list: {', '.join(approvers)}"
            )
        command = _command_for(deployment, by, stage)
        command.type = Command.APPROVE_STAGE
        command.approve_stage.deployment_id = deployment.id
        command.approve_stage.stage_id = stage.id
        return await self._commands.add(command)

    async def skip(self, deployment_id: str, stage_id: str, *, by: UserOrApiKey) -> str:
        """Skips a stage that allows it and returns the id of the command."""
        deployment = await self._access.deployment(deployment_id, by=by, permission=_UPDATE)
        stage = running_stage(deployment, stage_id)
        if stage.name != ANALYSIS_STAGE and stage.available_operation != ManualOperation.SKIP:
            raise Conflict(f"stage {stage.name} cannot be skipped")
        command = _command_for(deployment, by, stage)
        command.type = Command.SKIP_STAGE
        command.skip_stage.deployment_id = deployment.id
        command.skip_stage.stage_id = stage.id
        return await self._commands.add(command)


def check_not_completed(deployment: Deployment) -> None:
    status = DeploymentStatus(deployment.status)
    if status.is_completed:
        raise Conflict(f"deployment {deployment.id} was already completed: {status.name}")


def running_stage(deployment: Deployment, stage_id: str) -> PipelineStage:
    """The stage, if it can still be approved or skipped; otherwise Conflict."""
    check_not_completed(deployment)
    stage = next((stage for stage in deployment.stages if stage.id == stage_id), None)
    if stage is None:
        raise Conflict(f"stage {stage_id} is not part of the deployment")
    status = StageStatus(stage.status)
    if status.is_completed:
        raise Conflict(f"stage {stage.name} was already completed: {status.name}")
    return stage


def approvers_of(stage: PipelineStage) -> tuple[str, ...]:
    """The users who may approve a stage; an empty tuple means everybody."""
    names = stage.authorized_operators or stage.metadata.get(APPROVERS_KEY, "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def _command_for(
    deployment: Deployment, by: UserOrApiKey, stage: PipelineStage | None = None
) -> Command:
    return Command(
        piped_id=deployment.piped_id,
        application_id=deployment.application_id,
        deployment_id=deployment.id,
        stage_id=stage.id if stage else "",
        project_id=deployment.project_id,
        commander=commander(by),
    )
