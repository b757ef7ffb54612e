# SPDX-License-Identifier: Apache-2.0
"""Deployments, for users and API keys."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pipecd.controlplane.auth.rbac import Action, Permission, Resource, Scope
from pipecd.controlplane.auth.subject import ApiKeyCaller, Subject, UserOrApiKey
from pipecd.controlplane.datastore.cursor import Position, encode_cursor
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import EVERYTHING, Page, PageRequest
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, operator_name, person
from pipecd.controlplane.usecases.commands import CommandUseCases
from pipecd.controlplane.usecases.deployment_reports import changes_path
from pipecd.model.command import API_KEY_ID, API_KEY_NAME, REJECTION_KEY
from pipecd.model.deployment import (
    APPROVED_USERS_KEY,
    DeploymentStatus,
    ManualOperation,
    StageStatus,
)
from pipecd.model.document import from_json
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.trace_pb2 import DeploymentTrace
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges

_GET = Permission(Resource.DEPLOYMENT, Action.GET)
_LIST = Permission(Resource.DEPLOYMENT, Action.LIST)
_UPDATE = Permission(Resource.DEPLOYMENT, Action.UPDATE)

# v0 stages do not declare their manual operations; these can be skipped and approved.
ANALYSIS_STAGE = "ANALYSIS"
APPROVAL_STAGE = "WAIT_APPROVAL"
# Several deployments of an application may end in the same second.
_PREVIOUS = 5
MAX_REJECTION_LENGTH = 500
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
    """Lists deployments, and sends the commands that cancel, approve, reject or skip."""

    def __init__(self, stores: Stores, access: Access, commands: CommandUseCases) -> None:
        self._stores, self._access, self._commands = stores, access, commands

    async def list(
        self, filter: DeploymentFilter, page: PageRequest = EVERYTHING, *, by: UserOrApiKey
    ) -> Page[Deployment]:
        """Newest update first."""
        # The datastore finds those that a role covers faster than page after page does.
        required = _shared_labels(await self._access.scope(by, _LIST))
        filter = replace(filter, labels={**required, **filter.labels})
        return await self._access.list_page(
            lambda part: self._stores.deployments.list(filter, part),
            page,
            by=by,
            permission=_LIST,
            project=filter.project,
        )

    async def traces(
        self,
        commit_hash: str,
        page: PageRequest = EVERYTHING,
        *,
        by: UserOrApiKey,
        matches: Callable[[DeploymentTrace], bool] = lambda _: True,
    ) -> TracePage:
        """Commits of source repositories with the deployments they caused, newest update first.

        Of a page only the traces that match are returned.
        """
        scope = await self._access.scope(by, _LIST)
        listed = await self._stores.traces.list(by.project, commit_hash, page)
        traces: list[TracedDeployments] = []
        for trace in filter(matches, listed.items):
            of_commit = DeploymentFilter(project=by.project, trace_commit_hash=trace.commit_hash)
            deployments = await self._stores.deployments.list(of_commit)
            visible = tuple(d for d in deployments.items if scope.covers(d.labels))
            # The commit of a trace is as secret as its deployments.
            if visible or scope.is_everything:
                traces.append(TracedDeployments(trace, visible))
        return TracePage(tuple(traces), listed.cursor)

    async def get(self, id: str, *, by: Subject) -> Deployment:
        return await self._access.deployment(id, by=by, permission=_GET)

    async def commands_of(self, id: str, *, by: UserOrApiKey) -> tuple[Command, ...]:
        """The cancellations, approvals, rejections and skips of a deployment, oldest first."""
        deployment = await self._access.deployment(id, by=by, permission=_GET)
        return await self._stores.commands.list_of_deployment(deployment)

    async def changes(self, id: str, *, by: UserOrApiKey) -> DeploymentChanges | None:
        """What the deployment changes; None if its piped has not reported it."""
        deployment = await self._access.deployment(id, by=by, permission=_GET)
        try:
            content = await self._stores.files.get(changes_path(deployment.id))
        except NotFound:
            return None
        return from_json(content, DeploymentChanges)

    async def previous_success(
        self, deployment: Deployment, *, by: UserOrApiKey
    ) -> Deployment | None:
        """The deployment whose result was running when this one began; None without one."""
        earlier = await self.earlier_successes(deployment, _PREVIOUS, by=by)
        return max(earlier, key=lambda d: d.completed_at, default=None)

    async def earlier_successes(
        self, deployment: Deployment, at_most: int, *, by: UserOrApiKey
    ) -> tuple[Deployment, ...]:
        """The last deployments of the application that had succeeded when this one began."""
        filter = DeploymentFilter(
            deployment.project_id,
            statuses=(int(DeploymentStatus.SUCCESS),),
            application_ids=(deployment.application_id,),
        )
        # An application has one deployment at a time, in the order of their triggers: those before
        # had ended when this one was planned, perhaps after it was triggered. The last update is by
        # the clock of the control plane, so that the clock of the piped does not matter.
        before = encode_cursor(Position("", deployment.updated_at + 1), "UpdatedAt")
        found = await self.list(filter, PageRequest(at_most + 1, before), by=by)
        return tuple(each for each in found.items if _succeeded_before(each, deployment))[:at_most]

    async def get_many(self, ids: Collection[str], *, by: UserOrApiKey) -> dict[str, Deployment]:
        """Those of the deployments that exist and that the caller may list, by id."""
        scope = await self._access.scope(by, _LIST)
        found = await self._stores.deployments.get_many(tuple(ids))
        return {
            id: deployment
            for id, deployment in found.items()
            if deployment.project_id == by.project and scope.covers(deployment.labels)
        }

    async def list_waiting_for_approval(self, *, by: UserOrApiKey) -> tuple[Deployment, ...]:
        """The deployments of the caller's project that wait for an approval."""
        running = DeploymentFilter(by.project, statuses=(int(DeploymentStatus.RUNNING),))
        found = await self.list(running, by=by)
        return tuple(d for d in found.items if any(map(is_waiting_for_approval, d.stages)))

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
        _check_approver(stage, "approve", by)
        _check_new_approval(stage, by)
        command = _decision_on(deployment, stage, by)
        command.type = Command.APPROVE_STAGE
        command.approve_stage.deployment_id = deployment.id
        command.approve_stage.stage_id = stage.id
        return await self._commands.add(command)

    async def reject(
        self, deployment_id: str, stage_id: str, reason: str, *, by: UserOrApiKey
    ) -> str:
        """Rejects a stage that waits for approval, which fails, and returns the id of the command.

        The reason is shown with the stage. Only pipeds of ours can be asked, see `can_reject`.
        """
        deployment = await self._access.deployment(deployment_id, by=by, permission=_UPDATE)
        stage = running_stage(deployment, stage_id)
        _check_approver(stage, "reject", by)
        reason = " ".join(reason.split())
        if not 0 < len(reason) <= MAX_REJECTION_LENGTH:
            raise UserMistake(
                f"the reason has {len(reason)} characters",
                hint=f"write why you reject, with at most {MAX_REJECTION_LENGTH} characters",
            )
        if not is_approvable(stage):
            raise Conflict(f"stage {stage.name} waits for no approval")
        if not await self.can_reject(deployment):
            raise Conflict(
                "the piped of this deployment does not know rejections",
                hint="cancel the deployment instead",
            )
        command = _decision_on(deployment, stage, by)
        command.type = Command.SKIP_STAGE
        command.skip_stage.deployment_id = deployment.id
        command.skip_stage.stage_id = stage.id
        command.metadata[REJECTION_KEY] = reason
        return await self._commands.add(command)

    async def can_reject(self, deployment: Deployment) -> bool:
        """Whether the piped of the deployment knows rejections, as those of ours do."""
        return await self.has_own_piped(deployment)

    async def has_own_piped(self, deployment: Deployment) -> bool:
        """Whether the piped is of this implementation: it has held a lease."""
        return (await self._stores.piped_leases.get(deployment.piped_id)).epoch > 0

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


