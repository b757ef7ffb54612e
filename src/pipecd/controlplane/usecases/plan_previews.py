# SPDX-License-Identifier: Apache-2.0
"""Plan previews: what a branch would deploy, computed by the pipeds of its repository."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pipecd.cache import LruCache
from pipecd.controlplane.auth.rbac import Action, Permission, Resource, Scope
from pipecd.controlplane.auth.subject import User, UserOrApiKey
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.controlplane.usecases.commands import CommandUseCases, output_path
from pipecd.controlplane.usecases.piped_connections import (
    OFFLINE_AFTER_SECONDS,
    PipedConnections,
)
from pipecd.controlplane.usecases.preview_counts import PreviewCounts, count_of
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import PREVIEW_COUNTS_KEY, CommandStatus
from pipecd.model.deployment import SyncStrategy
from pipecd.model.document import from_json
from pipecd.model.errors import Conflict, Denied, NotFound
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest

_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)
_GET = Permission(Resource.APPLICATION, Action.GET)
_LIST = Permission(Resource.APPLICATION, Action.LIST)

_NOT_FOUND = "Plan preview is not found"
_UNREADABLE = "The result that the piped reported cannot be read."

COMMANDER = "pipectl"
HANDLE_SECONDS = 5 * 60
RESULT_SECONDS = 24 * 3600
# A page of the console; older ones are found by their link.
MAX_LISTED = 100
# Commands of other kinds are read with them; a list must not read those of a whole busy day.
MAX_READ = 10_000
MAX_REMEMBERED = 1_000
# Reading a longer result would hold up other requests.
_SHORT_OUTPUT = 64 * 1024
# How long pipeds may need to reconnect after this control plane has started.
RECONNECT = timedelta(seconds=30)


@dataclass(frozen=True)
class RequestedPreview:
    """A plan preview of one piped; without a `result` it is not ready, or `has_expired`.

    `hidden` counts the applications that the user may not see.
    """

    command: Command
    result: PlanPreviewCommandResult | None = None
    hidden: int = 0
    has_expired: bool = False


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
        # The applications of finished previews, so that a list does not read their results again.
        self._previewed = LruCache[str, Mapping[str, PreviewCounts]](MAX_REMEMBERED)

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
        commands = await self._commands_of(command_ids, by)
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

    async def page_urls(self, command_ids: Sequence[str], *, by: UserOrApiKey) -> dict[str, str]:
        """The addresses at which the console shows the previews, by command."""
        await self._access.require(by, _UPDATE)
        commands = await self._commands_of(command_ids, by)
        return {each.id: f"{self._address}/plan-previews/{each.id}" for each in commands}

    async def _commands_of(self, ids: Sequence[str], by: UserOrApiKey) -> list[Command]:
        commands: list[Command] = []
        for id in ids:
            command = await or_not_found(self._stores.commands.get(id), "Command is not found")
            check_project(by, command.project_id, "command")
            if command.type != Command.BUILD_PLAN_PREVIEW:
                raise Conflict(f"command {id} is not a plan preview command")
            commands.append(command)
        return commands

    async def list_recent(self, application_id: str = "", *, by: User) -> tuple[Command, ...]:
        """The commands of the previews that have not expired, newest first.

        With an application, those that it is among. A user whose roles are limited by labels sees
        those that have a visible application, and their counts are of visible ones only.
        """
        scope = await self._access.scope(by, _LIST)
        pipeds = [each.id for each in await self._stores.pipeds.list(by.project)]
        if not pipeds:
            return ()
        since = to_unix(self._now()) - RESULT_SECONDS
        previews: list[Command] = []
        read = 0
        async for batch in self._stores.commands.iterate_of_pipeds(pipeds, since):
            previews += (each for each in batch if each.type == Command.BUILD_PLAN_PREVIEW)
            read += len(batch)
            if len(previews) >= MAX_LISTED or read >= MAX_READ:
                break
        newest = previews[:MAX_LISTED]
        if scope.is_everything and not application_id:
            return tuple(newest)
        shown: list[Command] = []
        for each in newest:
            counts = await self._counts(each)
            visible = frozenset(counts)
            if not scope.is_everything:
                visible = await self._visible_ids(visible, scope, by)
                seen = sum((counts[id] for id in visible), PreviewCounts())
                each.metadata[PREVIEW_COUNTS_KEY] = str(seen)
            if application_id in visible or (visible and not application_id):
                shown.append(each)
        return tuple(shown)

    async def get(self, command_id: str, *, by: User) -> RequestedPreview:
        """The preview that a command requested, with the applications that the user may see."""
        scope = await self._access.scope(by, _GET)
        command = await or_not_found(self._stores.commands.get(command_id), _NOT_FOUND)
        check_project(by, command.project_id, "command")
        if command.type != Command.BUILD_PLAN_PREVIEW:
            raise NotFound(_NOT_FOUND)
        if command.status == CommandStatus.NOT_HANDLED_YET:
            return RequestedPreview(command)
        if command.status == CommandStatus.TIMEOUT:
            error = "no piped has handled it within a day"
            return RequestedPreview(command, PlanPreviewCommandResult(error=error))
        if to_unix(self._now()) - command.handled_at > RESULT_SECONDS:
            return RequestedPreview(command, has_expired=True)
        try:
            result = await self._output(command)
        except NotFound:
            return RequestedPreview(command, has_expired=True)
        visible = await self._visible(result.results, scope, by)
        hidden = len(result.results) - len(visible)
        if not scope.is_everything and not visible:
            # An error may name files and applications that no role of the user covers.
            raise Denied("Permission Denied")
        del result.results[:]
        result.results.extend(visible)
        return RequestedPreview(command, result, hidden)

    async def _counts(self, command: Command) -> Mapping[str, PreviewCounts]:
        """What became of each application of a preview; none before it is ready."""
        counts = self._previewed.get(command.id)
        if counts is None:
            try:
                result = await self._output(command)
            except NotFound:
                return {}
            counts = {each.application_id: count_of(each) for each in result.results}
            self._previewed.put(command.id, counts)
        return counts

    async def _visible(
        self, results: Sequence[ApplicationPlanPreviewResult], scope: Scope, by: User
    ) -> list[ApplicationPlanPreviewResult]:
        """The results whose applications have labels in the scope now, not in the preview."""
        if scope.is_everything:
            return list(results)
        ids = frozenset(each.application_id for each in results)
        visible = await self._visible_ids(ids, scope, by)
        return [each for each in results if each.application_id in visible]

    async def _visible_ids(self, ids: frozenset[str], scope: Scope, by: User) -> frozenset[str]:
        stored = await self._stores.applications.get_many(tuple(ids))
        return frozenset(
            id
            for id, application in stored.items()
            if application.project_id == by.project and scope.covers(application.labels)
        )

    async def _is_online(self, command: Command) -> bool:
        if await self._connections.status(command.piped_id) == Piped.ONLINE:
            return True
        piped = await or_not_found(self._stores.pipeds.get(command.piped_id), "Piped is not found")
        now = self._now()
        if to_unix(now) - piped.started_at <= OFFLINE_AFTER_SECONDS:
            # It has registered, and starts its plugins before it reports metrics.
            return True
        # A piped that has run before may not have reconnected yet.
        return bool(piped.started_at) and now - self._started_at < RECONNECT

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
        try:
            if len(content) > _SHORT_OUTPUT:
                result = await asyncio.to_thread(_read_result, content)
            else:
                result = _read_result(content)
        except (ValueError, RecursionError):
            # Pipeds report any bytes, and one of them must not hide the results of the others.
            result = PlanPreviewCommandResult(error=_UNREADABLE)
        result.command_id, result.piped_id = command.id, command.piped_id
        return result


def _read_result(content: bytes) -> PlanPreviewCommandResult:
    """Raises ValueError or RecursionError for what no piped should report."""
    result = from_json(content, PlanPreviewCommandResult)
    for application in result.results:
        SyncStrategy(application.sync_strategy)
    return result
