# SPDX-License-Identifier: Apache-2.0
"""The page of a plan preview in words."""

from datetime import datetime

import pytest

from pipecd.controlplane.console.diff_view import ChangeCounts
from pipecd.controlplane.console.plan_previews_view import (
    MAX_DIFFS,
    preview_entries,
    preview_view,
)
from pipecd.controlplane.usecases.plan_previews import RequestedPreview
from pipecd.model.command import PREVIEW_COUNTS_KEY, CommandStatus
from pipecd.proto.model import command_pb2 as pb
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from servers.sample_diffs import MANIFESTS, kubernetes_result

App = ApplicationPlanPreviewResult


def preview(*apps: App, status: CommandStatus = CommandStatus.SUCCEEDED) -> RequestedPreview:
    command = Command(
        id="c1",
        piped_id="p1",
        status=pb.CommandStatus.ValueType(status),
        build_plan_preview=Command.BuildPlanPreview(head_branch="fix", base_branch="main"),
    )
    is_ready = status is CommandStatus.SUCCEEDED
    return RequestedPreview(command, PlanPreviewCommandResult(results=apps) if is_ready else None)


def app(name: str, *, error: str = "", no_change: bool = False) -> App:
    return App(
        application_id=name,
        application_name=name,
        error=error,
        no_change=no_change,
        plugin_plan_results=[kubernetes_result()],
    )


@pytest.mark.parametrize(
    ("apps", "text"),
    [
        pytest.param((), "No application changes: merging deploys nothing.", id="nothing"),
        pytest.param((app("a"),), "Merging deploys 1 application.", id="one"),
        pytest.param(
            (app("a"), app("b"), app("c", error="no chart")),
            "Merging deploys 2 applications, and the preview of 1 application failed.",
            id="some failed",
        ),
        pytest.param(
            (app("a"), app("b", no_change=True)),
            "Merging deploys 2 applications, 1 of them without changes.",
            id="some are deployed as they are",
        ),
        pytest.param(
            (app("b", no_change=True),),
            "Merging deploys 1 application without changes.",
            id="all are deployed as they are",
        ),
        pytest.param(
            (app("c", error="no chart"),),
            "The preview of 1 application failed.",
            id="all failed",
        ),
    ],
)
async def test_a_sentence_says_what_a_merge_does(
    apps: tuple[App, ...], text: str, noon: datetime
) -> None:
    assert (await preview_view(preview(*apps), (), noon)).text == text


@pytest.mark.parametrize(
    ("piped", "badge", "text"),
    [
        pytest.param(Piped.ONLINE, "Running", "Piped edge merges the branch", id="online"),
        pytest.param(Piped.OFFLINE, "Waiting", "begins when it is back", id="offline"),
    ],
)
async def test_a_running_preview_says_what_it_waits_for(
    piped: Piped.ConnectionStatus.ValueType, badge: str, text: str, noon: datetime
) -> None:
    pipeds = [Piped(id="p1", name="edge", status=piped, started_at=1)]
    view = await preview_view(preview(status=CommandStatus.NOT_HANDLED_YET), pipeds, noon)
    assert view.is_running
    assert view.row.badge.text == badge
    assert text in view.text


async def test_failed_applications_are_first_and_unchanged_ones_last(noon: datetime) -> None:
    apps = (app("a", no_change=True), app("b"), app("c", error="no chart"))
    view = await preview_view(preview(*apps), (), noon)
    assert [each.name for each in view.applications] == ["c", "b", "a"]
    assert view.row.badge.text == "Partly failed"
    assert [each.badge.text for each in view.applications] == ["Failed", "Changes", "No change"]


async def test_applications_beyond_the_maximum_are_listed_without_their_differences(
    noon: datetime,
) -> None:
    apps = [app(f"{number:03}") for number in range(MAX_DIFFS + 10)]
    view = await preview_view(preview(*apps), (), noon)
    assert (len(view.applications), view.without_diff) == (MAX_DIFFS + 10, 10)
    alone = await preview_view(preview(*apps), (), noon, only=f"{MAX_DIFFS + 5:03}")
    assert [each.has_diff for each in alone.applications] == [True]
    assert (alone.only, alone.total) == (f"{MAX_DIFFS + 5:03}", MAX_DIFFS + 10)
    unknown = await preview_view(preview(*apps), (), noon, only="gone")
    assert (unknown.only, len(unknown.applications)) == ("", MAX_DIFFS + 10)


async def test_the_text_of_the_first_generation_is_shown_too(noon: datetime) -> None:
    older = App(application_id="a", application_name="a", plan_details=MANIFESTS)
    view = await preview_view(preview(older), (), noon)
    assert view.counts == ChangeCounts(added=1, deleted=1, changed=1)


