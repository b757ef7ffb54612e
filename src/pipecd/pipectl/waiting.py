# SPDX-License-Identifier: Apache-2.0
"""Waits until a command is handled or a deployment has come to a status."""

import asyncio
from collections.abc import Sequence

from pipecd.model.command import TRIGGERED_KEY, CommandStatus
from pipecd.model.deployment import STATUS_PREFIX, DeploymentStatus
from pipecd.model.errors import NotFound, PipecdError, Unavailable, UserMistake
from pipecd.pipectl.client import Api, asked, logger, told
from pipecd.proto.service import api_pb2 as pb


def statuses(names: Sequence[str]) -> tuple[DeploymentStatus, ...]:
    """The statuses that a person named, as DEPLOYMENT_SUCCESS and the like."""
    return tuple(_status(name, "invalid deployment status: invalid status {}") for name in names)


def check_statuses(names: Sequence[str]) -> None:
    """Refuses a status that does not exist; an empty name asks for nothing."""
    for name in names:
        if name:
            _status(name, "{} is invalid deployment status")


def _status(name: str, words: str) -> DeploymentStatus:
    try:
        return DeploymentStatus[name.removeprefix(STATUS_PREFIX)]
    except KeyError as e:
        known = ", ".join(STATUS_PREFIX + status.name for status in DeploymentStatus)
        raise UserMistake(words.format(name), hint=f"use one of {known}") from e


async def deployment_of(api: Api, command_id: str, *, every: float, within: float) -> str:
    """The deployment that a sync command led to."""
    try:
        async with asyncio.timeout(within):
            while True:
                await asyncio.sleep(every)
                request = pb.GetCommandRequest(command_id=command_id)
                try:
                    command = (await told("get command", api.GetCommand(request))).command
                except Unavailable as e:
                    logger.info("command not read, trying again", error=str(e))
                    continue
                if command.status == CommandStatus.NOT_HANDLED_YET:
                    logger.info("...")
                    continue
                deployment = command.metadata.get(TRIGGERED_KEY, "")
                if command.status != CommandStatus.SUCCEEDED or not deployment:
                    raise PipecdError("failed to detect the triggered deployment ID")
                return deployment
    except TimeoutError as e:
        raise Unavailable("context deadline exceeded", hint="raise --timeout") from e


async def until_status(
    api: Api,
    deployment_id: str,
    wanted: Sequence[DeploymentStatus],
    *,
    every: float,
    within: float,
) -> None:
    """Returns once the deployment is at one of the statuses."""
    request = pb.GetDeploymentRequest(deployment_id=deployment_id)
    try:
        async with asyncio.timeout(within):
            while True:
                if await _is_at(api, request, wanted):
                    return
                await asyncio.sleep(every)
    except TimeoutError as e:
        raise Unavailable("context deadline exceeded", hint="raise --timeout") from e


async def _is_at(
    api: Api, request: pb.GetDeploymentRequest, wanted: Sequence[DeploymentStatus]
) -> bool:
    try:
        answer = await asked(api.GetDeployment(request))
    except NotFound as e:
        missing = f'deployment "{request.deployment_id}" not found'
        raise NotFound(f"rpc error: code = NotFound desc = {missing}") from e
    except Unavailable as e:
        logger.info("deployment not read, trying again", error=str(e))
        return False
    status = DeploymentStatus(answer.deployment.status)
    if status in wanted:
        logger.info(f"Deployment is at {STATUS_PREFIX}{status.name} status")
        return True
    logger.info("...")
    return False
