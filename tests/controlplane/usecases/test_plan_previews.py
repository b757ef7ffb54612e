# SPDX-License-Identifier: Apache-2.0
"""Plan previews: requests, results and timeouts."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.clock import Now, to_unix
from pipecd.model.command import PREVIEW_COUNTS_KEY, CommandStatus
from pipecd.model.document import to_json
from pipecd.model.errors import Conflict, Denied, NotFound
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest


def preview_request(*, branch: str = "main") -> RequestPlanPreviewRequest:
    return RequestPlanPreviewRequest(
        repo_remote_url="git@github.com:shop/site.git",
        head_branch="feature",
        head_commit="abc",
        base_branch=branch,
        timeout=60,
    )


async def test_a_request_sends_commands_to_pipeds_that_watch_the_branch(
    cases: UseCases,
    program: ApiKeyCaller,
    piped: PipedCaller,
    other_piped: PipedCaller,
    admin: User,
) -> None:
    del other_piped
    assert await cases.plan_previews.request(preview_request(branch="other"), by=program) == ()
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert (command.id, command.type) == (id, Command.BUILD_PLAN_PREVIEW)
    assert (command.commander, command.build_plan_preview.repository_id) == ("pipectl", "site")
    await cases.pipeds.disable(piped.piped, by=admin)
    assert await cases.plan_previews.request(preview_request(), by=program) == ()


async def test_a_read_only_api_key_cannot_request_a_preview(
    cases: UseCases, program: ApiKeyCaller
) -> None:
    reader = replace(program, may_write=False)
    with pytest.raises(Denied):
        await cases.plan_previews.request(preview_request(), by=reader)
    with pytest.raises(Denied):
        await cases.plan_previews.results([], by=reader)


async def test_a_result_contains_names_and_urls(
    cases: UseCases, program: ApiKeyCaller, piped: PipedCaller, now: Now
) -> None:
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    output = PlanPreviewCommandResult(
        command_id="a lie",
        results=[ApplicationPlanPreviewResult(application_id="app", plan_summary=b"1 change")],
    )
    report = CommandResult(
        id, CommandStatus.SUCCEEDED, to_unix(now()), output=to_json(output).encode()
    )
    await cases.commands.report_handled(report, by=piped)
    (result,) = await cases.plan_previews.results([id], by=program)
    assert (result.command_id, result.piped_id, result.piped_name) == (id, piped.piped, "dev")
    assert result.piped_url == "https://pipecd.example/settings/piped"
    assert result.results[0].application_url == "https://pipecd.example/applications/app"
    assert result.results[0].plan_summary == b"1 change"


@pytest.mark.parametrize(
    ("results", "error", "counts"),
    [
        pytest.param([], "", "0 0 0", id="no application"),
        pytest.param(["", "same", "broken", ""], "", "2 1 1", id="some of each"),
        pytest.param([""], "no such branch", None, id="the whole preview failed"),
    ],
)
async def test_the_counts_of_a_result_are_stored_with_its_command(
    *,
    results: list[str],
    error: str,
    counts: str | None,
    cases: UseCases,
    program: ApiKeyCaller,
    piped: PipedCaller,
    admin: User,
    now: Now,
) -> None:
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    output = PlanPreviewCommandResult(
        error=error,
        results=[
            ApplicationPlanPreviewResult(
                application_id=f"app-{number}",
                no_change=each == "same",
                error="no chart" if each == "broken" else "",
            )
            for number, each in enumerate(results)
        ],
    )
    report = CommandResult(
        id, CommandStatus.SUCCEEDED, to_unix(now()), output=to_json(output).encode()
    )
    await cases.commands.report_handled(report, by=piped)
    (command,) = await cases.plan_previews.list_recent(by=admin)
    assert command.metadata.get(PREVIEW_COUNTS_KEY) == counts


async def test_a_control_plane_that_just_started_waits_for_pipeds_to_reconnect(
    cases: UseCases,
    stores: Stores,
    program: ApiKeyCaller,
    piped: PipedCaller,
    advance: Callable[[float], None],
) -> None:
    def ran(stored: Piped) -> None:
        stored.started_at = 1

    await stores.pipeds.update(piped.piped, ran)
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    with pytest.raises(NotFound):
        await cases.plan_previews.results([id], by=program)
    advance(30)
    (offline,) = await cases.plan_previews.results([id], by=program)
    assert offline.error == "Maybe Piped is offline currently."


async def test_a_piped_that_has_just_registered_is_not_offline(
    *,
    cases: UseCases,
    stores: Stores,
    program: ApiKeyCaller,
    piped: PipedCaller,
    now: Now,
    advance: Callable[[float], None],
) -> None:
    """It reports metrics only when its plugins are ready, which takes a while on a busy machine."""
    advance(3600)

    def registered(stored: Piped) -> None:
        stored.started_at = to_unix(now())

    await stores.pipeds.update(piped.piped, registered)
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    with pytest.raises(NotFound):
        await cases.plan_previews.results([id], by=program)
    advance(121)
    (offline,) = await cases.plan_previews.results([id], by=program)
    assert offline.error == "Maybe Piped is offline currently."


async def test_a_command_that_times_out_has_an_error_in_its_result(
    cases: UseCases,
    program: ApiKeyCaller,
    piped: PipedCaller,
    advance: Callable[[float], None],
) -> None:
    advance(121)
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    (offline,) = await cases.plan_previews.results([id], by=program)
    assert offline.error == "Maybe Piped is offline currently."
    await cases.pipeds.report_stat(b"", by=piped)
    with pytest.raises(NotFound):
        await cases.plan_previews.results([id], by=program)
    advance(61)
    (late,) = await cases.plan_previews.results([id], 60, by=program)
    assert late.error == "Timed out, maybe the Piped is offline currently."


async def test_a_result_expires(
    cases: UseCases,
    program: ApiKeyCaller,
    piped: PipedCaller,
    now: Now,
    advance: Callable[[float], None],
) -> None:
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    report = CommandResult(id, CommandStatus.SUCCEEDED, to_unix(now()), output=b"{}")
    await cases.commands.report_handled(report, by=piped)
    await cases.plan_previews.results([id], by=program)
    advance(24 * 3600 + 1)
    with pytest.raises(Conflict):
        await cases.plan_previews.results([id], by=program)


async def test_results_are_limited_to_preview_commands_of_the_own_project(
    cases: UseCases, program: ApiKeyCaller, application: Application, stranger: User
) -> None:
    sync = await cases.applications.sync(application.id, by=program)
    with pytest.raises(Conflict):
        await cases.plan_previews.results([sync], by=program)
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    with pytest.raises(ForeignProject):
        await cases.plan_previews.results([id], by=stranger)


async def test_the_console_lists_previews_of_a_day_newest_first(
    cases: UseCases,
    program: ApiKeyCaller,
    application: Application,
    viewer: User,
    stranger: User,
    advance: Callable[[float], None],
) -> None:
    await cases.applications.sync(application.id, by=program)
    (first,) = await cases.plan_previews.request(preview_request(), by=program)
    advance(60)
    (second,) = await cases.plan_previews.request(preview_request(), by=program)
    listed = await cases.plan_previews.list_recent(by=viewer)
    assert [command.id for command in listed] == [second, first]
    assert await cases.plan_previews.list_recent(by=stranger) == ()
    # Before it is ready, nobody knows which applications a preview has.
    assert await cases.plan_previews.list_recent(application.id, by=viewer) == ()
    advance(24 * 3600 - 30)
    listed = await cases.plan_previews.list_recent(by=viewer)
    assert [command.id for command in listed] == [second]


async def test_the_console_shows_no_other_commands_and_no_other_projects(
    cases: UseCases,
    program: ApiKeyCaller,
    application: Application,
    viewer: User,
    stranger: User,
) -> None:
    sync = await cases.applications.sync(application.id, by=program)
    for unknown in (sync, "unknown"):
        with pytest.raises(NotFound):
            await cases.plan_previews.get(unknown, by=viewer)
    (id,) = await cases.plan_previews.request(preview_request(), by=program)
    with pytest.raises(ForeignProject):
        await cases.plan_previews.get(id, by=stranger)
    assert (await cases.plan_previews.get(id, by=viewer)).result is None


async def test_a_preview_whose_output_is_gone_has_expired(
    cases: UseCases,
    program: ApiKeyCaller,
    piped: PipedCaller,
    viewer: User,
    now: Now,
    advance: Callable[[float], None],
) -> None:
    ids = [
        id
        for _ in range(2)
        for id in await cases.plan_previews.request(preview_request(), by=program)
    ]
    for id, output in zip(ids, (b"{}", b""), strict=True):
        report = CommandResult(id, CommandStatus.SUCCEEDED, to_unix(now()), output=output)
        await cases.commands.report_handled(report, by=piped)
    stored, gone = [await cases.plan_previews.get(id, by=viewer) for id in ids]
    assert (stored.has_expired, gone.has_expired) == (False, True)
    advance(24 * 3600 + 1)
    assert (await cases.plan_previews.get(ids[0], by=viewer)).has_expired


async def test_commands_are_read_newest_first_across_batches(
    cases: UseCases,
    stores: Stores,
    program: ApiKeyCaller,
    piped: PipedCaller,
    advance: Callable[[float], None],
) -> None:
    ids: list[str] = []
    for _ in range(4):
        ids += await cases.plan_previews.request(preview_request(), by=program)
        advance(60)
    batches = stores.commands.iterate_of_pipeds([piped.piped], 1, size=1)
    assert [command.id async for batch in batches for command in batch] == ids[::-1]


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(b"what is this", id="no JSON"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b"[" * 100_000, id="lists without an end"),
        pytest.param(b'{"results": [{"labels": 1}]}', id="a field of another type"),
        pytest.param(b'{"results": [{"created_at": ' + b"9" * 5000 + b"}]}", id="a huge number"),
        pytest.param(
            b'{"results": [{"application_id": "app", "sync_strategy": 99}]}',
            id="an unknown strategy",
        ),
    ],
)
async def test_a_result_that_cannot_be_read_does_not_hide_others(
    cases: UseCases,
    program: ApiKeyCaller,
    piped: PipedCaller,
    other_piped: PipedCaller,
    admin: User,
    now: Now,
    output: bytes,
) -> None:
    good = to_json(PlanPreviewCommandResult(results=[ApplicationPlanPreviewResult()])).encode()
    ids: list[str] = []
    for by, content in ((piped, output), (other_piped, good)):
        command = Command(project_id=by.project, piped_id=by.piped, type=Command.BUILD_PLAN_PREVIEW)
        ids.append(await cases.commands.add(command))
        report = CommandResult(ids[-1], CommandStatus.SUCCEEDED, to_unix(now()), output=content)
        await cases.commands.report_handled(report, by=by)
    unreadable, others = await cases.plan_previews.results(ids, by=program)
    assert "cannot be read" in unreadable.error
    assert (others.error, len(others.results)) == ("", 1)
    shown = await cases.plan_previews.get(ids[0], by=admin)
    assert shown.result is not None
    assert "cannot be read" in shown.result.error
    assert await cases.plan_previews.list_recent("app", by=admin) == ()
