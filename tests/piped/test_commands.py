# SPDX-License-Identifier: Apache-2.0
"""A whole piped handles each type of command once, and reports it whatever happens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
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


@dataclass
class Scene:
    """A control plane behind a gate, and a piped that can be killed and started again."""

    plane: GatedControlPlane
    origin: Origin
    application: str = ""

    def piped(self) -> AbstractAsyncContextManager["asyncio.Task[None]"]:
        return self.plane.piped.run(self.origin.remote)

    async def begin(self, stages: str) -> None:
        """Adds an application with these stages."""
        self.origin.commit({"cart/app.pipecd.yaml": APP.format(name="cart", stages=stages)})
        await self.plane.piped.add_repository("site", self.origin.remote)
        self.application = await self.plane.piped.add_application("cart")

    async def give(self, **command: Any) -> str:
        """Gives a command as the control plane stores it."""
        made = Command(piped_id=self.plane.piped.id, project_id="shop", commander="ann", **command)
        return await self.plane.cases.commands.add(made)

    async def answered(self, id: str) -> Command:
        return await self.plane.wait_for_command(id)

    async def one(self, status: DeploymentStatus) -> Deployment:
        """The newest deployment, once it has the status."""
        return await self.plane.wait_for_newest_deployment(lambda d: d.status == status)

    async def at_stage(self, name: str) -> tuple[Deployment, PipelineStage]:
        """The newest deployment and its stage of that name, once it runs."""
        found = await self.plane.wait_for_newest_deployment(lambda d: has_running(d, name))
        return found, next(s for s in found.stages if s.name == name)


@pytest.fixture
async def scene(
    open_plane: OpenControlPlane, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Scene]:
    monkeypatch.setattr(command_handlers, "STAGE_CHECK_INTERVAL", 0.05)
    async with open_plane() as plane:
        yield Scene(plane, origin)


async def test_a_sync_whose_report_was_lost_is_not_triggered_twice(scene: Scene) -> None:
    await scene.begin(WAIT)
    async with scene.piped():
        await scene.one(DeploymentStatus.SUCCESS)
        scene.plane.gate.held_answers.add("CreateDeployment")
        command = await scene.plane.cases.applications.sync(
            scene.application, SyncStrategy.AUTO, by=scene.plane.admin
        )
        await eventually(lambda: "CreateDeployment done" in scene.plane.gate.calls, 20)
    scene.plane.gate.held_answers.clear()
    async with scene.piped():
        handled = await scene.answered(command)
        await scene.one(DeploymentStatus.SUCCESS)
    made = await scene.plane.deployments()
    assert handled.status == CommandStatus.SUCCEEDED
    assert handled.metadata["TriggeredDeploymentID"] in {d.id for d in made}
    assert len(made) == 2


async def test_two_syncs_of_one_application_are_two_deployments_with_a_report_each(
    scene: Scene,
) -> None:
    await scene.begin(WAIT)
    async with scene.piped():
        await scene.one(DeploymentStatus.SUCCESS)
        commands = [
            await scene.plane.cases.applications.sync(
                scene.application, SyncStrategy.AUTO, by=scene.plane.admin
            )
            for _ in range(2)
        ]
        answers = [await scene.answered(command) for command in commands]
    assert {answer.status for answer in answers} == {CommandStatus.SUCCEEDED}
    assert len({answer.metadata["TriggeredDeploymentID"] for answer in answers}) == 2


async def test_a_cancel_whose_report_was_lost_is_reported_after_a_restart(
    scene: Scene,
) -> None:
    await scene.begin(LONG)
    scene.plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
    async with scene.piped():
        deployment, _ = await scene.at_stage("WAIT")
        cancel = scene.plane.cases.deployments.cancel
        commands = [
            await cancel(deployment.id, False, False, by=scene.plane.admin) for _ in range(2)
        ]
        await scene.one(DeploymentStatus.CANCELLED)
        await eventually(lambda: scene.plane.gate.count("ReportCommandHandled"), 20)
    scene.plane.gate.refusals.clear()
    async with scene.piped():
        answers = [await scene.answered(command) for command in commands]
    assert {answer.status for answer in answers} == {CommandStatus.SUCCEEDED}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param({"type": Command.SYNC_APPLICATION, "application_id": "gone", "sync_application": Command.SyncApplication(application_id="gone")}, id="a sync"),
        pytest.param({"type": Command.CHAIN_SYNC_APPLICATION, "application_id": "gone", "chain_sync_application": Command.ChainSyncApplication(deployment_chain_id="x", application_id="gone", block_index=1)}, id="a step of a chain"),
        pytest.param({"type": Command.UPDATE_APPLICATION_CONFIG, "application_id": "gone"}, id="another look at a file"),
        pytest.param({"type": Command.CANCEL_DEPLOYMENT, "deployment_id": "gone", "cancel_deployment": Command.CancelDeployment(deployment_id="gone")}, id="a cancel"),
        pytest.param({"type": Command.APPROVE_STAGE, "deployment_id": "gone", "stage_id": "gone", "approve_stage": Command.ApproveStage(deployment_id="gone", stage_id="gone")}, id="an approval"),
        pytest.param({"type": Command.SKIP_STAGE, "deployment_id": "gone", "stage_id": "gone", "skip_stage": Command.SkipStage(deployment_id="gone", stage_id="gone")}, id="a skip"),
    ],
)  # fmt: skip
async def test_a_command_for_something_that_no_longer_exists_fails(
    scene: Scene, command: dict[str, Any]
) -> None:
    await scene.begin(WAIT)
    async with scene.piped():
        handled = await scene.answered(await scene.give(**command))
    assert handled.status == CommandStatus.FAILED


async def test_an_approval_and_a_second_one_are_both_reported(scene: Scene) -> None:
    await scene.begin(APPROVAL)
    async with scene.piped():
        deployment, stage = await scene.at_stage("WAIT_APPROVAL")
        approve = scene.plane.cases.deployments.approve
        commands = [await approve(deployment.id, stage.id, by=scene.plane.admin) for _ in range(2)]
        answers = [await scene.answered(command) for command in commands]
        await scene.one(DeploymentStatus.SUCCESS)
    assert {answer.status for answer in answers} == {CommandStatus.SUCCEEDED}


async def test_an_approval_whose_report_was_lost_is_reported_after_a_restart(
    scene: Scene,
) -> None:
    await scene.begin(APPROVAL)
    scene.plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
    async with scene.piped():
        deployment, stage = await scene.at_stage("WAIT_APPROVAL")
        command = await scene.plane.cases.deployments.approve(
            deployment.id, stage.id, by=scene.plane.admin
        )
        await eventually(lambda: scene.plane.gate.count("ReportCommandHandled"), 20)
    scene.plane.gate.refusals.clear()
    async with scene.piped():
        assert (await scene.answered(command)).status == CommandStatus.SUCCEEDED
        await scene.one(DeploymentStatus.SUCCESS)


async def test_a_command_rereads_the_application_file_at_once(scene: Scene) -> None:
    await scene.begin(WAIT)
    async with scene.piped():
        await scene.one(DeploymentStatus.SUCCESS)
        scene.origin.commit({"cart/app.pipecd.yaml": APP.format(name="trolley", stages=WAIT)})
        command = await scene.give(
            type=Command.UPDATE_APPLICATION_CONFIG, application_id=scene.application
        )
        assert (await scene.answered(command)).status == CommandStatus.SUCCEEDED
        assert (await scene.plane.application(scene.application)).name == "trolley"


async def test_a_restart_whose_report_is_refused_does_not_restart_forever(scene: Scene) -> None:
    await scene.begin(WAIT)
    scene.plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.PERMISSION_DENIED
    async with scene.piped() as piped:
        await scene.plane.cases.pipeds.restart(scene.plane.piped.id, by=scene.plane.admin)
        await eventually(lambda: scene.plane.gate.count("ReportCommandHandled"), 20)
        await scene.one(DeploymentStatus.SUCCESS)
        assert not piped.done()
        scene.plane.gate.refusals.clear()
        again = await scene.plane.cases.pipeds.restart(scene.plane.piped.id, by=scene.plane.admin)
        async with asyncio.timeout(20):
            await piped
    handled = await scene.plane.command(again)
    assert handled.status == CommandStatus.SUCCEEDED


async def test_two_restart_commands_cause_one_restart(scene: Scene) -> None:
    await scene.begin(WAIT)
    restart = scene.plane.cases.pipeds.restart
    commands = [await restart(scene.plane.piped.id, by=scene.plane.admin) for _ in range(2)]
    async with scene.piped() as piped, asyncio.timeout(20):
        await piped
    for command in commands:
        assert (await scene.plane.command(command)).status == CommandStatus.SUCCEEDED
    async with scene.piped() as piped:
        await scene.one(DeploymentStatus.SUCCESS)
        assert not piped.done()


def deployment(
    status: "deployment_pb2.DeploymentStatus.ValueType",
    stage: "deployment_pb2.StageStatus.ValueType | None" = None,
) -> Deployment:
    stages = [] if stage is None else [PipelineStage(id="s", name="WAIT_APPROVAL", status=stage)]
    return Deployment(id="d", status=status, stages=stages)


FAILED, SUCCEEDED = CommandStatus.FAILED, CommandStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(None, CommandResult(FAILED, "the deployment does not exist"), id="nothing"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_PENDING), None, id="one that is not planned yet"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_RUNNING), CommandResult(FAILED, "the deployment has no such stage"), id="one without the stage"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_NOT_STARTED_YET), None, id="a stage that comes later"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_RUNNING), None, id="a stage that runs"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_SUCCESS), CommandResult(SUCCEEDED), id="a stage that was approved"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_RUNNING, deployment_pb2.STAGE_SKIPPED), CommandResult(SUCCEEDED), id="a stage that was skipped"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_ROLLING_BACK, deployment_pb2.STAGE_FAILURE), CommandResult(FAILED, "the stage WAIT_APPROVAL had already ended: FAILURE"), id="a stage that failed"),
        pytest.param(deployment(deployment_pb2.DEPLOYMENT_CANCELLED, deployment_pb2.STAGE_NOT_STARTED_YET), CommandResult(FAILED, "the stage WAIT_APPROVAL had already ended: NOT_STARTED_YET"), id="a stage that never comes"),
    ],
)  # fmt: skip
def test_the_result_of_a_command_for_a_stage(
    found: Deployment | None, expected: CommandResult | None
) -> None:
    assert stage_command_result(Command(stage_id="s"), found) == expected
