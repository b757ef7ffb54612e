# SPDX-License-Identifier: Apache-2.0
"""Follows a running deployment: prints its new log lines, or each change of its stages."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import click

from pipecd.commandline.github_actions import without_workflow_commands
from pipecd.model.deployment import DeploymentStatus, StageStatus, with_stage_names
from pipecd.model.document import to_json
from pipecd.model.errors import NotFound, PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.pipectl.client import Api, Connection, attempt, call, logger
from pipecd.pipectl.output import printable
from pipecd.pipectl.views import deployment_status, stage_status, waiting_reason
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import deployment_control_pb2 as control

_POLL_SECONDS = 1.0


async def get_deployment(api: Api, deployment_id: str) -> Deployment:
    request = pb.GetDeploymentRequest(deployment_id=deployment_id)
    return (await attempt("get deployment", api.GetDeployment(request))).deployment


@dataclass(frozen=True)
class _Position:
    """How far the log of a stage was read; at the end of a completed log nothing follows."""

    retried_count: int = 0
    next_index: int = 0
    is_at_end: bool = False


class StageLogReader:
    """Reads the stage logs of a deployment, each block once.

    Only what is new is transferred. A control plane of upstream sends whole logs, of which the new
    blocks are taken.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._positions: dict[str, _Position] = {}
        self._sends_parts = True

    async def new_blocks(
        self, deployment: Deployment
    ) -> AsyncIterator[tuple[PipelineStage, LogBlock]]:
        """Yields the blocks that were not read before, in the order of the stages."""
        if self._sends_parts:
            try:
                async for stage, block in self._from_parts(deployment):
                    yield stage, block
            except Unsupported:
                self._sends_parts = False
            else:
                return
        request = pb.ListStageLogsRequest(deployment_id=deployment.id)
        logs = await attempt("get stage log", self._connection.api.ListStageLogs(request))
        for stage in deployment.stages:
            if stage.id in logs.stage_logs:
                log = logs.stage_logs[stage.id]
                position = self._position(stage)
                for block in (b for b in log.blocks if b.index >= position.next_index):
                    yield stage, block
                    self._advance(stage, block)

    async def _from_parts(
        self, deployment: Deployment
    ) -> AsyncIterator[tuple[PipelineStage, LogBlock]]:
        for stage in deployment.stages:
            has_more = stage.status != StageStatus.NOT_STARTED_YET
            while has_more and not self._position(stage).is_at_end:
                part = await self._part(deployment.id, stage)
                for block in part.blocks:
                    yield stage, block
                    self._advance(stage, block)
                has_more = part.has_more
                if part.completed:
                    position = self._position(stage)
                    self._positions[stage.id] = replace(position, is_at_end=True)

    async def _part(self, deployment_id: str, stage: PipelineStage) -> control.GetStageLogResponse:
        request = control.GetStageLogRequest(
            deployment_id=deployment_id,
            stage_id=stage.id,
            retried_count=stage.retried_count,
            offset_index=self._position(stage).next_index,
        )
        response = self._connection.own_rpc("GetStageLog", request, control.GetStageLogResponse)
        try:
            return await call(response)
        except NotFound:
            # A stage that has just begun has no log yet.
            return control.GetStageLogResponse()

    def _position(self, stage: PipelineStage) -> _Position:
        """How far the log of this run of the stage was read."""
        position = self._positions.get(stage.id, _Position())
        is_same_run = position.retried_count == stage.retried_count
        return position if is_same_run else _Position(stage.retried_count)

    def _advance(self, stage: PipelineStage, block: LogBlock) -> None:
        self._positions[stage.id] = replace(self._position(stage), next_index=block.index + 1)


def print_block(stage: PipelineStage, block: LogBlock, output: str | None) -> None:
    """Prints a block of a log: as lines with the name of the stage, as JSON, or as YAML."""
    if output in (None, "table"):
        for line in block.log.splitlines():
            click.echo(printable(f"{stage.name}  {line}"))
        return
    document = {"stage_id": stage.id, "stage_name": stage.name, **json.loads(to_json(block))}
    # A line of JSON is a document of YAML, too.
    click.echo(("--- " if output == "yaml" else "") + json.dumps(document))


async def follow_logs(connection: Connection, deployment_id: str, output: str | None) -> None:
    """Prints new lines of all stages until the deployment has completed."""
    if output == "name":
        raise UserMistake("lines of a log have no names", hint="use another --output")
    reader = StageLogReader(connection)
    while True:
        try:
            # In this order, so that the last lines of a completed deployment are not missed.
            deployment = await get_deployment(connection.api, deployment_id)
            async for stage, block in reader.new_blocks(deployment):
                print_block(stage, block, output)
        except Unavailable as e:
            logger.info("deployment cannot be read, retrying", error=str(e))
        else:
            if DeploymentStatus(deployment.status).is_completed:
                return
        await asyncio.sleep(_POLL_SECONDS)


async def watch_deployment(api: Api, deployment_id: str, *, to_stderr: bool) -> Deployment:
    """Prints a line for each change of status and returns the completed deployment."""
    known: dict[str, str] = {}
    while True:
        try:
            deployment = await get_deployment(api, deployment_id)
        except Unavailable as e:
            logger.info("deployment cannot be read, retrying", error=str(e))
            await asyncio.sleep(_POLL_SECONDS)
            continue
        lines = {stage.id: _line(stage.name, stage_status(stage)) for stage in deployment.stages}
        title = f"deployment of {deployment.application_name}"
        reason = waiting_reason(deployment)
        lines[""] = _line(title, f"{deployment_status(deployment)}  {printable(reason)}".rstrip())
        for id, line in lines.items():
            if known.get(id) != line and not line.endswith(" NOT_STARTED_YET"):
                click.echo(without_workflow_commands(line) if to_stderr else line, err=to_stderr)
        known = lines
        if DeploymentStatus(deployment.status).is_completed:
            return deployment
        await asyncio.sleep(_POLL_SECONDS)


def check_success(deployment: Deployment) -> None:
    """Raises an error if a completed deployment has not succeeded."""
    if deployment.status != DeploymentStatus.SUCCESS:
        reason = with_stage_names(deployment.status_reason, deployment)
        ended = deployment_status(deployment)
        raise PipecdError(f"deployment {deployment.id} ended as {ended}{reason and ': '}{reason}")


def _line(name: str, status: str) -> str:
    return f"{printable(name):30} {status}"
