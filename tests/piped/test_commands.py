# SPDX-License-Identifier: Apache-2.0
"""A whole piped handles each type of command once, and reports it whatever happens."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest

from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.piped import command_handlers
from pipecd.piped.command_handlers import CommandResult, stage_command_result
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from servers.control_plane import GatedControlPlane, OpenControlPlane, has_running
from servers.origin import Origin
from servers.polling import eventually

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {name}
  pipeline:
    stages:
{stages}
"""
WAIT = "      - {name: WAIT, with: {duration: 10ms}}\n"
LONG = "      - {name: WAIT, with: {duration: 1h}}\n"
APPROVAL = "      - {name: WAIT_APPROVAL, with: {anyone: true}}\n"


@pytest.fixture
async def plane(
    open_plane: OpenControlPlane, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[GatedControlPlane]:
    monkeypatch.setattr(command_handlers, "STAGE_CHECK_INTERVAL", 0.05)
    async with open_plane() as plane:
        yield plane


async def add_application(plane: GatedControlPlane, origin: Origin, stages: str) -> str:
    """Adds the application `cart` with these stages and returns its id."""
    origin.commit({"cart/app.pipecd.yaml": APP.format(name="cart", stages=stages)})
    await plane.piped.add_repository("site", origin.remote)
    return await plane.piped.add_application("cart")


async def store_command(plane: GatedControlPlane, **fields: Any) -> str:
    """Stores a command for the piped and returns its id."""
    command = Command(piped_id=plane.piped.id, project_id="shop", commander="ann", **fields)
    return await plane.cases.commands.add(command)


async def wait_for_status(plane: GatedControlPlane, status: DeploymentStatus) -> Deployment:
    """Returns the newest deployment once it has the status."""
    return await plane.wait_for_newest_deployment(lambda d: d.status == status)


async def wait_for_stage(plane: GatedControlPlane, name: str) -> tuple[Deployment, PipelineStage]:
    """Returns the newest deployment and its stage of that name, once the stage runs."""
    deployment = await plane.wait_for_newest_deployment(lambda d: has_running(d, name))
    return deployment, next(s for s in deployment.stages if s.name == name)


async def test_a_sync_whose_report_was_lost_is_not_triggered_twice(
    plane: GatedControlPlane, origin: Origin
) -> None:
    application = await add_application(plane, origin, WAIT)
    async with plane.piped.run(origin.remote):
        await wait_for_status(plane, DeploymentStatus.SUCCESS)
        plane.gate.held_answers.add("CreateDeploymentInOrder")
        command = await plane.cases.applications.sync(
            application, SyncStrategy.AUTO, by=plane.admin
        )
        await eventually(lambda: "CreateDeploymentInOrder done" in plane.gate.calls, 20)
    plane.gate.held_answers.clear()
    async with plane.piped.run(origin.remote):
        handled = await plane.wait_for_command(command)
        await wait_for_status(plane, DeploymentStatus.SUCCESS)
    deployments = await plane.deployments()
    assert handled.status == CommandStatus.SUCCEEDED
    assert handled.metadata["TriggeredDeploymentID"] in {d.id for d in deployments}
    assert len(deployments) == 2


async def test_two_syncs_of_one_application_are_two_deployments_with_a_report_each(
    plane: GatedControlPlane, origin: Origin
) -> None:
    application = await add_application(plane, origin, WAIT)
    async with plane.piped.run(origin.remote):
        await wait_for_status(plane, DeploymentStatus.SUCCESS)
        commands = [
            await plane.cases.applications.sync(application, SyncStrategy.AUTO, by=plane.admin)
            for _ in range(2)
        ]
        handled = [await plane.wait_for_command(command) for command in commands]
    assert {command.status for command in handled} == {CommandStatus.SUCCEEDED}
    assert len({command.metadata["TriggeredDeploymentID"] for command in handled}) == 2


async def test_a_cancel_whose_report_was_lost_is_reported_after_a_restart(
    plane: GatedControlPlane, origin: Origin
) -> None:
    await add_application(plane, origin, LONG)
    plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
    async with plane.piped.run(origin.remote):
        deployment, _ = await wait_for_stage(plane, "WAIT")
        cancel = plane.cases.deployments.cancel
        commands = [await cancel(deployment.id, False, False, by=plane.admin) for _ in range(2)]
        await wait_for_status(plane, DeploymentStatus.CANCELLED)
        await eventually(lambda: plane.gate.count("ReportCommandHandled"), 20)
    plane.gate.refusals.clear()
    async with plane.piped.run(origin.remote):
        handled = [await plane.wait_for_command(command) for command in commands]
    assert {command.status for command in handled} == {CommandStatus.SUCCEEDED}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param({"type": Command.SYNC_APPLICATION, "application_id": "gone", "sync_application": Command.SyncApplication(application_id="gone")}, id="a sync"),
        pytest.param({"type": Command.CHAIN_SYNC_APPLICATION, "application_id": "gone", "chain_sync_application": Command.ChainSyncApplication(deployment_chain_id="x", application_id="gone", block_index=1)}, id="a step of a chain"),
        pytest.param({"type": Command.UPDATE_APPLICATION_CONFIG, "application_id": "gone"}, id="an update of the application file"),
        pytest.param({"type": Command.CANCEL_DEPLOYMENT, "deployment_id": "gone", "cancel_deployment": Command.CancelDeployment(deployment_id="gone")}, id="a cancel"),
        pytest.param({"type": Command.APPROVE_STAGE, "deployment_id": "gone", "stage_id": "gone", "approve_stage": Command.ApproveStage(deployment_id="gone", stage_id="gone")}, id="an approval"),
        pytest.param({"type": Command.SKIP_STAGE, "deployment_id": "gone", "stage_id": "gone", "skip_stage": Command.SkipStage(deployment_id="gone", stage_id="gone")}, id="a skip"),
    ],
)  # fmt: skip
async def test_a_command_for_something_that_no_longer_exists_fails(
    plane: GatedControlPlane, origin: Origin, command: dict[str, Any]
) -> None:
    await add_application(plane, origin, WAIT)
    async with plane.piped.run(origin.remote):
        handled = await plane.wait_for_command(await store_command(plane, **command))
    assert handled.status == CommandStatus.FAILED


