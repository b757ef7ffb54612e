# SPDX-License-Identifier: Apache-2.0
"""Notifications about a deployment: each change once, also after restarts of piped."""

import asyncio
from typing import Any

import pytest

from pipecd.piped.notify.event import EventType, subject_of, text_field
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentMetadata
from servers.deployer import OpenStand

ACTS = "  pipeline: {stages: [%s]}\n"


def act(do: str, undo: str = "") -> str:
    return f"{{name: ACT, with: {{do: {do}, undo: '{undo}'}}}}"


BEGINNING = ["DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED"]


@pytest.mark.parametrize(
    ("stages", "heard"),
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
    open_stand: OpenStand, stages: str, heard: list[str]
) -> None:
    async with open_stand() as stand:
        commit = stand.push(ACTS % stages)
        async with stand.piped():
            await stand.finished(await stand.trigger(commit))
        assert stand.heard.names == [*BEGINNING, *heard]
        assert len({notice.key for notice in stand.heard.events}) == len(stand.heard.events)


async def test_a_failure_notification_has_the_reason(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        commit = stand.push(ACTS % act("fail"))
        async with stand.piped():
            await stand.finished(await stand.trigger(commit))
        told = {notice.type: notice.metadata for notice in stand.heard.events}
        assert "it did not work" in text_field(told[EventType.DEPLOYMENT_FAILED], "reason")
        stage = subject_of(told[EventType.STAGE_FAILED]).stage
        assert stage is not None
        assert stage.status_reason == "it did not work"


async def test_a_failed_plan_is_notified_as_a_failed_deployment(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        commit = stand.push("  pipeline: {stages: [{name: NO_SUCH_STAGE}]}\n")
        async with stand.piped():
            await stand.finished(await stand.trigger(commit))
        assert stand.heard.names == ["DEPLOYMENT_FAILED"]
        assert "Unable to plan" in text_field(stand.heard.events[0].metadata, "reason")


async def test_a_cancel_notification_names_the_user(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        commit = stand.push(ACTS % act("hang"))
        async with stand.piped():
            id_ = await stand.trigger(commit)
            await stand.story.wait_for("act 0 begins")
            await stand.cancel(id_)
            await stand.finished(id_)
        *_, stage, last = stand.heard.events
        assert [stage.type.name, last.type.name] == ["STAGE_CANCELLED", "DEPLOYMENT_CANCELLED"]
        assert text_field(last.metadata, "commander") == "root"


async def test_a_restart_repeats_no_notification(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        commit = stand.push(ACTS % act("hang"))
        async with stand.piped():
            id_ = await stand.trigger(commit)
            await stand.story.wait_for("act 0 begins")
        stand.let_go("act 0")
        async with stand.piped():
            await stand.finished(id_)
        assert stand.heard.names == [
            *BEGINNING,
            "STAGE_STARTED",
            "STAGE_SUCCEEDED",
            "DEPLOYMENT_SUCCEEDED",
        ]


async def test_a_piped_that_stops_before_its_report_arrives_notifies_again_with_the_same_key(
    open_stand: OpenStand,
) -> None:
    async with open_stand() as stand:
        commit = stand.push(ACTS % act("succeed"))
        stand.plane.gate.close("ReportDeploymentCompleted")
        async with stand.piped():
            id_ = await stand.trigger(commit)
            async with asyncio.timeout(20):
                await stand.plane.gate.refused.wait_for("ReportDeploymentCompleted")
        stand.plane.gate.open()
        async with stand.piped():
            await stand.finished(id_)
        ends = [n for n in stand.heard.events if n.type is EventType.DEPLOYMENT_SUCCEEDED]
        assert len(ends) == 2
        assert len({notice.key for notice in ends}) == 1


async def test_an_approval_is_requested_and_then_notified_with_the_approvers(
    open_stand: OpenStand,
) -> None:
    async with open_stand() as stand:
        spec = "  pipeline: {stages: [{name: WAIT_APPROVAL, with: {approvers: [root]}}]}\n"
        async with stand.piped():
            id_ = await stand.trigger(stand.push(spec))
            deployment = await stand.until(id_, lambda d: d.stages and d.stages[0].status == 1)
            await stand.plane.cases.deployments.approve(
                id_, deployment.stages[0].id, by=stand_admin()
            )
            await stand.finished(id_)
        assert stand.heard.names == [
            *BEGINNING,
            "STAGE_STARTED",
            "DEPLOYMENT_WAIT_APPROVAL",
            "DEPLOYMENT_APPROVED",
            "STAGE_SUCCEEDED",
            "DEPLOYMENT_SUCCEEDED",
        ]
        assert text_field(stand.heard.events[4].metadata, "approver") == "root"


def stand_admin() -> Any:
    from pipecd.controlplane.auth.subject import User

    return User("shop", "root", ("Admin",))


async def test_each_notification_mentions_the_configured_users(open_stand: OpenStand) -> None:
    wanted = (
        '{"mentions":[{"event":"DEPLOYMENT_SUCCEEDED","slack":null,"slackusers":["U1"]},'
        '{"event":"DEPLOYMENT_CANCELLED","slackusers":["U2"]},'
        '{"event":"*","slackgroups":["G1"],"email":["ann@example.com"]}]}'
    )
    async with open_stand() as stand:
        commit = stand.push(ACTS % act("succeed"))
        shared = DeploymentMetadata.KeyValues(keyValues={"DeploymentNotification": wanted})
        async with stand.piped():
            await stand.finished(
                await stand.trigger(commit, metadata_v2=DeploymentMetadata(shared=shared))
            )
        by_kind: dict[EventType, Any] = {n.type: n.metadata for n in stand.heard.events}
        succeeded = by_kind[EventType.DEPLOYMENT_SUCCEEDED]
        assert list(succeeded.mentioned_accounts) == ["U1"]
        assert list(succeeded.mentioned_groups) == ["G1"]
        assert list(by_kind[EventType.DEPLOYMENT_STARTED].mentioned_accounts) == []


async def test_a_notification_is_not_changed_by_later_reports(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        commit = stand.push(ACTS % act("succeed"))
        async with stand.piped():
            await stand.finished(await stand.trigger(commit))
        planned: Deployment | None = subject_of(stand.heard.events[0].metadata).deployment
        assert planned is not None
        assert planned.status == 1
