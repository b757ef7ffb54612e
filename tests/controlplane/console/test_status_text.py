# SPDX-License-Identifier: Apache-2.0
"""What is going on with a deployment, in a sentence."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from pipecd.controlplane.console.deployments_view import deployment_page
from pipecd.controlplane.console.piped_status import Agent, agent
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.piped_pb2 import Piped

MakeStage = Callable[..., PipelineStage]
MakeDeployment = Callable[..., Deployment]
ROLLED = {"id": "9", "name": "K8S_ROLLBACK", "rollback": True}
BROKEN = {"id": "2", "name": "SMOKE", "status": 3, "status_reason": "got HTTP 503"}


@pytest.mark.parametrize(
    ("status", "stages", "fields", "text"),
    [
        pytest.param(
            DeploymentStatus.PENDING, [], {}, "Waiting for piped tokyo to plan it.", id="pending"
        ),
        pytest.param(
            DeploymentStatus.PENDING,
            [],
            {"metadata_v2": {"shared": {"keyValues": {"pipecd/waiting-for": "Waiting for d1"}}}},
            "Waiting for d1.",
            id="pending for a reason of its piped",
        ),
        pytest.param(
            DeploymentStatus.PLANNED,
            [{"id": "1", "name": "A"}],
            {},
            "Planned with 1 stage; it starts next.",
            id="planned",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            [{"id": "1", "name": "A", "status": 2}, {"id": "2", "name": "B", "status": 1}],
            {},
            "Stage 2 of 2 is running: B.",
            id="running",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            [{"id": "1", "name": "A", "status": 2}, {"id": "2", "name": "B"}],
            {},
            "The next stage starts in a moment.",
            id="between two stages",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            [
                {
                    "id": "1",
                    "name": "WAIT_APPROVAL",
                    "status": 1,
                    "authorized_operators": ["ann", "bob"],
                    "metadata": {"ApprovedBy": "bob"},
                }
            ],
            {},
            "It goes on once ann or bob approves. Approved by bob so far.",
            id="waiting for named people",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            [{"id": "1", "name": "WAIT_APPROVAL", "status": 1}],
            {},
            "It goes on once anyone who may change deployments approves.",
            id="waiting for anybody",
        ),
        pytest.param(
            DeploymentStatus.ROLLING_BACK,
            [BROKEN, {**ROLLED, "status": 1}],
            {"running_commit_hash": "9c01ab2f" * 5},
            "SMOKE failed: Got HTTP 503. Rolling back to 9c01ab2 now.",
            id="rolling back",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [BROKEN, {**ROLLED, "status": 2}],
            {"running_commit_hash": "9c01ab2f" * 5, "status_reason": "a stage failed"},
            "SMOKE failed: Got HTTP 503. It was rolled back to 9c01ab2.",
            id="failed and rolled back",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [BROKEN, {**ROLLED, "status": 3}],
            {},
            "SMOKE failed: Got HTTP 503. The rollback failed too.",
            id="failed twice",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [],
            {"status_reason": "unable to plan: no such directory"},
            "Unable to plan: no such directory.",
            id="failed before its stages",
        ),
        pytest.param(
            DeploymentStatus.FAILURE, [], {}, "It failed without giving a reason.", id="no reason"
        ),
        pytest.param(
            DeploymentStatus.SUCCESS,
            [{"id": "1", "name": "A", "status": 2}, {"id": "2", "name": "B", "status": 5}],
            {},
            "Went through 1 stage in 1m 05s. Skipped: B.",
            id="succeeded, with a stage skipped",
        ),
        pytest.param(
            DeploymentStatus.SUCCESS,
            [{"id": "1", "name": "A", "status": 6}],
            {},
            "Went through 1 stage in 1m 05s. A ended it early.",
            id="ended early",
        ),
        pytest.param(
            DeploymentStatus.CANCELLED,
            [],
            {"status_reason": "cancelled by ann"},
            "Cancelled by ann.",
            id="cancelled",
        ),
    ],
)
def test_the_story(
    *,
    status: DeploymentStatus,
    stages: list[dict[str, Any]],
    fields: dict[str, Any],
    text: str,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    online_piped: Agent,
    noon: datetime,
    start: int,
) -> None:
    made = make_deployment(
        *(make_stage(**one) for one in stages), status=status, completed_at=start + 65, **fields
    )
    assert deployment_page(made, online_piped, "ann", noon).story.text == text


def test_a_quick_deployment_is_quick(
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    online_piped: Agent,
    noon: datetime,
    start: int,
) -> None:
    made = make_deployment(make_stage("1", "A", status=2), status=4, completed_at=start)
    told = deployment_page(made, online_piped, "ann", noon).story.text
    assert told == "Went through 1 stage in less than a second."


def test_nothing_moves_while_the_piped_is_away(
    make_deployment: MakeDeployment, offline_piped: Agent, noon: datetime
) -> None:
    told = deployment_page(make_deployment(status=2), offline_piped, "ann", noon).story.text
    assert told.startswith("Nothing moves: piped tokyo is offline.")


def test_a_finished_deployment_does_not_care_about_its_piped(
    make_deployment: MakeDeployment, offline_piped: Agent, noon: datetime
) -> None:
    told = deployment_page(make_deployment(status=6), offline_piped, "ann", noon).story.text
    assert told == "Someone cancelled it."


@pytest.mark.parametrize(
    ("pipeds", "word", "is_away"),
    [
        pytest.param([Piped(id="p1", name="x", status=Piped.ONLINE)], "Online", False, id="there"),
        pytest.param([Piped(id="p1", name="x", status=Piped.OFFLINE)], "Offline", True, id="away"),
        pytest.param(
            [Piped(id="p1", name="x", status=Piped.ONLINE, disabled=True)],
            "Disabled",
            True,
            id="locked out",
        ),
        pytest.param([], "Not registered", True, id="removed"),
        pytest.param(None, "Not shown", False, id="not for this reader"),
    ],
)
def test_where_the_piped_is(pipeds: list[Piped] | None, word: str, is_away: bool) -> None:
    found = agent("p1", pipeds)
    assert (found.mark.word, found.is_away) == (word, is_away)