async def test_an_approval_and_a_second_one_are_both_reported(
    plane: GatedControlPlane, origin: Origin
) -> None:
    await add_application(plane, origin, APPROVAL)
    async with plane.piped.run(origin.remote):
        deployment, stage = await wait_for_stage(plane, "WAIT_APPROVAL")
        approve = plane.cases.deployments.approve
        commands = [await approve(deployment.id, stage.id, by=plane.admin) for _ in range(2)]
        handled = [await plane.wait_for_command(command) for command in commands]
        await wait_for_status(plane, DeploymentStatus.SUCCESS)
    assert {command.status for command in handled} == {CommandStatus.SUCCEEDED}


async def test_an_approval_whose_report_was_lost_is_reported_after_a_restart(
    plane: GatedControlPlane, origin: Origin
) -> None:
    await add_application(plane, origin, APPROVAL)
    plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
    async with plane.piped.run(origin.remote):
        deployment, stage = await wait_for_stage(plane, "WAIT_APPROVAL")
        command = await plane.cases.deployments.approve(deployment.id, stage.id, by=plane.admin)
        await eventually(lambda: plane.gate.count("ReportCommandHandled"), 20)
    plane.gate.refusals.clear()
    async with plane.piped.run(origin.remote):
        assert (await plane.wait_for_command(command)).status == CommandStatus.SUCCEEDED
        await wait_for_status(plane, DeploymentStatus.SUCCESS)


async def test_a_command_rereads_the_application_file_at_once(
    plane: GatedControlPlane, origin: Origin
) -> None:
    application = await add_application(plane, origin, WAIT)
    async with plane.piped.run(origin.remote):
        await wait_for_status(plane, DeploymentStatus.SUCCESS)
        origin.commit({"cart/app.pipecd.yaml": APP.format(name="trolley", stages=WAIT)})
        command = await store_command(
            plane, type=Command.UPDATE_APPLICATION_CONFIG, application_id=application
        )
        assert (await plane.wait_for_command(command)).status == CommandStatus.SUCCEEDED
        assert (await plane.application(application)).name == "trolley"


