# SPDX-License-Identifier: Apache-2.0
"""The console in Firefox, with scripts and without; other browser tests run in Chromium."""

from pathlib import Path

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.command import CommandKind
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.console import PipedReports
from servers.firefox import firefox

pytestmark = [pytest.mark.browser, pytest.mark.long]

OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def test_a_deployment_is_followed_searched_approved_and_cancelled_in_firefox(
    *,
    tmp_path: Path,
    console_url: str,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
) -> None:
    await reports.lines(running, "s1", *(f"step {n}" for n in range(2, 1500)))
    async with firefox(tmp_path / "profile") as page:
        await page.sign_in(console_url, cases.sessions.issue(admin))
        await page.open(f"{console_url}/deployments/{running.id}")
        await page.wait_for_text("[data-testid=conn-dot]", "Live")
        await reports.lines(running, "s1", "the last line")
        await page.wait_for_text("#L1500", "the last line")
        await page.fill("#log-find", "step 77")
        await page.wait_for_text("[data-testid=log-matches]", "1 of 11")
        await page.click("[data-match=next]")
        await page.wait_for_text("[data-testid=log-matches]", "2 of 11")
        await page.wait_for_text("li.current", "step 770")
        await page.open(f"{console_url}/deployments/{running.id}#L3-L5")
        await page.wait_for_text("[data-testid=log-chosen]", "Lines 3 to 5")
        await reports.stage(running, "s1", StageStatus.SUCCESS)
        await reports.stage(running, "s2", StageStatus.RUNNING)
        await page.click("[data-testid=approve-button]")
        await page.wait_for_text("[data-testid=notice]", "approval is requested")
        await page.click("[data-testid=cancel-button]")
        await page.click("#cancel-menu form:last-of-type button")
        await page.wait_for_text("[data-testid=notice]", "cancellation is requested")
    commands = await cases.commands.list_unhandled(by=piped)
    assert {command.type for command in commands} == {
        CommandKind.APPROVE_STAGE,
        CommandKind.CANCEL_DEPLOYMENT,
    }


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_every_page_is_whole_in_firefox(
    *,
    scripts: bool,
    tmp_path: Path,
    console_url: str,
    running: Deployment,
    application: Application,
    cases: UseCases,
    admin: User,
) -> None:
    async with firefox(tmp_path / "profile", scripts=scripts) as page:
        await page.sign_in(console_url, cases.sessions.issue(admin))
        for width in (1440, 500):
            await page.resize(width, 900)
            for path in (
                "/overview",
                "/applications",
                "/applications/add",
                f"/applications/{application.id}",
                f"/applications/{application.id}/settings",
                "/deployments",
                f"/deployments/{running.id}",
                f"/deployments/{running.id}?tab=changes",
                f"/deployments/{running.id}?tab=timeline",
                "/settings/piped",
                f"/settings/piped/{application.piped_id}",
                "/settings/api-key",
                "/settings/project",
                "/nowhere",
            ):
                await page.open(console_url + path)
                assert await page.text("main h1"), path
                assert await page.run(OVERFLOW) == 0, (path, width)


async def test_a_deployment_is_read_and_approved_in_firefox_without_scripts(
    *,
    tmp_path: Path,
    console_url: str,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    async with firefox(tmp_path / "profile", scripts=False) as page:
        await page.sign_in(console_url, cases.sessions.issue(admin))
        await page.open(f"{console_url}/deployments/{running.id}")
        await page.click("[data-stage-id=s1]")
        await page.wait_for_text("#L1 code", "line 1")
        await page.fill("#log-find", "LINE")
        await page.click("[data-find-form] button")
        await page.wait_for_text("[data-testid=log-matches]", "1 of 1")
        await page.click("[data-testid=approve-button]")
        await page.wait_for_text("[data-testid=notice]", "approval is requested")
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.type == CommandKind.APPROVE_STAGE
