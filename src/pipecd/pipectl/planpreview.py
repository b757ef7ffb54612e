# SPDX-License-Identifier: Apache-2.0
"""`pipectl plan-preview`: asks every piped of a repository what a branch would deploy."""

import asyncio
from pathlib import Path
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.model.backoff import Backoff
from pipecd.model.errors import NotFound, Unavailable
from pipecd.pipectl.client import Api, asked, shown, with_api
from pipecd.pipectl.previewtext import as_json, as_text, sorted_results
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult
from pipecd.proto.service import api_pb2 as pb

# A small change is previewed within a second; who waits for a large one need not ask that often.
_BACKOFF = Backoff(first=0.25, longest=10.0)


@click.command("plan-preview")
@with_api
@flags.text("repo-remote-url", "The remote of the repository.", required=True)
@flags.text("head-branch", "The branch with the change.", required=True)
@flags.text("head-commit", "The commit with the change.", required=True)
@flags.text("base-branch", "The branch it will be merged into.", required=True)
@flags.text("out", "A file for the result as JSON.")
@flags.duration("timeout", "How long to wait.", default="10m")
@flags.duration("piped-handle-timeout", "How long a piped may take.", default="5m")
@flags.strings("sort-label-keys", "Sort applications by the values of these labels.")
async def plan_preview(api: Api, **given: Any) -> None:
    """Show what a branch would deploy once it is merged."""
    request = pb.RequestPlanPreviewRequest(
        repo_remote_url=given["repo_remote_url"],
        base_branch=given["base_branch"],
        head_branch=given["head_branch"],
        head_commit=given["head_commit"],
        timeout=int(given["piped_handle_timeout"]),
    )
    requested = api.RequestPlanPreview(request)
    answer = await shown(lambda e: f"Failed to request plan-preview: {e}", requested)
    if not answer.commands:
        click.echo("There is no piped that is handling the given Git repository")
        await _write(given["out"], [])
        return
    commands = list(answer.commands)
    ids = " ".join(commands)
    click.echo(f"Requested plan-preview, waiting for its results (commands: [{ids}])")
    waiting = _results(api, commands, given["timeout"], int(given["piped_handle_timeout"]))
    results = await shown(lambda e: f"Failed to retrieve plan-preview results: {e}", waiting)
    ordered = sorted_results(results, given["sort_label_keys"])
    click.echo(as_text(ordered), nl=False)
    await _write(given["out"], ordered)


async def _write(path: str, results: list[PlanPreviewCommandResult]) -> None:
    """Whoever asked for a file finds one, also when nothing was planned."""
    if path:
        await asyncio.to_thread(Path(path).write_text, as_json(results))


async def _results(
    api: Api, commands: list[str], within: float, piped_timeout: int
) -> list[PlanPreviewCommandResult]:
    request = pb.GetPlanPreviewResultsRequest(
        commands=commands, command_handle_timeout=piped_timeout
    )
    try:
        async with asyncio.timeout(within):
            pauses = iter(_BACKOFF)
            while True:
                await asyncio.sleep(next(pauses))
                try:
                    return list((await asked(api.GetPlanPreviewResults(request))).results)
                except NotFound:
                    click.echo("waiting...")
                except Unavailable as e:
                    # The pipeds go on with the preview while the control plane is away.
                    click.echo(f"{e}\ntrying again...")
    except TimeoutError as e:
        raise Unavailable("context deadline exceeded", hint="raise --timeout") from e
