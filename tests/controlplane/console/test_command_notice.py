# SPDX-License-Identifier: Apache-2.0
"""The notice about a command that the user requested."""

import pytest

from pipecd.controlplane.console.command_notice import command_notice, refusal_text
from pipecd.controlplane.console.status_badge import PipedStatus
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Conflict
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage


def command(kind: CommandKind, status: CommandStatus, **metadata: str) -> Command:
    return Command(id="c1", type=int(kind), status=int(status), metadata=metadata)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        pytest.param(
            command(CommandKind.SYNC_APPLICATION, CommandStatus.NOT_HANDLED_YET),
            "The sync is requested; piped tokyo picks it up in a moment.",
            id="requested",
        ),
        pytest.param(
            command(CommandKind.APPROVE_STAGE, CommandStatus.SUCCEEDED),
            "The approval you requested succeeded.",
            id="succeeded",
        ),
        pytest.param(
            command(CommandKind.SKIP_STAGE, CommandStatus.FAILED),
            "The skip you requested failed: piped tokyo gave no reason; see its log.",
            id="failed",
        ),
        pytest.param(
            command(
                CommandKind.SYNC_APPLICATION, CommandStatus.FAILED, Reason="app.yaml:3: bad kind"
            ),
            "The sync you requested failed: app.yaml:3: bad kind.",
            id="failed with a reason",
        ),
        pytest.param(
            command(CommandKind.CANCEL_DEPLOYMENT, CommandStatus.TIMEOUT),
            "Piped tokyo did not handle the cancellation in time. Request it again.",
            id="timed out",
        ),
        pytest.param(
            command(
                CommandKind.SYNC_APPLICATION, CommandStatus.SUCCEEDED, TriggeredDeploymentID="d1"
            ),
            "The sync you requested has started a deployment.",
            id="a sync that led to a deployment",
        ),
    ],
)
def test_the_notice(requested: Command, text: str, online_piped: PipedStatus) -> None:
    notice = command_notice(requested, online_piped)
    assert notice.text == text
    assert notice.deployment_id == requested.metadata.get("TriggeredDeploymentID", "")


def test_an_offline_piped_is_named(offline_piped: PipedStatus) -> None:
    notice = command_notice(
        command(CommandKind.SYNC_APPLICATION, CommandStatus.NOT_HANDLED_YET), offline_piped
    )
    assert "piped tokyo is offline" in notice.text
    assert notice.is_pending


@pytest.mark.parametrize("kind", list(CommandKind))
@pytest.mark.parametrize("status", list(CommandStatus))
def test_every_command_has_a_notice(
    kind: CommandKind, status: CommandStatus, online_piped: PipedStatus
) -> None:
    assert command_notice(command(kind, status), online_piped).text


@pytest.mark.parametrize(
    ("status", "stage_status", "text"),
    [
        pytest.param(
            DeploymentStatus.SUCCESS,
            StageStatus.SUCCESS,
            "The approval came too late: the deployment has already succeeded.",
            id="the deployment has ended",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            StageStatus.SKIPPED,
            "The approval came too late: WAIT_APPROVAL was already skipped.",
            id="the stage has ended",
        ),
        pytest.param(
            DeploymentStatus.RUNNING,
            StageStatus.RUNNING,
            "The approval was refused: stage WAIT waits for nothing. Cancel it instead.",
            id="another reason",
        ),
    ],
)
def test_a_refused_command(status: DeploymentStatus, stage_status: StageStatus, text: str) -> None:
    stage = PipelineStage(id="s1", name="WAIT_APPROVAL", status=int(stage_status))  # pyright: ignore[reportArgumentType]
    deployment = Deployment(id="d1", status=int(status), stages=[stage])  # pyright: ignore[reportArgumentType]
    error = Conflict("stage WAIT waits for nothing", hint="cancel it instead")
    assert refusal_text("approval", error, deployment, "s1") == text
