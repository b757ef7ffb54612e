# SPDX-License-Identifier: Apache-2.0
"""View models of deployments: facts, versions, the selected stage, the list."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from pipecd.controlplane.console import deployments_view as view
from pipecd.controlplane.console.list_filters import parse_deployment_query
from pipecd.controlplane.console.roll_back_view import sync_again_text
from pipecd.controlplane.console.status_badge import PipedStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus, SyncStrategy
from pipecd.proto.model import chain_pb2, deployment_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

MakeStage = Callable[..., PipelineStage]
MakeDeployment = Callable[..., Deployment]


def test_a_commit_is_its_first_line_and_a_short_hash(
    make_deployment: MakeDeployment, noon: datetime
) -> None:
    commit = view.deployment_row(make_deployment(), noon).commit
    assert (commit.short, commit.subject) == ("7f3c91a", "Retry card tokens once")


@pytest.mark.parametrize(
    ("hash", "reverted"),
    [("7f3c91ab" * 5, "7f3c91ab7f3c"), ("", "HEAD"), ("$(reboot)7f3c91ab", "HEAD")],
)
def test_the_commands_that_roll_back_name_a_commit_of_git_only(
    hash: str,
    reverted: str,
    make_deployment: MakeDeployment,
    online_piped: PipedStatus,
    noon: datetime,
) -> None:
    deployment = make_deployment()
    deployment.trigger.commit.hash = hash
    shown = view.deployment_view(deployment, online_piped, "ann", noon)
    assert shown.roll_back.commands == f"git revert --no-edit {reverted}\ngit push"


@pytest.mark.parametrize(
    ("remote", "commands"),
    [
        ("git@github.com:shop/site.git", "git revert --no-edit 7f3c91ab7f3c\ngit push"),
        ("https://git.example/shop/site", "git revert --no-edit 7f3c91ab7f3c\ngit push"),
        ("file:///srv/site.git", "git revert --no-edit 7f3c91ab7f3c\ngit push"),
        ("file:///home/a%20b/site", "cd '/home/a b/site'\ngit revert --no-edit 7f3c91ab7f3c"),
        ("file:///a%0Areboot", "git revert --no-edit 7f3c91ab7f3c\ngit push"),
        ("file:///x;$(reboot)", "cd '/x;$(reboot)'\ngit revert --no-edit 7f3c91ab7f3c"),
        ("file://[", "git revert --no-edit 7f3c91ab7f3c\ngit push"),
    ],
)
def test_a_repository_on_the_same_machine_is_reverted_where_it_is(
    remote: str,
    commands: str,
    make_deployment: MakeDeployment,
    online_piped: PipedStatus,
    noon: datetime,
) -> None:
    deployment = make_deployment()
    deployment.trigger.commit.hash = "7f3c91ab" * 5
    deployment.git_path.repo.remote = remote
    shown = view.deployment_view(deployment, online_piped, "ann", noon)
    assert shown.roll_back.commands == commands


def test_what_was_rolled_back_by_itself_is_still_in_git(
    make_deployment: MakeDeployment,
    make_stage: MakeStage,
    online_piped: PipedStatus,
    noon: datetime,
) -> None:
    rolled_back = make_deployment(
        make_stage("1", "SYNC", status=StageStatus.FAILURE),
        make_stage("2", "ROLLBACK", status=StageStatus.SUCCESS),
        status=DeploymentStatus.FAILURE,
    )
    rolled_back.running_commit_hash = "c0ffee"
    text = view.deployment_view(rolled_back, online_piped, "ann", noon).roll_back.text
    assert text.startswith("It was rolled back, but Git still has its commit")
    text = view.deployment_view(make_deployment(), online_piped, "ann", noon).roll_back.text
    assert text.startswith("Git says what runs")


@pytest.mark.parametrize(
    ("strategy", "stages", "word"),
    [
        pytest.param(SyncStrategy.QUICK_SYNC, [], "Quick sync", id="quick sync requested"),
        pytest.param(SyncStrategy.PIPELINE, [], "Pipeline", id="pipeline requested"),
        pytest.param(SyncStrategy.AUTO, [], "Not planned yet", id="nothing planned"),
        pytest.param(SyncStrategy.AUTO, [("1", "K8S_SYNC", {})], "Quick sync", id="one sync stage"),
        pytest.param(
            SyncStrategy.AUTO,
            [("1", "SYNC", {"predefined": True}), ("R", "ROLLBACK", {"predefined": True})],
            "Quick sync",
            id="a rollback stage does not count",
        ),
        pytest.param(
            SyncStrategy.AUTO, [("1", "WAIT", {}), ("2", "K8S_SYNC", {})], "Pipeline", id="several"
        ),
    ],
)
def test_the_strategy(
    strategy: SyncStrategy,
    stages: list[tuple[str, str, dict[str, Any]]],
    word: str,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
) -> None:
    deployment = make_deployment(
        *(make_stage(id, name, **more) for id, name, more in stages), summary="because"
    )
    deployment.trigger.sync_strategy = int(strategy)  # pyright: ignore[reportAttributeAccessIssue]
    assert view.strategy_view(deployment) == view.StrategyView(word, "Because.")


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        pytest.param("", "Sync because cart/x changed.", id="before it is planned"),
        pytest.param(
            "Quick sync", "Sync because cart/x changed.", id="beside the planned strategy"
        ),
        pytest.param("Sync because cart/x changed", "", id="not twice"),
    ],
)
def test_the_trigger_reason(
    make_deployment: MakeDeployment,
    online_piped: PipedStatus,
    noon: datetime,
    summary: str,
    reason: str,
) -> None:
    deployment = make_deployment(summary=summary)
    deployment.trigger.strategy_summary = "Sync because cart/x changed"
    shown = view.deployment_view(deployment, online_piped, "ann", noon)
    assert shown.trigger_reason == reason


def test_the_diff_at_the_git_host_is_linked(
    make_deployment: MakeDeployment, online_piped: PipedStatus, noon: datetime
) -> None:
    running = "9c01ab2f" * 5
    deployment = make_deployment(running_commit_hash=running)
    url = view.deployment_view(deployment, online_piped, "ann", noon).compare_url
    assert url == f"https://git.example/shop/compare/{running}...{'7f3c91ab' * 5}"
    deployment.trigger.commit.url = "javascript:alert(1)"
    assert view.deployment_view(deployment, online_piped, "ann", noon).compare_url == ""


def test_each_artifact_is_listed_once() -> None:
    found = view.version_views(
        [
            ArtifactVersion(name="web", version="v1", url="registry.example/web"),
            ArtifactVersion(name="web", version="v1"),
            ArtifactVersion(version="v2", url="javascript:alert(1)"),
            ArtifactVersion(name="empty"),
            ArtifactVersion(version="unknown"),
        ]
    )
    assert [(v.text, v.short, v.url) for v in found] == [("web:v1", "v1", ""), ("v2", "v2", "")]


@pytest.mark.parametrize(
    ("statuses", "requested", "selected"),
    [
        pytest.param([2, 1, 0], "", "2", id="the running stage"),
        pytest.param([2, 1, 0], "1", "1", id="the selected stage"),
        pytest.param([2, 3, 0], "", "2", id="the failed stage"),
        pytest.param([2, 2, 0], "", "2", id="the last that was started"),
        pytest.param([2, 1, 0], "nonsense", "2", id="the running stage if the URL is outdated"),
        pytest.param([0, 0, 0], "", None, id="none before it starts"),
        pytest.param([0, 0, 0], "3", "3", id="a stage that has not begun can be picked"),
    ],
)
def test_which_stage_is_selected(
    *,
    statuses: list[int],
    requested: str,
    selected: str | None,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    online_piped: PipedStatus,
    noon: datetime,
) -> None:
    deployment = make_deployment(
        *(
            make_stage(str(n), f"S{n}", status=status, requires=[str(n - 1)])
            for n, status in enumerate(statuses, 1)
        ),
        status=2,
    )
    page = view.deployment_view(deployment, online_piped, "ann", noon)
    found = view.selected_stage(page, requested)
    assert (found.id if found else None) == selected


def test_an_application_without_a_deployment_has_the_status_of_its_block() -> None:
    def node(name: str, **deployment: Any) -> chain_pb2.ChainNode:
        chain_node = chain_pb2.ChainNode()
        chain_node.application_ref.application_name = name
        if deployment:
            chain_node.deployment_ref.MergeFrom(chain_pb2.ChainDeploymentRef(**deployment))
        return chain_node

    chain = chain_pb2.DeploymentChain(
        status=chain_pb2.DEPLOYMENT_CHAIN_FAILURE,
        blocks=[
            chain_pb2.ChainBlock(
                nodes=[node("cart", deployment_id="d", status=deployment_pb2.DEPLOYMENT_FAILURE)],
                status=chain_pb2.DEPLOYMENT_BLOCK_FAILURE,
            ),
            chain_pb2.ChainBlock(nodes=[node("web")], status=chain_pb2.DEPLOYMENT_BLOCK_CANCELLED),
        ],
    )
    shown = view.chain_view(chain, 1)
    assert (shown.block_number, shown.badge.text) == (2, "Failed")
    steps = [(s.name, s.deployment_id, s.badge.text) for block in shown.blocks for s in block]
    assert steps == [("cart", "d", "Failed"), ("web", "", "Cancelled")]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("", True, id="without a status"),
        pytest.param("waiting=approval", True, id="an older link to those that wait"),
        pytest.param("status=waiting", True, id="those that wait"),
        pytest.param("status=2", False, id="running ones, which do not wait"),
        pytest.param("status=2,waiting", True, id="both"),
    ],
)
def test_a_deployment_that_waits_for_approval_is_not_called_running(
    query: str, found: bool, make_deployment: Callable[..., Deployment]
) -> None:
    stage = PipelineStage(id="1", name="WAIT_APPROVAL", status=deployment_pb2.STAGE_RUNNING)
    deployment = make_deployment(stage, status=deployment_pb2.DEPLOYMENT_RUNNING)
    assert view.matches(deployment, parse_deployment_query(QueryParams(query))) is found


def test_deployments_are_grouped_by_day(noon: datetime, start: int) -> None:
    deployment = [
        Deployment(id=str(n), created_at=start - 86400 * days) for n, days in enumerate((1, 0, 1))
    ]
    days = view.group_by_day(deployment, noon)
    assert [(day.heading, [row.id for row in day.rows]) for day in days] == [
        ("Today", ["1"]),
        ("Yesterday", ["0", "2"]),
    ]


@pytest.mark.parametrize(
    ("branch", "last", "message", "text"),
    [
        (
            "main",
            "abc1234def",
            "Fix the cart\n\nlong",
            "Sync again deploys the newest commit of main: abc1234 “Fix the cart” or newer.",
        ),
        ("", "abc1234def", "", "Sync again deploys the newest commit of trunk: abc1234 or newer."),
        (
            "main",
            "",
            "",
            "Sync again deploys the newest commit of main: 7f3c91a “Retry card tokens once” or",
        ),
    ],
)
def test_a_sync_after_the_end_names_what_it_deploys(
    branch: str, last: str, message: str, text: str, make_deployment: MakeDeployment
) -> None:
    application = Application()
    application.git_path.repo.branch = branch
    if last:
        commit = application.most_recently_triggered_deployment.trigger.commit
        commit.hash, commit.message, commit.branch = last, message, "trunk"
    assert sync_again_text(make_deployment(), application).startswith(text)


def test_a_sync_of_an_unknown_commit_deploys_the_newest_one() -> None:
    assert sync_again_text(Deployment(), Application()) == "Sync again deploys the newest commit."
