# SPDX-License-Identifier: Apache-2.0
"""Completes values in the shell: names that pipectl knows, and ids that the control plane lists."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from pipecd.commandline.flags import Complete, among
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import STATUS_PREFIX, DeploymentStatus
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.pipectl.client import Api, Connection, call, connect, connection_settings
from pipecd.pipectl.views import deployment_status
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.piped_list_pb2 import ListPipedsRequest, ListPipedsResponse

_MAX_ITEMS = 100
# A shell waits for the answer.
_TIMEOUT_SECONDS = 3.0

Items = list[tuple[str, str]]


def _listed(list_items: Callable[[Connection], Awaitable[Items]]) -> Complete:
    """Completes ids that the control plane lists; nothing if it cannot be reached."""

    async def fetch(settings: dict[str, Any]) -> Items:
        async with asyncio.timeout(_TIMEOUT_SECONDS), connect(**settings) as connection:
            return await list_items(connection)

    def complete(context: click.Context, _flag: click.Parameter, incomplete: str) -> list[Any]:
        given = {option.name: option.default for option in context.command.params}
        given |= {name: value for name, value in context.params.items() if value is not None}
        try:
            found = asyncio.run(fetch(connection_settings(given)))
        except (PipecdError, TimeoutError):
            return []
        # A list is completed at its last value.
        head, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(f"{head}{comma}{id}", help=name)
            for id, name in found
            if id.startswith(last)
        ]

    return complete


async def _applications(connection: Connection) -> Items:
    listed = await call(
        connection.api.ListApplications(pb.ListApplicationsRequest(limit=_MAX_ITEMS))
    )
    return [(application.id, application.name) for application in listed.applications]


async def _pipeds(connection: Connection) -> Items:
    """All pipeds; those of the applications if the control plane does not list pipeds."""
    try:
        rpc = connection.own_rpc("ListPipeds", ListPipedsRequest(), ListPipedsResponse)
        return [(piped.id, piped.name) for piped in (await call(rpc)).pipeds]
    except Unsupported:
        return await _pipeds_of_applications(connection.api)


async def _pipeds_of_applications(api: Api) -> Items:
    listed = await call(api.ListApplications(pb.ListApplicationsRequest(limit=_MAX_ITEMS)))
    ids = sorted({application.piped_id for application in listed.applications})
    requests = (call(api.GetPiped(pb.GetPipedRequest(piped_id=id))) for id in ids)
    return [(got.piped.id, got.piped.name) for got in await asyncio.gather(*requests)]


async def _deployments(connection: Connection) -> Items:
    listed = await call(connection.api.ListDeployments(pb.ListDeploymentsRequest(limit=_MAX_ITEMS)))
    return [(d.id, f"{d.application_name} {deployment_status(d)}") for d in listed.deployments]


kinds = among(kind.name for kind in ApplicationKind)
statuses = among(f"{STATUS_PREFIX}{status.name}" for status in DeploymentStatus)
applications = _listed(_applications)
deployments = _listed(_deployments)
pipeds = _listed(_pipeds)
