# SPDX-License-Identifier: Apache-2.0
"""`pipectl application`: add, sync, get, list, delete, disable."""

from typing import Any

import click

from pipecd.commandline import flags
from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.model.application import ApplicationKind
from pipecd.model.document import to_json
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.pipectl.client import Api, attempt, call, logger, print_json, with_api
from pipecd.pipectl.wait import Polling, parse_statuses, wait_for_deployment, wait_for_status
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.common_pb2 import ApplicationKind as WireKind
from pipecd.proto.service import api_pb2 as pb


@click.group()
def application() -> None:
    """Work with applications."""


@application.command("add")
@with_api
@flags.text("app-name", "The name of the application.", required=True)
@flags.text("app-kind", "The kind: KUBERNETES, TERRAFORM, LAMBDA, CLOUDRUN, ECS.", required=True)
@flags.text("piped-id", "The piped that deploys it.", required=True)
@flags.text("platform-provider", "The platform provider to deploy to.", required=True)
@flags.text("repo-id", "The repository, by its id in the piped configuration.", required=True)
@flags.text("app-dir", "The directory inside the repository.", required=True)
@flags.text("config-file-name", "The name of its configuration file.", default=DEFAULT_CONFIG_FILE)
@flags.text("labels", "Labels, as k=v,k2=v2.")
@flags.text("description", "What it is.")
async def add(api: Api, **given: Any) -> None:
    """Add a new application."""
    # Like upstream, labels that are not key=value are ignored.
    pairs = (item.partition("=") for item in given["labels"].split(",") if item.count("=") == 1)
    labels = {key: value for key, _, value in pairs}
    request = pb.AddApplicationRequest(
        name=given["app_name"],
        piped_id=given["piped_id"],
        git_path=ApplicationGitPath(
            repo=ApplicationGitRepository(id=given["repo_id"]),
            path=given["app_dir"],
            config_filename=given["config_file_name"],
        ),
        kind=WireKind.Value(_parse_kind(given["app_kind"], "unsupported application kind {}").name),
        platform_provider=given["platform_provider"],
        description=given["description"],
        labels=labels,
    )
    answer = await attempt("add application", api.AddApplication(request))
    logger.info(f"Successfully added application id = {answer.application_id}")


@application.command("sync")
@with_api
@flags.text("app-id", "The application.", required=True)
@flags.strings("wait-status", "Wait until the deployment is at one of these statuses.")
@flags.duration("check-interval", "The longest delay between two checks.", default="15s")
@flags.duration("timeout", "How long to wait.", default="5m")
async def sync(api: Api, app_id: str, wait_status: tuple[str, ...], **flags: float) -> None:
    """Deploy an application now."""
    statuses, polling = parse_statuses(wait_status), Polling(**flags)
    request = pb.SyncApplicationRequest(application_id=app_id)
    try:
        answer = await call(api.SyncApplication(request))
    except PipecdError as e:
        # Upstream prints this message without a colon, and scripts may match it.
        raise type(e)(f"failed to sync application {e}") from e
    logger.info("Sent a request to sync application and waiting to be accepted...")
    deployment = await wait_for_deployment(api, answer.command_id, polling)
    logger.info(f"Successfully triggered deployment {deployment}")
    if statuses:
        await wait_for_status(api, deployment, statuses, polling)


@application.command("get")
@with_api
@flags.text("app-id", "The application.", required=True)
async def get(api: Api, app_id: str) -> None:
    """Show an application."""
    request = pb.GetApplicationRequest(application_id=app_id)
    answer = await attempt("get application", api.GetApplication(request))
    print_json(to_json(answer.application))


@application.command("list")
@with_api
@flags.text("app-name", "Only those of this name.")
@flags.text("app-kind", "Only those of this kind.")
@flags.text("piped-id", "Only those of this piped.")
@flags.switch("disabled", "Only disabled ones.")
@flags.text("cursor", "Where an earlier list ended.")
@flags.number("limit", "How many at most.", default=10)
@flags.strings("label", "Only those with this label, as KEY:VALUE.")
async def list_(api: Api, **given: Any) -> None:
    """List applications."""
    if given["app_kind"]:
        _parse_kind(given["app_kind"], "invalid application kind")
    request = pb.ListApplicationsRequest(
        name=given["app_name"],
        kind=given["app_kind"],
        piped_id=given["piped_id"],
        disabled=given["disabled"],
        cursor=given["cursor"],
        limit=given["limit"],
        labels=label_pairs(given["label"]),
    )
    print_json(to_json(await attempt("list application", api.ListApplications(request))))


@application.command("delete")
@with_api
@flags.text("app-id", "The application.", required=True)
async def delete(api: Api, app_id: str) -> None:
    """Delete an application."""
    request = pb.DeleteApplicationRequest(application_id=app_id)
    answer = await attempt("delete application", api.DeleteApplication(request))
    logger.info(f"Successfully deleted application id = {answer.application_id}")


@application.command("disable")
@with_api
@flags.text("app-id", "The application.", required=True)
async def disable(api: Api, app_id: str) -> None:
    """Disable an application."""
    request = pb.DisableApplicationRequest(application_id=app_id)
    answer = await attempt("disable application", api.DisableApplication(request))
    logger.info(f"Successfully disable application id = {answer.application_id}")


def label_pairs(items: tuple[str, ...]) -> dict[str, str]:
    """Parses `KEY:VALUE` items; malformed ones are dropped, as upstream does."""
    pairs = (item.partition(":") for item in items if item.count(":") == 1)
    return {key: value for key, _, value in pairs}


def validate_kinds(names: tuple[str, ...]) -> None:
    """Raises UserMistake for an unknown kind; empty names are ignored."""
    for name in names:
        if name:
            _parse_kind(name, "{} is invalid application kind")


def _parse_kind(name: str, message: str) -> ApplicationKind:
    try:
        return ApplicationKind[name]
    except KeyError as e:
        valid = ", ".join(kind.name for kind in ApplicationKind)
        raise UserMistake(message.format(name), hint=f"use one of {valid}") from e
