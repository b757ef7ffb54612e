# SPDX-License-Identifier: Apache-2.0
"""The status of a deployment or an application in a sentence."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from pipecd.controlplane.console.deployments_view import deployment_view
from pipecd.controlplane.console.status_badge import PipedStatus, piped_status
from pipecd.controlplane.console.status_text import application_status_text
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncStatus
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.piped_pb2 import Piped

MakeStage = Callable[..., PipelineStage]
MakeDeployment = Callable[..., Deployment]
ROLLED = {"id": "9", "name": "K8S_ROLLBACK", "rollback": True}
TWO_APPROVALS = {"pipecd/stage-required-approvals": "2"}
APPROVAL = {"id": "1", "name": "WAIT_APPROVAL", "status": 1, "metadata": TWO_APPROVALS}
BROKEN = {"id": "2", "name": "SMOKE", "status": 3, "status_reason": "got HTTP 503"}


@pytest.mark.parametrize(
    ("status", "stages", "fields", "text"),
    [
        pytest.param(
            DeploymentStatus.PENDING,
            [],
            {},
            "Waiting for piped tokyo to plan the deployment.",
            id="pending",
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
            "Planned with 1 stage; the first one starts next.",
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
                },
                {"id": "0", "name": "A", "status": 2},
                {"id": "2", "name": "B", "requires": ["1"]},
                {"id": "3", "name": "C", "requires": ["2"]},
            ],
            {},
            "1 of 4 stages done. Once it is approved, the other 2 start.",
            id="waiting for approvers, who are on the card of the approval",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            [{"id": "1", "name": "WAIT_APPROVAL", "status": 1}],
            {},
            "0 of 1 stage done. Once it is approved, it ends.",
            id="waiting for an approval that nothing follows",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            [APPROVAL, {"id": "2", "name": "B"}],
            {},
            "0 of 2 stages done. Once 2 people approve, the next one starts.",
            id="waiting for two approvals",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            [
                {**APPROVAL, "metadata": {**TWO_APPROVALS, "pipecd/stage-approved-users": "ann"}},
                {"id": "2", "name": "B"},
            ],
            {},
            "0 of 2 stages done. Once 1 more person approves, the next one starts.",
            id="waiting for the second approval",
        ),
        pytest.param(
            DeploymentStatus.ROLLING_BACK,
            [BROKEN, {**ROLLED, "status": 1}],
            {"running_commit_hash": "9c01ab2f" * 5},
            "SMOKE failed: got HTTP 503. Rolling back to 9c01ab2.",
            id="rolling back",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [BROKEN, {**ROLLED, "status": 2}],
            {"running_commit_hash": "9c01ab2f" * 5, "status_reason": "a stage failed"},
            "SMOKE failed: got HTTP 503. It was rolled back to 9c01ab2.",
            id="failed and rolled back",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [{**BROKEN, "status_reason": "\u202eeslaf"}, {**ROLLED, "status": 2}],
            {},
            "SMOKE failed: \u2068\u202eeslaf.\u2069 It was rolled back.",
            id="a reason that would turn the words after it around",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [BROKEN, {**ROLLED, "status": 3}],
            {},
            "SMOKE failed: got HTTP 503. The rollback failed too.",
            id="failed twice",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [{"id": "1", "name": "SMOKE", "status": 2}, {**BROKEN, "desc": "Test the shop"}],
            {},
            "SMOKE (Test the shop) failed: got HTTP 503.",
            id="one of two stages with the same name",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [],
            {"status_reason": "unable to plan: no such directory"},
            "Unable to plan: no such directory.",
            id="failed before its stages",
        ),
        pytest.param(
            DeploymentStatus.FAILURE,
            [],
            {},
            "The deployment failed without a reason.",
            id="no reason",
        ),
        pytest.param(
            DeploymentStatus.SUCCESS,
            [{"id": "1", "name": "A", "status": 2}, {"id": "2", "name": "B", "status": 5}],
            {},
            "Completed 1 stage in 1m 05s. Skipped: B.",
            id="succeeded, with a stage skipped",
        ),
        pytest.param(
            DeploymentStatus.SUCCESS,
            [{"id": "1", "name": "A", "status": 6}],
            {},
            "Completed 1 stage in 1m 05s. A ended the deployment early.",
            id="ended early",
        ),
        pytest.param(
            DeploymentStatus.CANCELLED,
            [],
            {"status_reason": "cancelled by ann"},
            "Cancelled by ann.",
            id="cancelled",
        ),
        pytest.param(
            DeploymentStatus.CANCELLED,
            [{"id": "stage-0", "name": "SMOKE", "status": 4}],
            {"status_reason": "Cancelled by ann while executing stage stage-0"},
            "Cancelled by ann while executing stage SMOKE.",
            id="stages by their names",
        ),
    ],
)
def test_the_status_text(
    *,
    status: DeploymentStatus,
    stages: list[dict[str, Any]],
    fields: dict[str, Any],
    text: str,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    online_piped: PipedStatus,
    noon: datetime,
    start: int,
) -> None:
    deployment = make_deployment(
        *(make_stage(**one) for one in stages), status=status, completed_at=start + 65, **fields
    )
    assert deployment_view(deployment, online_piped, "ann", noon).status.text == text


def test_a_deployment_of_less_than_a_second(
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    online_piped: PipedStatus,
    noon: datetime,
    start: int,
) -> None:
    deployment = make_deployment(make_stage("1", "A", status=2), status=4, completed_at=start)
    text = deployment_view(deployment, online_piped, "ann", noon).status.text
    assert text == "Completed 1 stage in less than a second."


def test_no_progress_while_the_piped_is_offline(
    make_deployment: MakeDeployment, offline_piped: PipedStatus, noon: datetime
) -> None:
    text = deployment_view(make_deployment(status=2), offline_piped, "ann", noon).status.text
    assert text.startswith("No progress: piped tokyo is offline.")


def test_a_completed_deployment_does_not_depend_on_its_piped(
    make_deployment: MakeDeployment, offline_piped: PipedStatus, noon: datetime
) -> None:
    text = deployment_view(make_deployment(status=6), offline_piped, "ann", noon).status.text
    assert text == "The deployment was cancelled."


@pytest.mark.parametrize(
    ("pipeds", "word", "is_unavailable"),
    [
        pytest.param([Piped(id="p1", name="x", status=Piped.ONLINE)], "Online", False, id="online"),
        pytest.param(
            [Piped(id="p1", name="x", status=Piped.OFFLINE, started_at=1)],
            "Offline",
            True,
            id="offline",
        ),
        pytest.param(
            [Piped(id="p1", name="x", status=Piped.OFFLINE)],
            "Not started yet",
            True,
            id="never started",
        ),
        pytest.param(
            [Piped(id="p1", name="x", status=Piped.ONLINE, disabled=True)],
            "Disabled",
            True,
            id="disabled",
        ),
        pytest.param([], "Not registered", True, id="removed"),
        pytest.param(None, "Not shown", False, id="hidden from the user"),
    ],
)
def test_the_status_of_a_piped(pipeds: list[Piped] | None, word: str, is_unavailable: bool) -> None:
    status = piped_status("p1", pipeds)
    assert (status.badge.text, status.is_unavailable) == (word, is_unavailable)


def test_an_invalid_configuration_is_shown_while_the_piped_is_offline(
    offline_piped: PipedStatus,
) -> None:
    application = Application()
    application.sync_state.status = ApplicationSyncStatus.INVALID_CONFIG
    application.sync_state.reason = "app.pipecd.yaml:14: unknown field witth"
    text = application_status_text(application, offline_piped)
    assert text.startswith("app.pipecd.yaml:14: unknown field witth. Piped tokyo is offline")


def test_what_differs_is_said_while_the_piped_is_offline(offline_piped: PipedStatus) -> None:
    application = Application()
    application.sync_state.status = ApplicationSyncStatus.OUT_OF_SYNC
    application.sync_state.short_reason = "1 to add, 1 to change"
    text = application_status_text(application, offline_piped)
    assert text.startswith("1 to add, 1 to change. Piped tokyo is offline: this is the last known")


def test_a_drift_after_a_failed_deployment_says_so(online_piped: PipedStatus) -> None:
    application = Application()
    application.sync_state.status = ApplicationSyncStatus.OUT_OF_SYNC
    application.sync_state.short_reason = "1 file differs"
    application.most_recently_triggered_deployment.deployment_id = "d2"
    application.most_recently_successful_deployment.deployment_id = "d1"
    assert application_status_text(application, online_piped) == (
        "The live state differs from Git. 1 file differs. The latest deployment has not succeeded."
    )
