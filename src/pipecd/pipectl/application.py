# SPDX-License-Identifier: Apache-2.0
"""`pipectl application`: add, sync, get, list, delete, disable."""

from typing import Any

import click

from pipecd.commandline import flags
from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.model.application import ApplicationKind
from pipecd.model.document import to_json
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.pipectl.client import Api, asked, logger, print_json, told, with_api
from pipecd.pipectl.waiting import deployment_of, statuses, until_status
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
@flags.text("piped-id", "The piped that looks after it.", required=True)
@flags.text("platform-provider", "The platform provider to deploy to.", required=True)
@flags.text("repo-id", "The repository, by its id in the piped configuration.", required=True)
@flags.text("app-dir", "The directory inside the repository.", required=True)
@flags.text("config-file-name", "The name of its configuration file.", default=DEFAULT_CONFIG_FILE)
@flags.text("labels", "Labels, as k=v,k2=v2.")
@flags.text("description", "What it is.")
async def add(api: Api, **given: Any) -> None:
    """Add a new application."""
    request = pb.AddApplicationRequest(
        name=given["app_name"],
        piped_id=given["piped_id"],
        git_path=ApplicationGitPath(
            repo=ApplicationGitRepository(id=given["repo_id"]),
            path=given["app_dir"],
            config_filename=given["config_file_name"],
        ),
        kind=WireKind.Value(_kind(given["app_kind"], "unsupported application kind {}").name),
        platform_provider=given["platform_provider"],
        description=given["description"],
        labels=_labels(given["labels"]),
    )
    answer = await told("add application", api.AddApplication(request))
    logger.info(f"Successfully added application id = {answer.application_id}")


@application.command("sync")
@with_api
@flags.text("app-id", "The application.", required=True)
@flags.strings("wait-status", "Wait until the deployment is at one of these statuses.")
@flags.duration("check-interval", "How often to look.", default="15s")
@flags.duration("timeout", "How long to wait.", default="5m")
async def sync(api: Api, app_id: str, wait_status: tuple[str, ...], **patience: float) -> None:
    """Deploy an application now."""
    wanted = statuses(wait_status)
    check_interval, timeout = patience["check_interval"], patience["timeout"]
    request = pb.SyncApplicationRequest(application_id=app_id)
    try:
        answer = await asked(api.SyncApplication(request))
    except PipecdError as e:
        # Upstream says this one without a colon, and scripts may look for it.
        raise type(e)(f"failed to sync application {e}") from e
    logger.info("Sent a request to sync application and waiting to be accepted...")
    deployment = await deployment_of(api, answer.command_id, every=check_interval, within=timeout)
    logger.info(f"Successfully triggered deployment {deployment}")
    if wanted:
        await until_status(api, deployment, wanted, every=check_interval, within=timeout)


@application.command("get")
@with_api
@flags.text("app-id", "The application.", required=True)
async def get(api: Api, app_id: str) -> None:
    """Show an application."""
    request = pb.GetApplicationRequest(application_id=app_id)
    answer = await told("get application", api.GetApplication(request))
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
        _kind(given["app_kind"], "invalid application kind")
    request = pb.ListApplicationsRequest(
        name=given["app_name"],
        kind=given["app_kind"],
        piped_id=given["piped_id"],
        disabled=given["disabled"],
        cursor=given["cursor"],
        limit=given["limit"],
        labels=label_pairs(given["label"]),
    )
    print_json(to_json(await told("list application", api.ListApplications(request))))


@application.command("delete")
@with_api
@flags.text("app-id", "The application.", required=True)
async def delete(api: Api, app_id: str) -> None:
    """Delete an application."""
    request = pb.DeleteApplicationRequest(application_id=app_id)
    answer = await told("delete application", api.DeleteApplication(request))
    logger.info(f"Successfully deleted application id = {answer.application_id}")


@application.command("disable")
@with_api
@flags.text("app-id", "The application.", required=True)
async def disable(api: Api, app_id: str) -> None:
    """Disable an application."""
    request = pb.DisableApplicationRequest(application_id=app_id)
    answer = await told("disable application", api.DisableApplication(request))
    logger.info(f"Successfully disable application id = {answer.application_id}")


def label_pairs(items: tuple[str, ...]) -> dict[str, str]:
    """`KEY:VALUE` items as a map; others are dropped, as upstream does."""
    pairs = (item.partition(":") for item in items if item.count(":") == 1)
    return {key: value for key, _, value in pairs}


def check_kinds(names: tuple[str, ...]) -> None:
    """Refuses a kind that does not exist; an empty name asks for nothing."""
    for name in names:
        if name:
            _kind(name, "{} is invalid application kind")


def _labels(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(",") if item.count("=") == 1)
    return {key: value for key, _, value in pairs}


def _kind(name: str, words: str) -> ApplicationKind:
    try:
        return ApplicationKind[name]
    except KeyError as e:
        known = ", ".join(kind.name for kind in ApplicationKind)
        raise UserMistake(words.format(name), hint=f"use one of {known}") from e