async def test_a_restart_whose_report_is_refused_does_not_restart_forever(
    plane: GatedControlPlane, origin: Origin
) -> None:
    await add_application(plane, origin, WAIT)
    plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.PERMISSION_DENIED
    async with plane.piped.run(origin.remote) as piped:
        await plane.cases.pipeds.restart(plane.piped.id, by=plane.admin)
        await eventually(lambda: plane.gate.count("ReportCommandHandled"), 20)
        await wait_for_status(plane, DeploymentStatus.SUCCESS)
        assert not piped.done()
        plane.gate.refusals.clear()
        again = await plane.cases.pipeds.restart(plane.piped.id, by=plane.admin)
        async with asyncio.timeout(20):
            await piped
    handled = await plane.command(again)
    assert handled.status == CommandStatus.SUCCEEDED


async def test_two_restart_commands_cause_one_restart(
    plane: GatedControlPlane, origin: Origin
) -> None:
    await add_application(plane, origin, WAIT)
    restart = plane.cases.pipeds.restart
    commands = [await restart(plane.piped.id, by=plane.admin) for _ in range(2)]
    async with plane.piped.run(origin.remote) as piped, asyncio.timeout(20):
        await piped
    for command in commands:
        assert (await plane.command(command)).status == CommandStatus.SUCCEEDED
    async with plane.piped.run(origin.remote) as piped:
        await wait_for_status(plane, DeploymentStatus.SUCCESS)
        assert not piped.done()


def deployment_with(
    status: "deployment_pb2.DeploymentStatus.ValueType",
    stage: "deployment_pb2.StageStatus.ValueType | None" = None,
) -> Deployment:
    stages = [] if stage is None else [PipelineStage(id="s", name="WAIT_APPROVAL", status=stage)]
    return Deployment(id="d", status=status, stages=stages)


FAILED, SUCCEEDED = CommandStatus.FAILED, CommandStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        pytest.param(None, CommandResult(FAILED, "the deployment does not exist"), id="no deployment"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_PENDING), None, id="a deployment that is not planned yet"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_RUNNING), CommandResult(FAILED, "the deployment has no such stage"), id="a deployment without the stage"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_NOT_STARTED_YET), None, id="a stage that has not started"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_RUNNING), None, id="a stage that runs"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_SUCCESS), CommandResult(SUCCEEDED), id="a stage that was approved"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_SKIPPED), CommandResult(SUCCEEDED), id="a stage that was skipped"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_ROLLING_BACK, deployment_pb2.STAGE_FAILURE), CommandResult(FAILED, "the stage WAIT_APPROVAL had already failed"), id="a stage that failed"),
        pytest.param(deployment_with(deployment_pb2.DEPLOYMENT_CANCELLED, deployment_pb2.STAGE_NOT_STARTED_YET), CommandResult(FAILED, "the deployment had ended before the stage WAIT_APPROVAL did"), id="a stage of a cancelled deployment"),
    ],
)  # fmt: skip
def test_the_result_of_a_command_for_a_stage(
    deployment: Deployment | None, expected: CommandResult | None
) -> None:
    approval = Command(stage_id="s", type=Command.APPROVE_STAGE)
    assert stage_command_result(approval, deployment) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(
            deployment_pb2.STAGE_SUCCESS,
            CommandResult(FAILED, "the stage WAIT_APPROVAL had already succeeded"),
            id="too late",
        ),
        pytest.param(deployment_pb2.STAGE_SKIPPED, CommandResult(SUCCEEDED), id="skipped"),
    ],
)
def test_the_result_of_a_skip(
    status: "deployment_pb2.StageStatus.ValueType", expected: CommandResult
) -> None:
    skip = Command(stage_id="s", type=Command.SKIP_STAGE)
    deployment = deployment_with(deployment_pb2.DEPLOYMENT_RUNNING, status)
    assert stage_command_result(skip, deployment) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(
            deployment_pb2.STAGE_SUCCESS,
            CommandResult(FAILED, "the stage WAIT_APPROVAL had already succeeded"),
            id="too late",
        ),
        pytest.param(deployment_pb2.STAGE_FAILURE, CommandResult(SUCCEEDED), id="the stage failed"),
    ],
)
def test_the_result_of_a_rejection(
    status: "deployment_pb2.StageStatus.ValueType", expected: CommandResult
) -> None:
    rejection = Command(stage_id="s", metadata={"RejectionReason": "too risky"})
    deployment = deployment_with(deployment_pb2.DEPLOYMENT_RUNNING, status)
    assert stage_command_result(rejection, deployment) == expected
