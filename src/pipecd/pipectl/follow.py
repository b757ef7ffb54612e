# SPDX-License-Identifier: Apache-2.0
"""Follows a running deployment: prints its new log lines, or each change of its stages."""

import asyncio

import click

from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.pipectl.client import Api, attempt, logger
from pipecd.pipectl.output import printable
from pipecd.pipectl.views import deployment_status, stage_status
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb

_POLL_SECONDS = 1.0


async def get_deployment(api: Api, deployment_id: str) -> Deployment:
    request = pb.GetDeploymentRequest(deployment_id=deployment_id)
    return (await attempt("get deployment", api.GetDeployment(request))).deployment


class LogPrinter:
    """Prints the lines of stage logs, each one once, in the order of the stages."""

    def __init__(self) -> None:
        self._printed: dict[str, int] = {}

    def print_new(self, deployment: Deployment, logs: pb.ListStageLogsResponse) -> None:
        for stage in deployment.stages:
            if stage.id not in logs.stage_logs:
                continue
            for block in logs.stage_logs[stage.id].blocks:
                if block.index < self._printed.get(stage.id, 0):
                    continue
                self._printed[stage.id] = block.index + 1
                for line in block.log.splitlines():
                    click.echo(f"{stage.name}  {printable(line)}")


async def follow_logs(api: Api, deployment_id: str) -> None:
    """Prints new lines of all stages until the deployment has completed."""
    printer = LogPrinter()
    request = pb.ListStageLogsRequest(deployment_id=deployment_id)
    while True:
        try:
            # In this order, so that the last lines of a completed deployment are not missed.
            deployment = await get_deployment(api, deployment_id)
            logs = await attempt("get stage log", api.ListStageLogs(request))
        except Unavailable as e:
            logger.info("deployment cannot be read, retrying", error=str(e))
        else:
            printer.print_new(deployment, logs)
            if DeploymentStatus(deployment.status).is_completed:
                return
        await asyncio.sleep(_POLL_SECONDS)


async def watch_deployment(api: Api, deployment_id: str) -> None:
    """Prints a line for each change of status; raises an error if the deployment fails."""
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
        lines[""] = _line(title, deployment_status(deployment))
        for id, line in lines.items():
            if known.get(id) != line and not line.endswith(" NOT_STARTED_YET"):
                click.echo(line)
        known = lines
        status = DeploymentStatus(deployment.status)
        if status is DeploymentStatus.SUCCESS:
            return
        if status.is_completed:
            reason = f": {deployment.status_reason}" if deployment.status_reason else ""
            raise PipecdError(f"deployment {deployment_id} ended as {status.name}{reason}")
        await asyncio.sleep(_POLL_SECONDS)


def _line(name: str, status: str) -> str:
    return f"{printable(name):30} {status}"
