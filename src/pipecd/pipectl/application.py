# SPDX-License-Identifier: Apache-2.0
"""`pipectl application`: add, edit, sync, get, list, diff, delete, enable, disable."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.commandline.github_actions import workflow_commands_stopped
from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.model.application import ApplicationKind, SyncStatus, name_problem
from pipecd.model.errors import AlreadyExists, Conflict, PipecdError, UserMistake
from pipecd.pipectl import completion
from pipecd.pipectl.client import Api, Connection, attempt, call, logger, with_api, with_connection
from pipecd.pipectl.new_application import add_application
from pipecd.pipectl.output import (
    FORMS,
    id_output_flag,
    output_flag,
    print_document,
    print_id,
    print_result,
    printable,
    printable_lines,
    report_more,
)
from pipecd.pipectl.views import APPLICATION_SOURCES, APPLICATIONS, SYNC_STATES, sync_reason
from pipecd.pipectl.wait import Polling, parse_statuses, wait_for_deployment, wait_for_status
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.common_pb2 import ApplicationKind as WireKind
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import api_pb2 as pb

_APPLICATION = flags.text(
    "app-id", "The application.", required=True, complete=completion.applications
)


@click.group()
def application() -> None:
    """Work with applications."""


@application.command("add")
@with_connection
@flags.text("app-name", "The name of the application.", required=True)
@flags.text(
    "app-kind", "The kind: KUBERNETES, TERRAFORM, LAMBDA, CLOUDRUN, ECS.", complete=completion.kinds
)
@flags.text("piped-id", "The piped that deploys it.", required=True, complete=completion.pipeds)
@flags.text("platform-provider", "The platform provider to deploy to, of a piped that has some.")
@flags.strings("deploy-target", "A deploy target of a plugin, as PLUGIN=TARGET.")
@flags.text("repo-id", "The repository, by its id in the piped configuration.", required=True)
@flags.text("app-dir", "The directory inside the repository.", required=True)
@flags.text("config-file-name", "The name of its configuration file.", default=DEFAULT_CONFIG_FILE)
@flags.text("labels", "Labels, as k=v,k2=v2.")
@flags.text("description", "What it is.")
@id_output_flag
async def add(connection: Connection, **given: Any) -> None:
    """Add a new application."""
    api = connection.api
    labels = parse_labels(tuple(given["labels"].split(",")) if given["labels"] else (), "=")
    if problem := name_problem(given["app_name"]):
        raise UserMistake(problem)
    targets = _parse_targets(given["deploy_target"])
    kind, provider = await _platform(api, given)
    await _check_new(api, given, provider, targets)
    request = pb.AddApplicationRequest(
        name=given["app_name"],
        piped_id=given["piped_id"],
        git_path=ApplicationGitPath(
            repo=ApplicationGitRepository(id=given["repo_id"]),
            path=given["app_dir"],
            config_filename=given["config_file_name"],
        ),
        kind=WireKind.Value(kind.name),
        platform_provider=provider,
        description=given["description"],
        labels=labels,
    )
    application_id = await add_application(connection, request, targets)
    logger.info(f"Successfully added application id = {application_id}")
    print_id(given["output"], "application_id", application_id)
    if targets:
        await _warn_of_unknown_targets(api, application_id, given["piped_id"], targets)


async def _check_new(
    api: Api, given: Mapping[str, Any], provider: str, targets: Mapping[str, DeployTargets]
) -> None:
    """Refuses an application that is registered already, which a control plane would add again.

    A file may be deployed to several places, each by an application of its own. A piped gives an
    application the name in its file, so the same place counts as well as the same name.
    """
    path = (given["repo_id"], given["app_dir"], given["config_file_name"])
    async for known in _applications_of(api, given["piped_id"]):
        git = known.git_path
        if (git.repo.id, git.path, git.config_filename) != path:
            continue
        is_same_place = known.platform_provider == provider and (
            dict(known.deploy_targets_by_plugin) == targets
        )
        if known.name == given["app_name"] or is_same_place:
            raise AlreadyExists(f"application {known.name} is registered already as {known.id}")


async def _applications_of(api: Api, piped_id: str) -> AsyncIterator[Application]:
    """The enabled and the disabled applications of a piped."""
    for disabled in (False, True):
        cursor = ""
        while True:
            request = pb.ListApplicationsRequest(
                piped_id=piped_id, disabled=disabled, limit=500, cursor=cursor
            )
            listed = await attempt("list application", api.ListApplications(request))
            for application in listed.applications:
                yield application
            cursor = listed.cursor
            if not cursor or not listed.applications:
                break


def _parse_targets(items: tuple[str, ...]) -> dict[str, DeployTargets]:
    targets: dict[str, DeployTargets] = {}
    for item in items:
        plugin, _, target = item.partition("=")
        if not plugin or not target:
            raise UserMistake(f"{item} is not a deploy target", hint="write it as PLUGIN=TARGET")
        targets.setdefault(plugin, DeployTargets()).deploy_targets.append(target)
    return targets


async def _warn_of_unknown_targets(
    api: Api, app_id: str, piped_id: str, targets: Mapping[str, DeployTargets]
) -> None:
    """Warns of targets that the piped did not report; it may be given them later.

    What the command has changed stays, so that an error is nothing but another warning.
    """
    try:
        piped_id = piped_id or (await _get(api, app_id)).piped_id
        answer = await attempt("get piped", api.GetPiped(pb.GetPipedRequest(piped_id=piped_id)))
    except PipecdError as e:
        logger.warning(f"the deploy targets are not checked: {e}")
        return
    for warning in unknown_targets(answer.piped, targets):
        logger.warning(printable(warning))


def unknown_targets(piped: Piped, targets: Mapping[str, DeployTargets]) -> list[str]:
    """A sentence for each deploy target that a piped with plugins has not reported."""
    if not piped.plugins:
        return []
    known = [
        f"{plugin.name}={target}" for plugin in piped.plugins for target in plugin.deploy_targets
    ]
    requested = [
        f"{name}={target}" for name, those in targets.items() for target in those.deploy_targets
    ]
    has = f"it has {', '.join(known)}" if known else "it has none"
    return [
        f"piped {piped.name} has no deploy target {target} yet; {has}"
        for target in requested
        if target not in known
    ]


async def _platform(api: Api, given: Mapping[str, Any]) -> tuple[ApplicationKind, str]:
    """Returns the kind and the platform provider of a new application.

    Only a piped with platform providers needs them: a provider has one kind.
    """
    name, provider = given["app_kind"], given["platform_provider"]
    kind = _parse_kind(name, "unsupported application kind {}") if name else None
    if kind is not None and provider:
        return kind, provider
    request = pb.GetPipedRequest(piped_id=given["piped_id"])
    piped = (await attempt("get piped", api.GetPiped(request))).piped
    kinds = {each.name: each.type for each in piped.platform_providers}
    if not kinds:
        # For an application of plugins the kind is only a label.
        return kind or ApplicationKind.KUBERNETES, provider
    if provider not in kinds:
        known = ", ".join(f"{name} ({type_})" for name, type_ in kinds.items())
        what = f"piped {piped.name} has no platform provider {provider}".rstrip()
        raise UserMistake(what, hint=f"set --platform-provider to one of: {known}")
    return kind or _parse_kind(kinds[provider], "unsupported application kind {}"), provider


@application.command("sync")
@with_api
@_APPLICATION
@flags.strings(
    "wait-status",
    "Wait until the deployment is at one of these statuses.",
    complete=completion.statuses,
)
@flags.duration("check-interval", "The longest delay between two checks.", default="15s")
@flags.duration("timeout", "How long to wait.", default="5m")
@id_output_flag
async def sync(
    api: Api, app_id: str, wait_status: tuple[str, ...], output: str | None, **flags: float
) -> None:
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
    print_id(output, "deployment_id", deployment)
    if statuses:
        logger.info("Waiting until the deployment reaches one of the specified statuses")
        await wait_for_status(api, deployment, statuses, polling)


@application.command("get")
@with_api
@_APPLICATION
@output_flag
async def get(api: Api, app_id: str, output: str) -> None:
    """Show an application."""
    application = await _get(api, app_id)
    print_result(output, application, [application], APPLICATIONS)
    if output == "table":
        click.echo()
        print_result(output, application, [application], APPLICATION_SOURCES)
        if reason := sync_reason(application):
            with workflow_commands_stopped():
                click.echo(f"\n{printable(reason)}")


@application.command("diff", short_help="Show how the live state differs from Git.")
@with_api
@_APPLICATION
@flags.switch("exit-code", "Exit with 1 if the application is out of sync.")
@click.option("--output", type=click.Choice(FORMS), help="Print the difference in this form.")
async def diff(api: Api, app_id: str, exit_code: bool, output: str | None) -> None:
    """Show how the live state of an application differs from Git, as of the last comparison."""
    application = await _get(api, app_id)
    state, status = application.sync_state, SyncStatus(application.sync_state.status)
    if output is not None:
        document = {"application_id": app_id, "status": status.name, "reason": state.reason}
        differing = [application] if output == "table" or status is SyncStatus.OUT_OF_SYNC else []
        print_document(output, json.dumps(document), differing, SYNC_STATES)
    elif status is SyncStatus.OUT_OF_SYNC:
        with workflow_commands_stopped():
            click.echo(printable_lines(state.reason or state.short_reason))
    else:
        reason = sync_reason(application)
        logger.info(f"Application {app_id} is {status.name}{reason and ': '}{reason}")
    if exit_code and status is SyncStatus.OUT_OF_SYNC:
        raise PipecdError(f"application {app_id} is out of sync")


@application.command("edit", short_help="Change where an application is deployed.")
@with_api
@_APPLICATION
@flags.text("piped-id", "The piped that deploys it from now on.", complete=completion.pipeds)
@flags.text("platform-provider", "The platform provider to deploy to.")
@flags.text("config-file-name", "The name of its configuration file.")
@flags.strings("deploy-target", "All its deploy targets, as PLUGIN=TARGET.")
@id_output_flag
async def edit(
    api: Api, app_id: str, deploy_target: tuple[str, ...], output: str | None, **given: str
) -> None:
    """Change where an application is deployed; flags that are not set change nothing."""
    if not deploy_target and not any(given.values()):
        raise UserMistake("there is nothing to change", hint="set one of the flags; see --help")
    targets = _parse_targets(deploy_target)
    if any(given.values()):
        current = await _get(api, app_id)
        git_path = ApplicationGitPath()
        git_path.CopyFrom(current.git_path)
        git_path.config_filename = given["config_file_name"] or git_path.config_filename
        request = pb.UpdateApplicationRequest(
            application_id=app_id,
            piped_id=given["piped_id"] or current.piped_id,
            platform_provider=given["platform_provider"] or current.platform_provider,
            git_path=git_path,
        )
        await attempt("update application", api.UpdateApplication(request))
    if targets:
        set_targets = pb.UpdateApplicationDeployTargetsRequest(
            application_id=app_id, deploy_targets_by_plugin=targets
        )
        await attempt("update application", api.UpdateApplicationDeployTargets(set_targets))
    logger.info(f"Successfully updated application id = {app_id}")
    print_id(output, "application_id", app_id)
    if targets:
        await _warn_of_unknown_targets(api, app_id, given["piped_id"], targets)


async def _get(api: Api, app_id: str) -> Application:
    request = pb.GetApplicationRequest(application_id=app_id)
    return (await attempt("get application", api.GetApplication(request))).application


@application.command("list")
@with_api
@flags.text("app-name", "Only those of this name.")
@flags.text("app-kind", "Only those of this kind.", complete=completion.kinds)
@flags.text("piped-id", "Only those of this piped.", complete=completion.pipeds)
@flags.switch("disabled", "Only disabled ones.")
@flags.text("cursor", "Where an earlier list ended.")
@flags.number("limit", "How many at most.", default=10)
@flags.strings("label", "Only those with this label, as KEY:VALUE.")
@output_flag
async def list_(api: Api, **given: Any) -> None:
    """List applications."""
    if given["app_kind"]:
        given["app_kind"] = _parse_kind(given["app_kind"], "invalid application kind {}").name
    request = pb.ListApplicationsRequest(
        name=given["app_name"],
        kind=given["app_kind"],
        piped_id=given["piped_id"],
        disabled=given["disabled"],
        cursor=given["cursor"],
        limit=given["limit"],
        labels=parse_labels(given["label"], ":"),
    )
    answer = await attempt("list application", api.ListApplications(request))
    print_result(given["output"], answer, answer.applications, APPLICATIONS)
    report_more(given["output"], answer.cursor)


@application.command("delete")
@with_api
@_APPLICATION
@id_output_flag
async def delete(api: Api, app_id: str, output: str | None) -> None:
    """Delete an application."""
    if (await _get(api, app_id)).deleted:
        raise Conflict(f"application {app_id} is deleted already")
    request = pb.DeleteApplicationRequest(application_id=app_id)
    answer = await attempt("delete application", api.DeleteApplication(request))
    logger.info(f"Successfully deleted application id = {answer.application_id}")
    print_id(output, "application_id", answer.application_id)


@application.command("enable")
@with_api
@_APPLICATION
@id_output_flag
async def enable(api: Api, app_id: str, output: str | None) -> None:
    """Enable a disabled application."""
    request = pb.EnableApplicationRequest(application_id=app_id)
    answer = await attempt("enable application", api.EnableApplication(request))
    logger.info(f"Successfully enabled application id = {answer.application_id}")
    print_id(output, "application_id", answer.application_id)


@application.command("disable")
@with_api
@_APPLICATION
@id_output_flag
async def disable(api: Api, app_id: str, output: str | None) -> None:
    """Disable an application."""
    request = pb.DisableApplicationRequest(application_id=app_id)
    answer = await attempt("disable application", api.DisableApplication(request))
    logger.info(f"Successfully disable application id = {answer.application_id}")
    print_id(output, "application_id", answer.application_id)


def parse_labels(items: tuple[str, ...], separator: str) -> dict[str, str]:
    """Parses labels such as `KEY:VALUE`; upstream drops malformed ones without a word."""
    pairs: dict[str, str] = {}
    for item in items:
        key, found, value = item.partition(separator)
        if not key or not found or separator in value:
            raise UserMistake(f"invalid label {item!r}", hint=f"write KEY{separator}VALUE")
        pairs[key] = value
    return pairs


def parse_kinds(names: tuple[str, ...]) -> list[str]:
    """The names of kinds as the API spells them; empty names are ignored."""
    return [_parse_kind(name, "{} is invalid application kind").name for name in names if name]


def _parse_kind(name: str, message: str) -> ApplicationKind:
    try:
        # The tables show plugins, whose names are in lower case.
        return ApplicationKind[name.upper()]
    except KeyError as e:
        valid = ", ".join(kind.name for kind in ApplicationKind)
        raise UserMistake(message.format(name), hint=f"use one of {valid}") from e
