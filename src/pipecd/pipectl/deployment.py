# SPDX-License-Identifier: Apache-2.0
"""`pipectl deployment`: list, get, logs, watch, wait-status, and commands for running ones."""

from contextlib import nullcontext
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.commandline.github_actions import workflow_commands_stopped
from pipecd.model.deployment import (
    DeploymentStatus,
    ManualOperation,
    StageStatus,
    with_stage_names,
)
from pipecd.model.errors import UserMistake
from pipecd.pipectl import completion
from pipecd.pipectl.application import parse_kinds, parse_labels
from pipecd.pipectl.client import Api, Connection, attempt, logger, with_api, with_connection
from pipecd.pipectl.follow import (
    StageLogReader,
    check_success,
    follow_logs,
    get_deployment,
    print_block,
    watch_deployment,
)
from pipecd.pipectl.output import (
    FORMS,
    default_form,
    deployment_output_flag,
    id_output_flag,
    output_flag,
    print_id,
    print_result,
    printable,
    report_more,
)
from pipecd.pipectl.views import (
    COMMIT_LENGTH,
    DEPLOYMENTS,
    STAGES,
    deployment_status,
    shown_stages,
    waiting_reason,
)
from pipecd.pipectl.wait import (
    Polling,
    parse_statuses,
    validate_statuses,
    wait_for_deployment,
    wait_for_status,
)
from pipecd.proto.model.deployment_pb2 import PipelineStage
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import deployment_control_pb2 as control

_DEPLOYMENT = flags.text(
    "deployment-id", "The deployment.", required=True, complete=completion.deployments
)


@click.group()
def deployment() -> None:
    """Work with deployments."""


@deployment.command("list")
@with_api
@flags.strings("status", "Only those at this status.", complete=completion.statuses)
@flags.strings("app-id", "Only those of this application.", complete=completion.applications)
@flags.strings("app-kind", "Only those of applications of this kind.", complete=completion.kinds)
@flags.text("app-name", "Only those of applications of this name.")
@flags.strings("label", "Only those with this label, as KEY:VALUE.")
@flags.text("cursor", "Where an earlier list ended.")
@flags.number("limit", "How many at most.", default=30)
@output_flag
async def list_(api: Api, **given: Any) -> None:
    """List deployments."""
    validate_statuses(given["status"])
    request = pb.ListDeploymentsRequest(
        statuses=given["status"],
        kinds=parse_kinds(given["app_kind"]),
        application_ids=given["app_id"],
        application_name=given["app_name"],
        labels=parse_labels(given["label"], ":"),
        limit=given["limit"],
        cursor=given["cursor"],
    )
    answer = await attempt("list deployment", api.ListDeployments(request))
    print_result(given["output"], answer, answer.deployments, DEPLOYMENTS)
    report_more(given["output"], answer.cursor)


@deployment.command("get")
@with_api
@_DEPLOYMENT
@output_flag
async def get(api: Api, deployment_id: str, output: str) -> None:
    """Show a deployment and its stages."""
    found = await get_deployment(api, deployment_id)
    print_result(output, found, [found], DEPLOYMENTS)
    if output == "table":
        if stages := shown_stages(found):
            click.echo()
            print_result(output, found, stages, STAGES)
        reason = waiting_reason(found) or with_stage_names(found.status_reason, found)
        if reason:
            with workflow_commands_stopped():
                click.echo(f"\n{printable(reason)}")


@deployment.command("logs")
@with_connection
@_DEPLOYMENT
@flags.switch("follow", "Print new lines until the deployment has completed.")
@click.option(
    "--output",
    type=click.Choice(FORMS),
    help="The form of the logs; lines on a terminal and with --follow, else json.",
)
async def logs(
    connection: Connection, deployment_id: str, follow: bool, output: str | None
) -> None:
    """Show the logs of every stage."""
    api = connection.api
    if follow:
        with workflow_commands_stopped() if output in (None, "table") else nullcontext():
            await follow_logs(connection, deployment_id, output)
    elif (form := output or default_form()) == "table":
        deployment = await get_deployment(api, deployment_id)
        with workflow_commands_stopped():
            async for stage, block in StageLogReader(connection).new_blocks(deployment):
                print_block(stage, block, form)
    else:
        request = pb.ListStageLogsRequest(deployment_id=deployment_id)
        answer = await attempt("get stage log", api.ListStageLogs(request))
        print_result(form, answer, [PipelineStage(id=id) for id in answer.stage_logs], STAGES)


@deployment.command("watch", short_help="Print each change of a running deployment.")
@with_api
@_DEPLOYMENT
@deployment_output_flag
async def watch(api: Api, deployment_id: str, output: str | None) -> None:
    """Print each change of a deployment until it has completed; exits with 1 unless it succeeds."""
    with workflow_commands_stopped() if output is None else nullcontext():
        completed = await watch_deployment(api, deployment_id, to_stderr=output is not None)
    if output is not None:
        print_result(output, completed, [completed], DEPLOYMENTS)
    check_success(completed)


@deployment.command("cancel")
@with_connection
@_DEPLOYMENT
@flags.switch("force-rollback", "Roll back even if the application disables it.")
@flags.switch("force-no-rollback", "Do not roll back.")
@id_output_flag
async def cancel(
    connection: Connection, deployment_id: str, output: str | None, **flags: bool
) -> None:
    """Cancel a deployment."""
    if flags["force_rollback"] and flags["force_no_rollback"]:
        raise UserMistake("--force-rollback and --force-no-rollback exclude each other")
    request = control.CancelDeploymentRequest(deployment_id=deployment_id, **flags)
    answer = await attempt("cancel deployment", connection.control("CancelDeployment", request))
    logger.info(f"Requested the cancellation of deployment {deployment_id}")
    print_id(output, "command_id", answer.command_id)


