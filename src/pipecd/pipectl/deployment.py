# SPDX-License-Identifier: Apache-2.0
"""`pipectl deployment`: list, logs, wait-status."""

from typing import Any

import click

from pipecd.commandline import flags
from pipecd.model.document import to_json
from pipecd.pipectl.application import label_pairs, validate_kinds
from pipecd.pipectl.client import Api, attempt, print_json, with_api
from pipecd.pipectl.wait import Polling, parse_statuses, validate_statuses, wait_for_status
from pipecd.proto.service import api_pb2 as pb


@click.group()
def deployment() -> None:
    """Work with deployments."""


@deployment.command("list")
@with_api
@flags.strings("status", "Only those at this status.")
@flags.strings("app-id", "Only those of this application.")
@flags.strings("app-kind", "Only those of applications of this kind.")
@flags.text("app-name", "Only those of applications of this name.")
@flags.strings("label", "Only those with this label, as KEY:VALUE.")
@flags.text("cursor", "Where an earlier list ended.")
@flags.number("limit", "How many at most.", default=30)
async def list_(api: Api, **given: Any) -> None:
    """List deployments."""
    validate_statuses(given["status"])
    validate_kinds(given["app_kind"])
    request = pb.ListDeploymentsRequest(
        statuses=given["status"],
        kinds=given["app_kind"],
        application_ids=given["app_id"],
        application_name=given["app_name"],
        labels=label_pairs(given["label"]),
        limit=given["limit"],
        cursor=given["cursor"],
    )
    print_json(to_json(await attempt("list deployment", api.ListDeployments(request))))


@deployment.command("logs")
@with_api
@flags.text("deployment-id", "The deployment.", required=True)
async def logs(api: Api, deployment_id: str) -> None:
    """Show the logs of every stage."""
    request = pb.ListStageLogsRequest(deployment_id=deployment_id)
    print_json(to_json(await attempt("get stage log", api.ListStageLogs(request))))


@deployment.command("wait-status")
@with_api
@flags.text("deployment-id", "The deployment.", required=True)
@flags.strings("status", "The statuses to wait for.", required=True)
@flags.duration("check-interval", "The longest delay between two checks.", default="15s")
@flags.duration("timeout", "How long to wait.", default="15m")
async def wait_status(
    api: Api, deployment_id: str, status: tuple[str, ...], **flags: float
) -> None:
    """Wait until a deployment is at one of the statuses."""
    await wait_for_status(api, deployment_id, parse_statuses(status), Polling(**flags))
