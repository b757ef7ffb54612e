# SPDX-License-Identifier: Apache-2.0
"""What becomes of a command is said where it was given, in a real browser."""

import re
from collections.abc import Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.maintenance import time_out_commands
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.clock import Now
from pipecd.model.command import REASON_KEY, CommandStatus
from pipecd.model.deployment import (
    APPROVED_USERS_KEY,
    DeploymentStatus,
    StageStatus,
    SyncStrategy,
)
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


async def test_a_failed_sync_shows_its_reason(
    *,
    open_page: OpenPage,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    await reports.online()
    page = await open_page(f"/applications/{application.id}")
    await page.get_by_test_id("sync-button").click()
    notice = page.get_by_test_id("notice")
    await expect(notice).to_contain_text("picks it up in a moment")
    (command,) = await cases.commands.list_unhandled(by=piped)
    reason = {REASON_KEY: "apps/cart/app.pipecd.yaml:3: unknown field witth"}
    result = CommandResult(command.id, CommandStatus.FAILED, 1, reason)
    await cases.commands.report_handled(result, by=piped)
    await expect(notice).to_contain_text(f"failed: {reason[REASON_KEY]}.")


async def test_a_sync_that_no_piped_handles_waits_and_then_says_so(
    *,
    open_page: OpenPage,
    application: Application,
    stores: Stores,
    bus: MemoryBus,
    now: Now,
    advance: Callable[[float], None],
) -> None:
    page = await open_page(f"/applications/{application.id}")
    await page.get_by_test_id("sync-button").click()
    notice = page.get_by_test_id("notice")
    await expect(notice).to_contain_text("dev is offline; it is executed when that piped is back")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    advance(24 * 3600 + 1)
    assert await time_out_commands(stores.commands, bus, now=now) == 1
    await expect(notice).to_contain_text("dev did not handle the sync in time. Request it again.")


@pytest.mark.parametrize("scripts", [True, False])
async def test_the_strategy_of_a_sync_is_chosen_in_its_menu(
    *,
    scripts: bool,
    open_page: OpenPage,
    console_url: str,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    page = await open_page(f"/applications/{application.id}", java_script_enabled=scripts)
    for name in ("Quick sync", "Pipeline sync"):
        await page.goto(f"{console_url}/applications/{application.id}")
        await page.get_by_test_id("sync-menu").click()
        await page.get_by_role("button", name=name).click()
        await expect(page.get_by_test_id("notice")).to_contain_text("The sync is requested")
    commands = await cases.commands.list_unhandled(by=piped)
    assert {command.sync_application.sync_strategy for command in commands} == {
        SyncStrategy.QUICK_SYNC,
        SyncStrategy.PIPELINE,
    }


@pytest.fixture
async def waiting(running: Deployment, stores: Stores, reports: PipedReports) -> Deployment:
    """A deployment that waits for two of three approvals, one of which it has."""

    def change(stored: Deployment) -> None:
        stage = stored.stages[1]
        stage.authorized_operators.extend(["ann", "bob", "cleo"])
        stage.requires.append("s1")
        stage.metadata["pipecd/stage-required-approvals"] = "2"
        stage.metadata["pipecd/stage-timeout"] = "21600"

    await stores.deployments.update(running.id, change)
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    return running


@pytest.mark.parametrize("width", [1280, 390])
async def test_an_approval_says_how_many_who_and_until_when(
    *,
    width: int,
    open_page: OpenPage,
    waiting: Deployment,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    ann, viewport = User("shop", "ann", ("Editor",)), {"width": width, "height": 800}
    page = await open_page(f"/deployments/{waiting.id}", user=ann, viewport=viewport)
    card = page.get_by_test_id("approval-card")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await expect(card).to_contain_text("0 of 2 approvals")
    await expect(card).to_contain_text("ann (you), bob or cleo can approve.")
    await expect(card).to_contain_text(re.compile("times out in (6h 00m|5h 59m)"))
    deadline = card.locator("time[data-until]")
    await expect(deadline).to_have_attribute("title", "2026-01-02 09:04:05 UTC")
    # What there is to do stands before what there is to read.
    facts = await page.locator("dl.facts").bounding_box()
    box = await card.bounding_box()
    assert facts
    assert box
    assert box["y"] + box["height"] <= facts["y"]
    assert box["y"] + box["height"] < 800
    await page.get_by_test_id("approve-button").click()
    await expect(page.get_by_test_id("notice")).to_contain_text("approval is requested")
    # The piped counts it, and the page shows it at once.
    await cases.deployment_reports.save_stage_metadata(
        waiting.id, "s2", {APPROVED_USERS_KEY: "ann"}, by=piped
    )
    await expect(page.get_by_test_id("approval-progress")).to_have_text("1 of 2 approvals")
    await expect(card).to_contain_text("Approved by ann. bob or cleo can approve.")
    await expect(page.get_by_test_id("status-text")).to_contain_text("Once 1 more person approves")
    await expect(card).to_contain_text("You have approved")
    await expect(page.get_by_test_id("approve-button")).to_be_disabled()


async def test_an_approver_rejects_with_a_reason(
    *,
    open_page: OpenPage,
    waiting: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    bob = User("shop", "bob", ("Editor",))
    page = await open_page(f"/deployments/{waiting.id}", user=bob)
    # Upstream's piped knows no rejection.
    await expect(page.get_by_test_id("reject-button")).to_have_count(0)
    await expect(page.get_by_test_id("approval-card")).to_contain_text("cancel the deployment")
    request = AcquirePipedLeaseRequest(host="worker")
    request.ticket = (await cases.piped_leases.acquire(request, by=piped))[0].ticket
    await cases.piped_leases.acquire(request, by=piped)
    await page.reload()
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await page.get_by_test_id("reject-button").click()
    await page.get_by_label("Why do you reject?").fill("not on a Friday")
    await page.get_by_role("button", name="Reject the stage").click()
    await expect(page.get_by_test_id("notice")).to_contain_text("The rejection is requested")
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.commander == "bob"
    reason = f"Rejected by bob: {command.metadata['RejectionReason']}"
    await reports.stage(waiting, "s2", StageStatus.FAILURE, reason)
    await cases.commands.report_handled(
        CommandResult(command.id, CommandStatus.SUCCEEDED, 1), by=piped
    )
    await expect(page.get_by_test_id("notice")).to_contain_text("rejection you requested succeeded")
    await expect(page.get_by_test_id("log")).to_contain_text("Rejected by bob: not on a Friday.")


async def test_an_approval_that_comes_too_late_says_so_where_it_was_given(
    open_page: OpenPage, waiting: Deployment, reports: PipedReports, console_url: str
) -> None:
    ann = User("shop", "ann", ("Editor",))
    path = f"/deployments/{waiting.id}?stage=s1&find=line"
    # Without scripts, the page does not know what has happened.
    page = await open_page(path, user=ann, java_script_enabled=False)
    await reports.stage(waiting, "s2", StageStatus.SUCCESS)
    await page.get_by_test_id("approve-button").click()
    await expect(page.get_by_test_id("flash")).to_have_text(
        "The approval came too late: WAIT_APPROVAL has already succeeded."
    )
    assert page.url == console_url + path


async def test_an_ended_deployment_can_be_synced_again(
    *,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    viewer: User,
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    again = page.get_by_test_id("sync-again")
    await expect(again).to_have_count(0)
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await again.click()
    await expect(page.get_by_test_id("notice")).to_contain_text("The sync is requested")
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.application_id == running.application_id
    watched = await open_page(f"/deployments/{running.id}", user=viewer)
    await expect(watched.get_by_test_id("dep-status").first).to_have_text("Failed")
    await expect(watched.get_by_test_id("sync-again")).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 390])
async def test_a_later_success_appears_on_the_page_of_an_ended_deployment(
    *,
    width: int,
    open_page: OpenPage,
    running: Deployment,
    new_deployment: Callable[[], Deployment],
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    await reports.deployment(running, DeploymentStatus.FAILURE)
    size = {"width": width, "height": 800}
    page = await open_page(f"/deployments/{running.id}", viewport=size)
    await expect(page.get_by_test_id("conn-dot")).to_have_attribute("data-state", "live")
    # There is nothing left to wait for.
    await expect(page.get_by_test_id("notify-me")).to_be_hidden()
    again = page.get_by_test_id("sync-again-text")
    await expect(again).to_contain_text("c0ffee “more coffee” or newer.")
    await expect(again).to_be_in_viewport(ratio=1)
    root = "document.documentElement"
    assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
    await page.get_by_test_id("roll-back").click()
    await expect(page.get_by_test_id("roll-back-text")).not_to_contain_text("later deployment")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    later = new_deployment()
    later.trigger.commit.hash, later.trigger.commit.message = "beef" * 10, "less coffee"
    later.created_at = running.created_at + 60
    for status in (DeploymentStatus.PENDING, DeploymentStatus.SUCCESS):
        reference = ApplicationDeploymentReference(
            deployment_id=later.id, trigger=later.trigger, started_at=2**33
        )
        await cases.application_reports.report_most_recent_deployment(
            running.application_id, status, reference, by=piped
        )
    await expect(page.get_by_test_id("roll-back-text")).to_contain_text("beefbee runs")
    await expect(again).to_contain_text("beefbee “less coffee” or newer.")
    assert requests, "the page asks only when something has changed"


@pytest.mark.parametrize("width", [1440, 390])
async def test_an_ended_deployment_says_how_to_roll_back(
    width: int, open_page: OpenPage, running: Deployment, reports: PipedReports, viewer: User
) -> None:
    # Git decides who may push, not the roles of the project.
    size = {"width": width, "height": 800}
    page = await open_page(f"/deployments/{running.id}", user=viewer, viewport=size)
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await expect(page.get_by_test_id("roll-back")).to_have_count(0)
    await reports.deployment(running, DeploymentStatus.SUCCESS)
    await page.get_by_test_id("roll-back").click()
    command = page.get_by_test_id("revert-command")
    await expect(command).to_be_in_viewport(ratio=1)
    await expect(command).to_contain_text("git revert --no-edit ")
    await expect(command).to_contain_text("git push")
    root = "document.documentElement"
    assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
