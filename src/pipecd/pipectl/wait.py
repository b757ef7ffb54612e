# SPDX-License-Identifier: Apache-2.0
"""Waits until a command is handled or a deployment has reached a status.

The first check happens at once; the delay between checks then grows up to `--check-interval`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipecd.model.backoff import Backoff
from pipecd.model.command import TRIGGERED_KEY, CommandStatus
from pipecd.model.deployment import STATUS_PREFIX, DeploymentStatus, with_stage_names
from pipecd.model.errors import Conflict, NotFound, PipecdError, Unavailable, UserMistake
from pipecd.pipectl.client import Api, attempt, call, logger
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb

T = TypeVar("T")

_FIRST_DELAY_SECONDS = 0.25


@dataclass(frozen=True)
class Polling:
    """The flags of commands that wait, in seconds."""

    check_interval: float
    timeout: float


def parse_statuses(names: Sequence[str]) -> tuple[DeploymentStatus, ...]:
    """Parses the statuses of a flag, such as DEPLOYMENT_SUCCESS."""
    return tuple(_parse(name, "invalid deployment status: invalid status {}") for name in names)


def validate_statuses(names: Sequence[str]) -> None:
    """Refuses a status that does not exist; empty names are ignored."""
    for name in names:
        if name:
            _parse(name, "{} is invalid deployment status")


def _parse(name: str, message: str) -> DeploymentStatus:
    try:
        return DeploymentStatus[name.removeprefix(STATUS_PREFIX)]
    except KeyError as e:
        valid = ", ".join(STATUS_PREFIX + status.name for status in DeploymentStatus)
        raise UserMistake(message.format(name), hint=f"use one of {valid}") from e


async def wait_for_deployment(api: Api, command_id: str, polling: Polling) -> str:
    """Returns the id of the deployment that a sync command triggers."""
    request = pb.GetCommandRequest(command_id=command_id)

    async def triggered() -> str | None:
        try:
            command = (await attempt("get command", api.GetCommand(request))).command
        except Unavailable as e:
            logger.info("command cannot be read, retrying", command=command_id, error=str(e))
            return None
        if command.status == CommandStatus.NOT_HANDLED_YET:
            logger.info("...")
            return None
        deployment = command.metadata.get(TRIGGERED_KEY, "")
        if command.status != CommandStatus.SUCCEEDED or not deployment:
            raise PipecdError("failed to detect the triggered deployment ID")
        return deployment

    return await _poll(triggered, polling)


async def wait_for_status(
    api: Api, deployment_id: str, statuses: Sequence[DeploymentStatus], polling: Polling
) -> Deployment:
    """Returns the deployment once it is at one of the statuses."""
    request = pb.GetDeploymentRequest(deployment_id=deployment_id)

    async def reached() -> Deployment | None:
        try:
            deployment = (await call(api.GetDeployment(request))).deployment
        except NotFound as e:
            missing = f'deployment "{deployment_id}" not found'
            raise NotFound(f"rpc error: code = NotFound desc = {missing}") from e
        except Unavailable as e:
            logger.info(
                "deployment cannot be read, retrying", deployment=deployment_id, error=str(e)
            )
            return None
        status = DeploymentStatus(deployment.status)
        if status in statuses:
            return deployment
        if status.is_completed:
            raise Conflict(
                f"deployment {deployment_id} has completed as {STATUS_PREFIX}{status.name}",
                hint=with_stage_names(deployment.status_reason, deployment).strip(),
            )
        logger.info("...")
        return None

    deployment = await _poll(reached, polling)
    status = DeploymentStatus(deployment.status)
    logger.info(f"Deployment is at {STATUS_PREFIX}{status.name} status")
    return deployment


async def _poll(check: Callable[[], Awaitable[T | None]], polling: Polling) -> T:
    """Calls `check` until it returns something else than None."""
    delays = iter(Backoff(first=_FIRST_DELAY_SECONDS, longest=polling.check_interval))
    try:
        async with asyncio.timeout(polling.timeout):
            while True:
                result = await check()
                if result is not None:
                    return result
                await asyncio.sleep(next(delays))
    except TimeoutError as e:
        raise Unavailable("context deadline exceeded", hint="raise --timeout") from e
