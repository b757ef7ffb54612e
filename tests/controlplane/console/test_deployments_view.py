# SPDX-License-Identifier: Apache-2.0
"""The facts of a deployment."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from pipecd.controlplane.console import deployments_view as view
from pipecd.controlplane.console.piped_status import Agent
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model import chain_pb2, deployment_pb2
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
    ("strategy", "stages", "word"),
    [
        pytest.param(SyncStrategy.QUICK_SYNC, [], "Quick sync", id="asked for quick sync"),
        pytest.param(SyncStrategy.PIPELINE, [], "Pipeline", id="asked for the pipeline"),
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
    made = make_deployment(
        *(make_stage(id, name, **more) for id, name, more in stages), summary="because"
    )
    made.trigger.sync_strategy = int(strategy)  # pyright: ignore[reportAttributeAccessIssue]
    assert view.strategy(made) == view.Strategy(word, "Because.")


@pytest.mark.parametrize(
    ("summary", "because"),
    [
        pytest.param("", "Sync because cart/x changed.", id="before it is planned"),
        pytest.param("Quick sync", "Sync because cart/x changed.", id="beside what was planned"),
        pytest.param("sync because cart/x changed", "", id="not twice"),
    ],
)
def test_why_it_was_made(make_deployment: MakeDeployment, summary: str, because: str) -> None:
    made = make_deployment(summary=summary)
    made.trigger.strategy_summary = "sync because cart/x changed"
    assert view.trigger_reason(made) == because


def test_what_changes_can_be_compared_where_the_host_is_known(
    make_deployment: MakeDeployment, online_piped: Agent, noon: datetime
) -> None:
    running = "9c01ab2f" * 5
    made = make_deployment(running_commit_hash=running)
    url = view.deployment_page(made, online_piped, "ann", noon).compare_url
    assert url == f"https://git.example/shop/compare/{running}...{'7f3c91ab' * 5}"
    made.trigger.commit.url = "javascript:alert(1)"
    assert view.deployment_page(made, online_piped, "ann", noon).compare_url == ""


def test_each_artifact_is_shown_once() -> None:
    found = view.versions(
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
    ("statuses", "wanted", "chosen"),
    [
        pytest.param([2, 1, 0], "", "2", id="what runs"),
        pytest.param([2, 1, 0], "1", "1", id="what the reader picked"),
        pytest.param([2, 3, 0], "", "2", id="what failed"),
        pytest.param([2, 2, 0], "", "2", id="the last that was started"),
        pytest.param([2, 1, 0], "nonsense", "2", id="what runs, when the address is old"),
        pytest.param([0, 0, 0], "", None, id="nothing before it starts"),
        pytest.param([0, 0, 0], "3", "3", id="a stage that has not begun can be picked"),
    ],
)
def test_whose_log_is_shown(
    *,
    statuses: list[int],
    wanted: str,
    chosen: str | None,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    online_piped: Agent,
    noon: datetime,
) -> None:
    made = make_deployment(
        *(
            make_stage(str(n), f"S{n}", status=status, requires=[str(n - 1)])
            for n, status in enumerate(statuses, 1)
        ),
        status=2,
    )
    page = view.deployment_page(made, online_piped, "ann", noon)
    found = view.chosen_stage(page, wanted)
    assert (found.id if found else None) == chosen


def test_an_application_that_never_follows_stands_where_its_block_does() -> None:
    def node(name: str, **deployment: Any) -> chain_pb2.ChainNode:
        made = chain_pb2.ChainNode()
        made.application_ref.application_name = name
        if deployment:
            made.deployment_ref.MergeFrom(chain_pb2.ChainDeploymentRef(**deployment))
        return made

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
    assert (shown.number, shown.mark.word) == (2, "Failed")
    steps = [(s.name, s.deployment_id, s.mark.word) for block in shown.blocks for s in block]
    assert steps == [("cart", "d", "Failed"), ("web", "", "Cancelled")]
