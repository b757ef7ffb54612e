# SPDX-License-Identifier: Apache-2.0
"""Plan previews: what a branch would deploy, computed by the pipeds of its repository."""

from collections.abc import Sequence
from datetime import timedelta

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.controlplane.usecases.commands import CommandUseCases, output_path
from pipecd.controlplane.usecases.piped_connections import PipedConnections
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.document import from_json
from pipecd.model.errors import Conflict, NotFound
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest

_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)

COMMANDER = "pipectl"
HANDLE_SECONDS = 5 * 60
RESULT_SECONDS = 24 * 3600
# How long pipeds may need to reconnect after this control plane has started.
RECONNECT = timedelta(seconds=30)


class PlanPreviews:
    """Requests plan previews and returns their results."""

    def __init__(
        self,
        stores: Stores,
        access: Access,
        commands: CommandUseCases,
        address: str,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._access, self._commands = stores, access, commands
        self._address, self._now = address.rstrip("/"), now
        self._connections = PipedConnections(stores.cache, now)
        self._started_at = now()

    async def request(
        self, request: RequestPlanPreviewRequest, *, by: UserOrApiKey
    ) -> tuple[str, ...]:
        """One command for every enabled piped that watches the repository and base branch."""
        await self._access.require(by, _UPDATE)
        commands: list[str] = []
        for piped in await self._stores.pipeds.list(by.project, enabled=True):
            for repository in piped.repositories:
                if (repository.remote, repository.branch) != (
                    request.repo_remote_url,
                    request.base_branch,
                ):
                    continue
                command = Command(
                    piped_id=piped.id,
                    project_id=piped.project_id,
                    commander=COMMANDER,
                    type=Command.BUILD_PLAN_PREVIEW,
                    build_plan_preview=Command.BuildPlanPreview(
                        repository_id=repository.id,
                        head_branch=request.head_branch,
                        head_commit=request.head_commit,
                        base_branch=request.base_branch,
                        timeout=request.timeout,
                    ),
                )
                commands.append(await self._commands.add(command))
        return tuple(commands)

    async def results(
        self, command_ids: Sequence[str], handle_timeout: int = 0, *, by: UserOrApiKey
    ) -> tuple[PlanPreviewCommandResult, ...]:
        """The results of the commands; NotFound while one of them may still be handled."""
        await self._access.require(by, _UPDATE)
        timeout = handle_timeout if handle_timeout > 0 else HANDLE_SECONDS
        commands: list[Command] = []
        for id in command_ids:
            command = await or_not_found(self._stores.commands.get(id), "Command is not found")
            check_project(by, command.project_id, "command")
            if command.type != Command.BUILD_PLAN_PREVIEW:
                raise Conflict(f"command {id} is not a plan preview command")
            commands.append(command)
        # No output is read before all commands are handled or timed out.
        timed_out = [self._timed_out(c, await self._is_online(c), timeout) for c in commands]
        results: list[PlanPreviewCommandResult] = []
        for command, error in zip(commands, timed_out, strict=True):
            result = error or await self._output(command)
            piped = await or_not_found(
                self._stores.pipeds.get(result.piped_id), "Piped is not found"
            )
            result.piped_name = piped.name
            result.piped_url = f"{self._address}/settings/piped"
            for application in result.results:
                application.application_url = (
                    f"{self._address}/applications/{application.application_id}"
                )
            results.append(result)
        return tuple(results)

    async def _is_online(self, command: Command) -> bool:
        if await self._connections.status(command.piped_id) == Piped.ONLINE:
            return True
        if self._now() - self._started_at >= RECONNECT:
            return False
        # A piped that has run before may not have reconnected yet.
        piped = await or_not_found(self._stores.pipeds.get(command.piped_id), "Piped is not found")
        return bool(piped.started_at)

    def _timed_out(
        self, command: Command, is_online: bool, timeout: int
    ) -> PlanPreviewCommandResult | None:
        """The error of a command that no piped handled; None for a handled one."""
        result = PlanPreviewCommandResult(command_id=command.id, piped_id=command.piped_id)
        if command.status != CommandStatus.NOT_HANDLED_YET:
            if to_unix(self._now()) - command.handled_at > RESULT_SECONDS:
                raise Conflict(f"the result of command {command.id} has expired")
            return None
        if not is_online:
            result.error = "Maybe Piped is offline currently."
        elif to_unix(self._now()) - command.created_at <= timeout:
            raise NotFound(f"command {command.id} is not handled yet")
        else:
            result.error = "Timed out, maybe the Piped is offline currently."
        return result

    async def _output(self, command: Command) -> PlanPreviewCommandResult:
        content = await or_not_found(
            self._stores.files.get(output_path(command.id)),
            f"the output of command {command.id} is not found",
        )
        result = from_json(content, PlanPreviewCommandResult)
        result.command_id, result.piped_id = command.id, command.piped_id
        return result