def _shared_labels(scope: Scope) -> dict[str, str]:
    """The labels that all objects of a scope have."""
    first, *others = scope.labels or ({},)
    return {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in others)
    }


def is_approvable(stage: PipelineStage) -> bool:
    """Whether users approve the stage; v0 stages do not declare it."""
    return stage.available_operation == ManualOperation.APPROVE or stage.name == APPROVAL_STAGE


def is_waiting_for_approval(stage: PipelineStage) -> bool:
    """Whether the stage is running and waits for an approval."""
    return stage.status == StageStatus.RUNNING and is_approvable(stage)


def _check_approver(stage: PipelineStage, verb: str, by: UserOrApiKey) -> None:
    if isinstance(by, ApiKeyCaller) and not by.may_approve:
        raise Denied(
            f"the API key {by.name} may not {verb} stages",
            hint=f"{verb} in the console, or with a key of the role READ_WRITE_APPROVE",
        )
    approvers, name = approvers_of(stage), person(by)
    if approvers and name not in approvers:
        raise Denied(
            f"You can't {verb} this deployment because you ({name}) are not in the "
            f"approver list: {', '.join(approvers)}"
        )


def _check_new_approval(stage: PipelineStage, by: UserOrApiKey) -> None:
    """Tells a program that its approval would not count; the console does not offer it again."""
    # Names may contain commas.
    approved = f", {stage.metadata.get(APPROVED_USERS_KEY, '')}, "
    if isinstance(by, ApiKeyCaller) and f", {person(by)}, " in approved:
        raise Conflict(
            f"{person(by)} has approved this stage already", hint="another person must approve it"
        )


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
        commander=operator_name(by),
    )


def _decision_on(deployment: Deployment, stage: PipelineStage, by: UserOrApiKey) -> Command:
    """A command that approves or rejects in the name of a person, and names the API key."""
    command = _command_for(deployment, by, stage)
    command.commander = person(by)
    if isinstance(by, ApiKeyCaller):
        command.metadata.update({API_KEY_NAME: by.name, API_KEY_ID: by.key_id})
    return command


def _succeeded_before(success: Deployment, deployment: Deployment) -> bool:
    """Whether a successful deployment of the same application had ended when this one began.

    Within one second only the commit tells that the piped found running when it planned.
    """
    if success.id == deployment.id or success.created_at > deployment.created_at:
        return False
    if success.updated_at == deployment.updated_at:
        return success.trigger.commit.hash == deployment.running_commit_hash
    return success.updated_at < deployment.updated_at
