# SPDX-License-Identifier: Apache-2.0
"""Stage logs: pipeds append, users and API keys read."""

from collections.abc import Awaitable, Callable, Sequence

from pipecd.cache import LruCache
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, Subject
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.log_file import StoredLog
from pipecd.controlplane.datastore.stage_logs import LogCompleted, StageLogPart, StageRun
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, or_not_found
from pipecd.model.deployment import ROLLBACK_STAGE, DeploymentStatus, StageStatus
from pipecd.model.errors import NotFound, UserMistake
from pipecd.proto.model.logblock_pb2 import LogBlock

_GET = Permission(Resource.DEPLOYMENT, Action.GET)

# A deployment never changes its piped, so ownership is checked once and cached while logs are sent.
_OWNERS_TTL_SECONDS = 600.0
_MAX_OWNERS = 1000
_EMPTY = StageLogPart(blocks=(), completed=False)


class Logs:
    """Appends to and reads stage logs."""

    def __init__(self, stores: Stores, bus: Bus, access: Access) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._owners = LruCache[str, str](_MAX_OWNERS, ttl=_OWNERS_TTL_SECONDS)

    async def append(self, run: StageRun, blocks: Sequence[LogBlock], *, by: PipedCaller) -> None:
        logs = self._stores.stage_logs
        await self._write(run, blocks, lambda: logs.append(run, blocks), by)

    async def checkpoint(
        self, run: StageRun, blocks: Sequence[LogBlock], *, completed: bool, by: PipedCaller
    ) -> None:
        logs = self._stores.stage_logs
        await self._write(
            run, blocks, lambda: logs.checkpoint(run, blocks, completed=completed), by
        )

    async def stage_log(self, run: StageRun, from_index: int = 0, *, by: Subject) -> StageLogPart:
        """The blocks with that index or a greater one."""
        await self._access.deployment(run.deployment_id, by=by, permission=_GET)
        check_stage_run(run)
        return await or_not_found(
            self._stores.stage_logs.read(run, from_index=from_index),
            "Entity was not found to get stage logs",
        )

    async def whole_stage_log(self, run: StageRun, *, by: Subject) -> StoredLog:
        """The whole log, of which only what is used is decoded."""
        await self._access.deployment(run.deployment_id, by=by, permission=_GET)
        check_stage_run(run)
        return await or_not_found(
            self._stores.stage_logs.read_whole(run), "Entity was not found to get stage logs"
        )

    async def of_deployment(self, deployment_id: str, *, by: Subject) -> dict[str, StageLogPart]:
        """The log of the last run of every stage, by stage id."""
        deployment = await self._access.deployment(deployment_id, by=by, permission=_GET)
        logs: dict[str, StageLogPart] = {}
        for stage in deployment.stages:
            run = StageRun(deployment.id, stage.id, stage.retried_count)
            try:
                logs[stage.id] = await self._stores.stage_logs.read(run)
            except NotFound:
                # Upstream's clients expect no entry for a rollback stage that did not run.
                if stage.name != ROLLBACK_STAGE:
                    logs[stage.id] = _EMPTY
        return logs

    async def _check_owner(self, run: StageRun, by: PipedCaller) -> None:
        check_stage_run(run)
        if self._owners.get(run.deployment_id) != by.piped:
            await self._access.own_deployment(run.deployment_id, by=by)
            self._owners.put(run.deployment_id, by.piped)

    async def _write(
        self,
        run: StageRun,
        blocks: Sequence[LogBlock],
        write: Callable[[], Awaitable[None]],
        by: PipedCaller,
    ) -> None:
        await self._check_owner(run, by)
        try:
            await write()
        except LogCompleted:
            if not await self._reopen(run, blocks):
                raise
            await write()
        await self._signal(run, by)

    async def _reopen(self, run: StageRun, blocks: Sequence[LogBlock]) -> bool:
        """Opens the completed log of a stage that runs again.

        A piped whose workspace was lost or restored does not know that the stage has ended, if its
        status was not reported either.
        """
        deployment = await self._stores.deployments.get(run.deployment_id)
        is_running = any(
            stage.id == run.stage_id and StageStatus(stage.status) is StageStatus.RUNNING
            for stage in deployment.stages
        )
        if not is_running or DeploymentStatus(deployment.status).is_completed:
            return False
        return await self._stores.stage_logs.reopen(run, blocks)

    async def _signal(self, run: StageRun, by: PipedCaller) -> None:
        await self._bus.publish(
            Signal(Topic.STAGE_LOG, f"{run.deployment_id}/{run.stage_id}", by.project)
        )


def check_stage_run(run: StageRun) -> None:
    """Refuses ids that would leave the path they become part of."""
    for part in (run.deployment_id, run.stage_id):
        if "/" in part or "\\" in part or "\0" in part or part in {"", ".", ".."}:
            raise UserMistake("the id of a deployment or stage must not look like a path")
    if run.retried_count < 0:
        raise UserMistake("the retried count must not be negative")
