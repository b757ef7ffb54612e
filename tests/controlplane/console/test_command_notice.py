# SPDX-License-Identifier: Apache-2.0
"""What became of something a person asked for."""

import pytest

from pipecd.controlplane.console.command_notice import notice
from pipecd.controlplane.console.piped_status import Agent
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.proto.model.command_pb2 import Command


def command(kind: CommandKind, status: CommandStatus, **metadata: str) -> Command:
    return Command(id="c1", type=int(kind), status=int(status), metadata=metadata)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        pytest.param(
            command(CommandKind.SYNC_APPLICATION, CommandStatus.NOT_HANDLED_YET),
            "The sync is requested; piped tokyo picks it up in a moment.",
            id="requested",
        ),
        pytest.param(
            command(CommandKind.APPROVE_STAGE, CommandStatus.SUCCEEDED),
            "The approval you asked for was carried out.",
            id="carried out",
        ),
        pytest.param(
            command(CommandKind.SKIP_STAGE, CommandStatus.FAILED),
            "The skip you asked for failed.",
            id="failed",
        ),
        pytest.param(
            command(CommandKind.CANCEL_DEPLOYMENT, CommandStatus.TIMEOUT),
            "Piped tokyo did not answer in time, so the cancellation was dropped. Ask again.",
            id="timed out",
        ),
        pytest.param(
            command(
                CommandKind.SYNC_APPLICATION, CommandStatus.SUCCEEDED, TriggeredDeploymentID="d1"
            ),
            "The sync you asked for has started a deployment.",
            id="a sync that led to a deployment",
        ),
    ],
)
def test_the_notice(asked: Command, text: str, online_piped: Agent) -> None:
    told = notice(asked, online_piped)
    assert told.text == text
    assert told.deployment_id == asked.metadata.get("TriggeredDeploymentID", "")


def test_a_piped_that_is_away_is_named(offline_piped: Agent) -> None:
    told = notice(
        command(CommandKind.SYNC_APPLICATION, CommandStatus.NOT_HANDLED_YET), offline_piped
    )
    assert "piped tokyo is offline" in told.text
    assert told.is_open


@pytest.mark.parametrize("kind", list(CommandKind))
@pytest.mark.parametrize("status", list(CommandStatus))
def test_no_command_is_without_words(
    kind: CommandKind, status: CommandStatus, online_piped: Agent
) -> None:
    assert notice(command(kind, status), online_piped).text
