# SPDX-License-Identifier: Apache-2.0
"""Times, sessions that end and notices of the past, in a real browser."""

from collections.abc import Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("is_completed", [False, True])
async def test_times_are_in_the_zone_of_the_reader_from_the_first_page_on(
    *, is_completed: bool, open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    if is_completed:
        await reports.end_of_log(running, "s1")
        await reports.stage(running, "s1", StageStatus.SUCCESS)
        await reports.deployment(running, DeploymentStatus.SUCCESS)
    path = f"/deployments/{running.id}"
    page = await open_page(path, timezone_id="Asia/Tokyo")
    await expect(page.get_by_test_id("log-zone")).to_have_text("Times in JST")
    await expect(page.locator("#L1 time")).to_have_text("12:04:05")
    await expect(page.locator("#L1 time")).to_have_attribute("title", "2026-01-02 12:04:05 JST")
    plain = await open_page(path, timezone_id="Asia/Tokyo", java_script_enabled=False)
    await expect(plain.get_by_test_id("log-zone")).to_have_text("Times in UTC")
    await expect(plain.locator("#L1 time")).to_have_text("03:04:05")


async def test_an_ended_session_says_so_and_returns(
    *,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    static_admin: StaticAdmin,
) -> None:
    page = await open_page(f"/deployments/{running.id}?stage=s1")
    (cookie,) = (c for c in await page.context.cookies() if c.get("name") == "token")
    # The stream would notice the end at once; this is about a form of a page left open.
    await page.route("**/_/stream*", lambda route: route.abort())
    await page.reload()
    await cases.sessions.end(cookie.get("value", ""))
    await page.get_by_test_id("cancel-button").click()
    await page.get_by_role("button", name="Cancel without rollback").click()
    await expect(page.get_by_test_id("expired")).to_contain_text("nothing was changed")
    for key, value in (
        ("project", "shop"),
        ("username", static_admin.username),
        ("password", static_admin.password),
    ):
        await page.fill(f"#{key}", value)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/deployments/{running.id}?stage=s1")
    await cases.sessions.end(
        next(c.get("value", "") for c in await page.context.cookies() if c.get("name") == "token")
    )
    await page.reload()
    await expect(page.get_by_test_id("expired")).to_contain_text("go on where you were")


async def test_a_form_whose_session_ended_with_its_cookie_says_that_nothing_was_changed(
    open_page: OpenPage,
) -> None:
    page = await open_page("/settings/api-key")
    await page.get_by_label("Name", exact=True).fill("nightly")
    # Browsers drop a cookie when its time is over, which is when the session ends.
    await page.context.clear_cookies(name="token")
    await page.get_by_role("button", name="Generate and show the key").click()
    await expect(page.get_by_test_id("expired")).to_contain_text("nothing was changed")


async def test_a_notice_does_not_outlive_its_news(
    *,
    open_page: OpenPage,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    advance: Callable[[float], None],
) -> None:
    await reports.online()
    page = await open_page(f"/applications/{application.id}")
    await page.get_by_test_id("sync-button").click()
    notice = page.get_by_test_id("notice")
    await expect(notice).to_contain_text("picks it up in a moment")
    (command,) = await cases.commands.list_unhandled(by=piped)
    await cases.commands.report_handled(
        CommandResult(command.id, CommandStatus.SUCCEEDED, 1), by=piped
    )
    await expect(notice).to_contain_text("succeeded")
    advance(61)
    await page.reload()
    await expect(notice).to_have_count(0)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        pytest.param("replicaCount is unknown", "replicaCount is unknown.", id="an identifier"),
        pytest.param("exited with code 1: ", "Exited with code 1.", id="nothing after a colon"),
        pytest.param(
            "failed while executing stage s3",
            "Failed while executing stage ANALYSIS.",
            id="the id of a stage",
        ),
    ],
)
async def test_reasons_are_sentences_that_leave_names_as_they_are(
    *, reason: str, shown: str, open_page: OpenPage, running: Deployment, stores: Stores
) -> None:
    def fail(stored: Deployment) -> None:
        stored.status = pb.DeploymentStatus.ValueType(DeploymentStatus.FAILURE)
        stored.status_reason, stored.completed_at = reason, stored.created_at + 1

    await stores.deployments.update(running.id, fail)
    page = await open_page(f"/deployments/{running.id}")
    await expect(page.get_by_test_id("status-text")).to_contain_text(shown)


async def test_a_deployment_that_ended_before_it_was_planned_does_not_wait_for_a_plan(
    *,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    new_deployment: Callable[[], Deployment],
) -> None:
    deployment = new_deployment()
    await cases.deployment_reports.create(deployment, by=piped)
    page = await open_page(f"/deployments/{deployment.id}")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await expect(page.locator("#facts")).to_contain_text("Not planned yet")
    await reports.deployment(deployment, DeploymentStatus.CANCELLED)
    await expect(page.locator("#facts")).to_contain_text("Never planned")
    await expect(page.get_by_test_id("pipeline")).to_contain_text("ended before its stages")
