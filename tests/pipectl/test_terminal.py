# SPDX-License-Identifier: Apache-2.0
"""Texts of a branch, a live state or a stage do not change what the terminal of a user shows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.document import to_json
from pipecd.pipectl.follow import print_block
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, Application
from pipecd.proto.model.deployment_pb2 import PipelineStage
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from servers.control_plane import StartControlPlane
from servers.polling import eventually
from servers.tenants import application_draft

# Sets the title, clears the screen, and hides a line behind the next one.
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\nmalicious: true\rharmless: true\n\tb\x9b31m"
SHOWN = "a]0;owned\nmalicious: trueharmless: true\n\tb"


def previewed(
    plane: Any, typed_at: Any, piped: str, flags: str = ""
) -> Callable[[str], Awaitable[tuple[int, str, str]]]:
    """Types a plan preview whose result has the given text as a name and as details."""

    async def preview(text: str) -> tuple[int, str, str]:
        by = PipedCaller("demo", piped)

        def start(stored: Piped) -> None:
            stored.started_at = to_unix(utc_now())

        await plane.running.stores.pipeds.update(piped, start)
        line = (
            "plan-preview --repo-remote-url file:///tmp/repo --head-branch b --base-branch main"
            f" --head-commit {'a' * 40} {flags}"
        )
        requested = asyncio.create_task(typed_at(plane)(line))
        commands = plane.running.cases.commands
        unhandled = await eventually(lambda: commands.list_unhandled(by=by))
        result = ApplicationPlanPreviewResult(
            application_id="x", application_name=text, plan_details=text.encode()
        )
        output = to_json(PlanPreviewCommandResult(results=[result])).encode()
        report = CommandResult(
            unhandled[0].id, CommandStatus.SUCCEEDED, to_unix(utc_now()), output=output
        )
        await commands.report_handled(report, by=by)
        return await requested

    return preview


async def test_a_plan_preview_of_a_branch_has_no_control_characters(
    start_plane: StartControlPlane,
    typed_at: Any,
    piped_with_repository: Callable[[Any], Awaitable[str]],
) -> None:
    async with start_plane() as plane:
        preview = previewed(plane, typed_at, await piped_with_repository(plane))
        code, out, _ = await preview(HOSTILE)
        assert code == 0
        assert out.count(SHOWN) == 2
        assert out.replace("\n", "").replace("\t", "").isprintable()


async def test_differences_with_git_have_no_control_characters(
    start_plane: StartControlPlane,
    typed_at: Any,
    piped_with_repository: Callable[[Any], Awaitable[str]],
) -> None:
    async with start_plane() as plane:
        draft = application_draft("web", await piped_with_repository(plane))
        draft.git_path.repo.id = "repo"
        id = await plane.running.cases.applications.add(draft, by=plane.admin)

        def differ(application: Application) -> None:
            application.sync_state.status = OUT_OF_SYNC
            application.sync_state.timestamp = 1
            application.sync_state.reason = HOSTILE

        await plane.running.stores.applications.update(id, differ)
        assert (await typed_at(plane)(f"application diff --app-id {id}"))[1] == f"{SHOWN}\n"


def test_lines_of_a_log_begin_with_the_name_of_a_stage_without_control_characters(
    capsys: Any,
) -> None:
    block = LogBlock(index=1, log="\x1b[0m\x1b[1;32mx\x1b[2J [0m", created_at=1)
    print_block(PipelineStage(id="s", name="\x1b[2JDEPLOY"), block, None)
    assert capsys.readouterr().out == "DEPLOY  x [0m\n"