_STAGE = flags.text("stage-id", "The stage; the one that waits if it is not set.")


@deployment.command("approve")
@with_connection
@_DEPLOYMENT
@_STAGE
@id_output_flag
async def approve(
    connection: Connection, deployment_id: str, stage_id: str, output: str | None
) -> None:
    """Approve a stage that waits for approval."""
    stage = stage_id or await _only_waiting(connection.api, deployment_id, ManualOperation.APPROVE)
    request = control.ApproveStageRequest(deployment_id=deployment_id, stage_id=stage)
    answer = await attempt("approve stage", connection.control("ApproveStage", request))
    logger.info(f"Approved stage {stage} of deployment {deployment_id}")
    print_id(output, "command_id", answer.command_id)


@deployment.command("reject", short_help="Reject a stage that waits for approval.")
@with_connection
@_DEPLOYMENT
@_STAGE
@flags.text("reason", "Why it is not approved; shown with the stage.", required=True)
@id_output_flag
async def reject(
    connection: Connection, deployment_id: str, stage_id: str, reason: str, output: str | None
) -> None:
    """Reject a stage that waits for approval; the deployment fails and is rolled back."""
    stage = stage_id or await _only_waiting(connection.api, deployment_id, ManualOperation.APPROVE)
    request = control.RejectStageRequest(deployment_id=deployment_id, stage_id=stage, reason=reason)
    answer = await attempt("reject stage", connection.control("RejectStage", request))
    logger.info(f"Rejected stage {stage} of deployment {deployment_id}")
    print_id(output, "command_id", answer.command_id)


@deployment.command("skip")
@with_connection
@_DEPLOYMENT
@_STAGE
@id_output_flag
async def skip(
    connection: Connection, deployment_id: str, stage_id: str, output: str | None
) -> None:
    """Skip a running stage that allows it."""
    stage = stage_id or await _only_waiting(connection.api, deployment_id, ManualOperation.SKIP)
    request = control.SkipStageRequest(deployment_id=deployment_id, stage_id=stage)
    answer = await attempt("skip stage", connection.control("SkipStage", request))
    logger.info(f"Skipped stage {stage} of deployment {deployment_id}")
    print_id(output, "command_id", answer.command_id)


async def _only_waiting(api: Api, deployment_id: str, operation: ManualOperation) -> str:
    """The running stage that offers the operation."""
    stages = (await get_deployment(api, deployment_id)).stages
    running = [stage for stage in stages if stage.status == StageStatus.RUNNING]
    offering = [stage for stage in running if stage.available_operation == operation] or running
    if not offering:
        raise UserMistake(f"no stage of deployment {deployment_id} is running")
    if len(offering) > 1:
        names = ", ".join(f"{stage.name} {stage.id}" for stage in offering)
        raise UserMistake(
            f"several stages of deployment {deployment_id} are running: {names}",
            hint="choose one with --stage-id",
        )
    return offering[0].id


@deployment.command("retry", short_help="Deploy an application again.")
@with_api
@_DEPLOYMENT
@flags.duration("check-interval", "The longest delay between two checks.", default="15s")
@flags.duration("timeout", "How long to wait for the new deployment.", default="5m")
@output_flag
async def retry(api: Api, deployment_id: str, output: str, **flags: float) -> None:
    """Deploy the application of a completed deployment again, and print the new deployment.

    Like every sync it deploys the head of the branch, which may be another commit than that of the
    old deployment; to deploy an older commit, revert to it in Git.
    """
    old = await get_deployment(api, deployment_id)
    if not DeploymentStatus(old.status).is_completed:
        raise UserMistake(
            f"deployment {deployment_id} is still {deployment_status(old)}",
            hint="cancel it first, or wait for it",
        )
    request = pb.SyncApplicationRequest(application_id=old.application_id)
    answer = await attempt("sync application", api.SyncApplication(request))
    new = await wait_for_deployment(api, answer.command_id, Polling(**flags))
    created = await get_deployment(api, new)
    before, now = old.trigger.commit, created.trigger.commit
    if before.hash != now.hash:
        branch = now.branch or "the branch"
        logger.warning(
            f"The new deployment is of commit {now.hash[:COMMIT_LENGTH]}, the head of {branch}; "
            f"deployment {deployment_id} was of {before.hash[:COMMIT_LENGTH]}"
        )
    print_result(output, created, [created], DEPLOYMENTS)


@deployment.command("wait-status")
@with_api
@_DEPLOYMENT
@flags.strings("status", "The statuses to wait for.", required=True, complete=completion.statuses)
@flags.duration("check-interval", "The longest delay between two checks.", default="15s")
@flags.duration("timeout", "How long to wait.", default="15m")
@deployment_output_flag
async def wait_status(
    api: Api, deployment_id: str, status: tuple[str, ...], output: str | None, **flags: float
) -> None:
    """Wait until a deployment is at one of the statuses."""
    reached = await wait_for_status(api, deployment_id, parse_statuses(status), Polling(**flags))
    if output is not None:
        print_result(output, reached, [reached], DEPLOYMENTS)