def requested(id: str, piped: str, commit: str, status: CommandStatus) -> Command:
    return Command(
        id=id,
        piped_id=piped,
        status=pb.CommandStatus.ValueType(status),
        build_plan_preview=Command.BuildPlanPreview(
            repository_id="site", head_branch="fix", base_branch="main", head_commit=commit
        ),
    )


READY, FAILED = CommandStatus.SUCCEEDED, CommandStatus.FAILED


@pytest.mark.parametrize(
    ("commands", "entries"),
    [
        pytest.param(
            (requested("1", "a", "c0ffee", READY), requested("2", "b", "c0ffee", READY)),
            {"1": ("a", "b")},
            id="the pipeds of one request are one entry",
        ),
        pytest.param(
            (requested("1", "a", "c0ffee", READY), requested("2", "b", "c0ffee", FAILED)),
            {"1": ("b", "a")},
            id="the piped whose preview failed is first",
        ),
        pytest.param(
            (requested("1", "a", "c0ffee", READY), requested("2", "b", "beef", READY)),
            {"1": ("a",), "2": ("b",)},
            id="another commit is another entry",
        ),
        pytest.param(
            (
                requested("3", "a", "c0ffee", READY),
                requested("4", "b", "c0ffee", READY),
                requested("1", "a", "c0ffee", READY),
                requested("2", "b", "c0ffee", READY),
            ),
            {"3": ("a", "b"), "1": ("a", "b")},
            id="a second request is another entry",
        ),
    ],
)
def test_entries_of_the_list(
    commands: tuple[Command, ...], entries: dict[str, tuple[str, ...]], noon: datetime
) -> None:
    pipeds = [Piped(id=name, name=name, status=Piped.ONLINE) for name in ("a", "b")]
    listed = preview_entries(commands, pipeds, noon)
    assert {each.id: tuple(row.piped.name for row in each.previews) for each in listed} == entries


RUNNING, OFFLINE = CommandStatus.NOT_HANDLED_YET, "offline"


@pytest.mark.parametrize(
    ("commands", "status", "progress"),
    [
        pytest.param(
            (
                requested("1", "a", "c0ffee", RUNNING),
                requested("2", OFFLINE, "c0ffee", RUNNING),
                requested("3", "b", "c0ffee", READY),
            ),
            "Running",
            "1 of 3 ready",
            id="one runs, one waits for its piped, one is ready",
        ),
        pytest.param(
            (
                requested("1", OFFLINE, "c0ffee", RUNNING),
                requested("2", "b", "c0ffee", READY),
            ),
            "Waiting",
            "1 of 2 ready",
            id="nothing but an offline piped is missing",
        ),
        pytest.param(
            (requested("1", "a", "c0ffee", RUNNING), requested("2", "b", "c0ffee", FAILED)),
            "Failed",
            "",
            id="one has failed, none is ready",
        ),
        pytest.param(
            (requested("1", "a", "c0ffee", READY), requested("2", "b", "c0ffee", READY)),
            "Ready",
            "",
            id="all are ready",
        ),
    ],
)
def test_the_status_of_a_request_of_several_pipeds(
    commands: tuple[Command, ...], status: str, progress: str, noon: datetime
) -> None:
    pipeds = [
        Piped(id="a", status=Piped.ONLINE),
        Piped(id="b", status=Piped.ONLINE),
        Piped(id=OFFLINE, status=Piped.OFFLINE, started_at=1),
    ]
    (entry,) = preview_entries(commands, pipeds, noon)
    assert (entry.first.badge.text, entry.progress) == (status, progress)


@pytest.mark.parametrize(
    ("counts", "result", "failed", "status"),
    [
        pytest.param([""], "", "", "Ready", id="none has counts"),
        pytest.param(["0 0 0"], "nothing", "", "Ready", id="no application"),
        pytest.param(["1 0 0", ""], "1 application", "", "Ready", id="one of two has counts"),
        pytest.param(
            ["2 1 0", "0 0 1"],
            "3 applications, 1 without changes",
            "1 preview failed",
            "Failed",
            id="their sum",
        ),
        pytest.param(["1 0 1"], "1 application", "1 preview failed", "Partly failed", id="some"),
        pytest.param(["0 0 2"], "", "2 previews failed", "Failed", id="all failed"),
        pytest.param(["-1 0 0", "x", "1 0"], "", "", "Ready", id="what no control plane stores"),
    ],
)
def test_the_list_says_what_a_merge_deploys(
    counts: list[str], result: str, failed: str, status: str, noon: datetime
) -> None:
    commands: list[Command] = []
    for number, stored in enumerate(counts):
        command = preview().command
        command.id, command.piped_id = f"c{number}", f"p{number}"
        command.metadata[PREVIEW_COUNTS_KEY] = stored
        commands.append(command)
    entry = preview_entries(commands, None, noon)[0]
    assert (entry.result, entry.failed, entry.first.badge.text) == (result, failed, status)
