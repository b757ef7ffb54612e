# SPDX-License-Identifier: Apache-2.0
"""`pipectl plan-preview`: shows what a branch would deploy once it is merged."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import grpc.aio

from pipecd.commandline import flags
from pipecd.commandline.github_actions import workflow_commands_stopped
from pipecd.model.application import ApplicationKind
from pipecd.model.backoff import Backoff
from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import NotFound, PipecdError, Unavailable
from pipecd.pipectl.client import Api, Connection, call, call_or_print, with_connection
from pipecd.pipectl.output import printable_lines
from pipecd.pipectl.plan_preview_comment import as_markdown
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.plan_preview_pages_pb2 import (
    GetPlanPreviewPagesRequest,
    GetPlanPreviewPagesResponse,
)

# A small change is previewed within a second; a large one need not be polled that often.
_BACKOFF = Backoff(first=0.25, longest=10.0)

App = ApplicationPlanPreviewResult
_BEGIN, _END = "  ---DETAILS_BEGIN---", "  ---DETAILS_END---"
_NOTHING = (
    "\nThere are no updated applications. It means no deployment will be triggered "
    "once this pull request got merged.\n"
)


@click.command("plan-preview")
@with_connection
@flags.text("repo-remote-url", "The remote of the repository.", required=True)
@flags.text("head-branch", "The branch with the change.", required=True)
@flags.text("head-commit", "The commit with the change.", required=True)
@flags.text("base-branch", "The branch it will be merged into.", required=True)
@flags.text("out", "A file for the result as JSON.")
@flags.text("comment-out", "A file for the result as a comment on the pull request, in Markdown.")
@flags.duration("timeout", "How long to wait.", default="10m")
@flags.duration("piped-handle-timeout", "How long a piped may take.", default="5m")
@flags.strings("sort-label-keys", "Sort applications by the values of these labels.")
async def plan_preview(connection: Connection, **given: Any) -> None:
    """Show what a branch would deploy once it is merged."""
    with workflow_commands_stopped():
        await _preview(connection, given)


async def _preview(connection: Connection, given: Mapping[str, Any]) -> None:
    api = connection.api
    request = pb.RequestPlanPreviewRequest(
        repo_remote_url=given["repo_remote_url"],
        base_branch=given["base_branch"],
        head_branch=given["head_branch"],
        head_commit=given["head_commit"],
        timeout=int(given["piped_handle_timeout"]),
    )
    requested = api.RequestPlanPreview(request)
    answer = await call_or_print(lambda e: f"Failed to request plan-preview: {e}", requested)
    if not answer.commands:
        click.echo("There is no piped that is handling the given Git repository")
        await _write(given, [], {})
        return
    commands = list(answer.commands)
    ids = " ".join(commands)
    click.echo(f"Requested plan-preview, waiting for its results (commands: [{ids}])")
    pages = await _pages(connection, commands)
    waiting = _wait_for_results(api, commands, given["timeout"], int(given["piped_handle_timeout"]))
    results = await call_or_print(
        lambda e: f"Failed to retrieve plan-preview results: {e}", waiting
    )
    ordered = sorted_results(results, given["sort_label_keys"])
    click.echo(printable_lines(as_text(ordered)), nl=False)
    await _write(given, ordered, pages)


async def _pages(connection: Connection, commands: Sequence[str]) -> dict[str, str]:
    """Prints and returns where the console shows the previews; nothing at one of upstream."""
    request = GetPlanPreviewPagesRequest(commands=commands)
    try:
        response = await connection.own_rpc(
            "GetPlanPreviewPages", request, GetPlanPreviewPagesResponse
        )
    except (PipecdError, grpc.aio.AioRpcError):
        # The links are an extra: the preview goes on without them.
        return {}
    for page in response.pages:
        click.echo(f"See {page.url}", err=True)
    return {page.command: page.url for page in response.pages}


async def _write(
    given: Mapping[str, Any], results: list[PlanPreviewCommandResult], pages: Mapping[str, str]
) -> None:
    """Writes the requested files, also when no application changes."""
    if path := given["out"]:
        await asyncio.to_thread(Path(path).write_text, as_json(results))
    if path := given["comment_out"]:
        comment = as_markdown(results, given["head_commit"], pages)
        await asyncio.to_thread(Path(path).write_text, comment)


async def _wait_for_results(
    api: Api, commands: list[str], seconds: float, piped_timeout: int
) -> list[PlanPreviewCommandResult]:
    request = pb.GetPlanPreviewResultsRequest(
        commands=commands, command_handle_timeout=piped_timeout
    )
    try:
        async with asyncio.timeout(seconds):
            delays = iter(_BACKOFF)
            while True:
                delay = next(delays)
                try:
                    return list((await call(api.GetPlanPreviewResults(request))).results)
                except NotFound:
                    click.echo("waiting...")
                except Unavailable as e:
                    # The pipeds go on with the preview while the control plane is unavailable.
                    click.echo(f"{e}\nretrying in {delay:g}s...")
                await asyncio.sleep(delay)
    except TimeoutError as e:
        raise Unavailable("context deadline exceeded", hint="raise --timeout") from e


def sorted_results(
    results: Sequence[PlanPreviewCommandResult], label_keys: Sequence[str]
) -> list[PlanPreviewCommandResult]:
    """Sorts pipeds by id; their applications by the values of labels, then by name."""
    ordered: list[PlanPreviewCommandResult] = []
    for result in sorted(results, key=lambda r: r.piped_id):
        copy = PlanPreviewCommandResult()
        copy.CopyFrom(result)
        apps = sorted(
            copy.results,
            key=lambda a: ([a.labels.get(k, "") for k in label_keys], a.application_name),
        )
        del copy.results[:]
        copy.results.extend(apps)
        ordered.append(copy)
    return ordered


def as_text(results: Sequence[PlanPreviewCommandResult]) -> str:
    """Returns the text for the terminal and for comments on pull requests."""
    good, bad = _split(results)
    pipeds = [r for r in results if r.error]
    if not good and not bad and not pipeds:
        return _NOTHING
    text = ""
    if good:
        count = "1 application" if len(good) == 1 else f"{len(good)} applications"
        text += f"\nHere are plan-preview for {count}:\n"
        text += "".join(_planned(i, app) for i, app in enumerate(good, 1))
    note = "\nNOTE: An error occurred while building plan-preview for"
    if bad:
        text += f"{note} the following {_several(len(bad), 'application')}:\n"
        text += "".join(_failed(i, app) for i, app in enumerate(bad, 1))
    if pipeds:
        text += f"{note} applications of the following {_several(len(pipeds), 'Piped')}:\n"
        text += "".join(
            f"\n{i}. piped: {p.piped_name} ({p.piped_id})\n  reason: {p.error}\n"
            for i, p in enumerate(pipeds, 1)
        )
    return text


def as_json(results: Sequence[PlanPreviewCommandResult]) -> str:
    """Returns the content of `--out`; empty lists are null."""
    good, bad = _split(results)
    planned = [
        _application_fields(a)
        | {
            "SyncStrategy": SyncStrategy(a.sync_strategy).name,
            "PlanSummary": a.plan_summary.decode(),
            "PlanDetails": a.plan_details.decode(),
            "NoChange": a.no_change,
            "PluginPlanResults": _plugin_results(a),
        }
        for a in good
    ]
    failed = [
        _application_fields(a)
        | {
            "Reason": a.error,
            "PlanDetails": a.plan_details.decode(),
            "PluginPlanResults": _plugin_results(a),
        }
        for a in bad
    ]
    pipeds = [
        {
            "PipedID": r.piped_id,
            "PipedName": r.piped_name,
            "PipedURL": r.piped_url,
            "Reason": r.error,
        }
        for r in results
        if r.error
    ]
    return json.dumps(
        {
            "Applications": planned or None,
            "FailureApplications": failed or None,
            "FailurePipeds": pipeds or None,
        }
    )


def _split(results: Sequence[PlanPreviewCommandResult]) -> tuple[list[App], list[App]]:
    apps = [app for r in results if not r.error for app in r.results]
    return [a for a in apps if not a.error], [a for a in apps if a.error]


def _several(n: int, noun: str) -> str:
    return noun if n == 1 else f"{n} {noun}s"


def _all_plugins(app: App) -> str:
    return ", ".join(app.plugin_names)


def _planned_plugins(app: App) -> str:
    return ", ".join(dict.fromkeys(r.plugin_name for r in app.plugin_plan_results))


def _title(i: int, app: App, plugins: str) -> str:
    env = f", env: {app.labels['env']}" if app.labels.get("env") else ""
    if app.plugin_names:
        return f"\n{i}. app: {app.application_name}{env}, {plugins}\n"
    kind = ApplicationKind(app.application_kind).name
    return f"\n{i}. app: {app.application_name}{env}, kind: {kind}\n"


def _planned(i: int, app: App) -> str:
    text = _title(i, app, f"plan plugin(s): {_planned_plugins(app)}")
    text += f"  sync strategy: {SyncStrategy(app.sync_strategy).name}\n"
    if not app.plugin_names:
        return f"{text}  summary: {app.plan_summary.decode()}\n{_details(app)}"
    text += f"  plugin(s): {_all_plugins(app)}\n  summary:\n"
    for r in app.plugin_plan_results:
        text += f"  - {r.plugin_name}({r.deploy_target}): {r.plan_summary.decode()}\n"
    return text + "  details:\n\n" + _plugin_details(app)


def _failed(i: int, app: App) -> str:
    text = _title(i, app, f"plugin(s): {_all_plugins(app)}") + f"  reason: {app.error}\n"
    if app.plugin_plan_results:
        return text + "  details:\n\n" + _plugin_details(app)
    return text + (_details(app) if app.plan_details else "")


def _details(app: App) -> str:
    return f"  details:\n\n{_BEGIN}\n{app.plan_details.decode()}\n{_END}\n"


def _plugin_details(app: App) -> str:
    return "".join(
        f"  - {r.plugin_name}({r.deploy_target}):\n{_BEGIN}\n{r.plan_details.decode()}\n{_END}\n\n"
        for r in app.plugin_plan_results
    )


def _application_fields(app: App) -> dict[str, Any]:
    return {
        "ApplicationID": app.application_id,
        "ApplicationName": app.application_name,
        "ApplicationURL": app.application_url,
        "ApplicationKind": ApplicationKind(app.application_kind).name,
        "ApplicationDirectory": app.application_directory,
        "Env": app.labels.get("env", ""),
        "PlannedPluginNames": _planned_plugins(app),
        "AllPluginNames": _all_plugins(app),
    }


def _plugin_results(app: App) -> list[dict[str, str]] | None:
    return [
        {
            "plugin_name": r.plugin_name,
            "deploy_target": r.deploy_target,
            "plan_summary": base64.b64encode(r.plan_summary).decode(),
            "plan_details": base64.b64encode(r.plan_details).decode(),
            "diff_language": r.diff_language,
        }
        for r in app.plugin_plan_results
    ] or None
