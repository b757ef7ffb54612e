# SPDX-License-Identifier: Apache-2.0
"""Notifications about a deployment: each change once, also after restarts of piped."""

import asyncio
from typing import Any

import pytest

from pipecd.piped.notify.event import EventType, subject_of, text_field
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentMetadata
from servers.deployer import OpenDeployer

ACTS = "  pipeline: {stages: [%s]}\n"


def act(do: str, undo: str = "") -> str:
    return f"{{name: ACT, with: {{do: {do}, undo: '{undo}'}}}}"


BEGINNING = ["DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED"]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        pytest.param(
            act("succeed"),
            ["STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_SUCCEEDED"],
            id="one that succeeds",
        ),
        pytest.param(
            act("exit"),
            ["STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_SUCCEEDED"],
            id="one that ends early",
        ),
        pytest.param(
            f"{act('skip')}, {act('fail', 'succeed')}",
            [
                "STAGE_STARTED", "STAGE_SKIPPED", "STAGE_STARTED", "STAGE_FAILED",
                "DEPLOYMENT_ROLLING_BACK", "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_FAILED",
            ],
            id="one that skips a stage, fails and is rolled back",
        ),
    ],
)  # fmt: skip
async def test_notifications_of_every_step_of(
    open_setup: OpenDeployer, stages: str, expected: list[str]
) -> None:
    async with open_setup() as setup:
        commit = setup.push(ACTS % stages)
        async with setup.piped():
            await setup.finished(await setup.trigger(commit))
        assert setup.notifier.names == [*BEGINNING, *expected]
        assert len({event.key for event in setup.notifier.events}) == len(setup.notifier.events)


async def test_a_failure_notification_has_the_reason(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        commit = setup.push(ACTS % act("fail"))
        async with setup.piped():
            await setup.finished(await setup.trigger(commit))
        events = {event.type: event.metadata for event in setup.notifier.events}
        assert "it did not work" in text_field(events[EventType.DEPLOYMENT_FAILED], "reason")
        stage = subject_of(events[EventType.STAGE_FAILED]).stage
        assert stage is not None
        assert stage.status_reason == "it did not work"


async def test_a_failed_plan_is_notified_as_a_failed_deployment(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        commit = setup.push("  pipeline: {stages: [{name: NO_SUCH_STAGE}]}\n")
        async with setup.piped():
            await setup.finished(await setup.trigger(commit))
        assert setup.notifier.names == ["DEPLOYMENT_TRIGGERED", "DEPLOYMENT_FAILED"]
        assert "Unable to plan" in text_field(setup.notifier.events[1].metadata, "reason")


async def test_a_cancel_notification_names_the_user(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        commit = setup.push(ACTS % act("hang"))
        async with setup.piped():
            id_ = await setup.trigger(commit)
            await setup.trace.wait_for("act 0 begins")
            await setup.cancel(id_)
            await setup.finished(id_)
        *_, stage, last = setup.notifier.events
        assert [stage.type.name, last.type.name] == ["STAGE_CANCELLED", "DEPLOYMENT_CANCELLED"]
        assert text_field(last.metadata, "commander") == "root"


async def test_a_restart_repeats_no_notification(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        commit = setup.push(ACTS % act("hang"))
        async with setup.piped():
            id_ = await setup.trigger(commit)
            await setup.trace.wait_for("act 0 begins")
        setup.release_stage("act 0")
        async with setup.piped():
            await setup.finished(id_)
        assert setup.notifier.names == [
            *BEGINNING,
            "STAGE_STARTED",
            "STAGE_SUCCEEDED",
            "DEPLOYMENT_SUCCEEDED",
        ]


async def test_a_piped_that_stops_before_its_report_arrives_notifies_again_with_the_same_key(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        commit = setup.push(ACTS % act("succeed"))
        setup.plane.gate.close("ReportDeploymentCompleted")
        async with setup.piped():
            id_ = await setup.trigger(commit)
            async with asyncio.timeout(20):
                await setup.plane.gate.refused.wait_for("ReportDeploymentCompleted")
        setup.plane.gate.open()
        async with setup.piped():
            await setup.finished(id_)
        ends = [n for n in setup.notifier.events if n.type is EventType.DEPLOYMENT_SUCCEEDED]
        assert len(ends) == 2
        assert len({event.key for event in ends}) == 1


async def test_an_approval_is_requested_and_then_notified_with_the_approvers(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        spec = "  pipeline: {stages: [{name: WAIT_APPROVAL, with: {approvers: [root]}}]}\n"
        async with setup.piped():
            id_ = await setup.trigger(setup.push(spec))
            deployment = await setup.until(id_, lambda d: d.stages and d.stages[0].status == 1)
            await setup.plane.cases.deployments.approve(
                id_, deployment.stages[0].id, by=stand_admin()
            )
            await setup.finished(id_)
        assert setup.notifier.names == [
            *BEGINNING,
            "STAGE_STARTED",
            "DEPLOYMENT_WAIT_APPROVAL",
            "DEPLOYMENT_APPROVED",
            "STAGE_SUCCEEDED",
            "DEPLOYMENT_SUCCEEDED",
        ]
        assert text_field(setup.notifier.events[5].metadata, "approver") == "root"


def stand_admin() -> Any:
    from pipecd.controlplane.auth.subject import User

    return User("shop", "root", ("Admin",))


async def test_each_notification_mentions_the_configured_users(open_setup: OpenDeployer) -> None:
    mentions = (
        '{"mentions":[{"event":"DEPLOYMENT_SUCCEEDED","slack":null,"slackusers":["U1"]},'
        '{"event":"DEPLOYMENT_CANCELLED","slackusers":["U2"]},'
        '{"event":"*","slackgroups":["G1"],"email":["ann@example.com"]}]}'
    )
    async with open_setup() as setup:
        commit = setup.push(ACTS % act("succeed"))
        shared = DeploymentMetadata.KeyValues(keyValues={"DeploymentNotification": mentions})
        async with setup.piped():
            await setup.finished(
                await setup.trigger(commit, metadata_v2=DeploymentMetadata(shared=shared))
            )
        by_kind: dict[EventType, Any] = {n.type: n.metadata for n in setup.notifier.events}
        succeeded = by_kind[EventType.DEPLOYMENT_SUCCEEDED]
        assert list(succeeded.mentioned_accounts) == ["U1"]
        assert list(succeeded.mentioned_groups) == ["G1"]
        assert list(by_kind[EventType.DEPLOYMENT_STARTED].mentioned_accounts) == []


async def test_a_notification_is_not_changed_by_later_reports(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        commit = setup.push(ACTS % act("succeed"))
        async with setup.piped():
            await setup.finished(await setup.trigger(commit))
        planned: Deployment | None = subject_of(setup.notifier.events[1].metadata).deployment
        assert planned is not None
        assert planned.status == 1
