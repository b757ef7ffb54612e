# SPDX-License-Identifier: Apache-2.0
"""The console in Firefox and WebKit, with scripts and without; other tests run in Chromium."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.command import CommandKind
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.console import PipedReports
from servers.console_pages import NO_PAGE, ShownObjects
from servers.driver_window import DriverWindow
from servers.filled_project import FilledProject
from servers.firefox import firefox
from servers.live_states import resources, snapshot
from servers.webkit import webkit

pytestmark = [pytest.mark.browser, pytest.mark.long]

OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"

# Whether the link of a row covers more than its row, so that it takes the clicks of the page.
COVERED = """
    const { x, y, height } = document.querySelector("main h1").getBoundingClientRect();
    return document.elementFromPoint(x + 2, y + height / 2)?.closest(".row-link") != null;
"""

OpenWindow = Callable[[Path], AbstractAsyncContextManager[DriverWindow]]
BROWSERS = [pytest.param(firefox, id="firefox"), pytest.param(webkit, id="webkit")]
NO_SCRIPTS = pytest.param(partial(firefox, scripts=False), id="firefox without scripts")


@pytest.mark.parametrize("open_window", BROWSERS)
async def test_a_deployment_is_followed_searched_approved_and_cancelled(
    *,
    open_window: OpenWindow,
    tmp_path: Path,
    console_url: str,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
) -> None:
    await reports.lines(running, "s1", *(f"step {n}" for n in range(2, 1500)))
    async with open_window(tmp_path / "profile") as page:
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
        # Drivers do not scroll to what a sticky bar covers.
        await page.find("[data-testid=approve-button]")
        await page.run("scrollTo(0, 0)")
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("open_window", [*BROWSERS, NO_SCRIPTS])
async def test_every_page_is_whole(
    *,
    open_window: OpenWindow,
    tmp_path: Path,
    console_url: str,
    all_pages: tuple[str, ...],
    cases: UseCases,
    admin: User,
) -> None:
    async with open_window(tmp_path / "profile") as page:
        await page.sign_in(console_url, cases.sessions.issue(admin))
        for width in (1440, 500):
            await page.resize(width, 900)
            for path in all_pages:
                await page.open(console_url + path)
                assert await page.text("main h1"), path
                shown = await page.run("return document.querySelector('main').dataset.page")
                assert (shown == "error") is (path == NO_PAGE), path
                assert await page.run(OVERFLOW) == 0, (path, width)
                assert not await page.run(COVERED), (path, width)


@pytest.mark.parametrize("open_window", BROWSERS)
async def test_resources_are_explored_and_anything_is_found(
    *,
    open_window: OpenWindow,
    tmp_path: Path,
    console_url: str,
    application: Application,
    filled: FilledProject,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
) -> None:
    await cases.livestate.report(snapshot(application, *resources(4, 3, broken=False)), by=piped)
    async with open_window(tmp_path / "profile") as page:
        await page.sign_in(console_url, cases.sessions.issue(admin))
        await page.resize(1440, 900)
        await page.open(f"{console_url}/applications/{application.id}/live")
        await page.wait_for_text("[data-testid=conn-dot]", "Live")
        broken = snapshot(application, *resources(4, 3, broken=True))
        await cases.livestate.report(broken, by=piped)
        await page.wait_for_text("[data-testid=app-health]", "Unhealthy")
        await page.click("li[data-health=unhealthy] .node a")
        await page.wait_for_text("[data-testid=live-panel]", "CrashLoopBackOff")
        assert await page.run("return document.activeElement.id") == "panel-title"
        await page.click("[data-close]")
        await page.click("[data-testid=view-graph]")
        await page.wait_for_text("[data-testid=live-graph]", "web-1")
        await page.open(f"{console_url}/insights")
        await page.click("[data-testid=chart-frequency] a .bar")
        await page.wait_for_text("[data-testid=behind]", "completed deployment")
        await page.open(f"{console_url}/chains/{filled.chain}")
        await page.wait_for_text("[data-testid=chain-text]", "Block 2 of 3")
        await page.click("[data-testid=open-palette]")
        await page.fill("[data-testid=palette] input", "checkou")
        await page.wait_for_text("[data-testid=palette] [data-testid=result]", "checkout")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("open_window", [*BROWSERS, NO_SCRIPTS])
async def test_changes_are_read_and_settings_changed(
    *,
    open_window: OpenWindow,
    tmp_path: Path,
    console_url: str,
    shown: ShownObjects,
    cases: UseCases,
    admin: User,
) -> None:
    async with open_window(tmp_path / "profile") as page:
        await page.sign_in(console_url, cases.sessions.issue(admin))
        await page.resize(1440, 900)
        # What a deployment changed, and how to take it back.
        await page.open(f"{console_url}/deployments/{shown.succeeded}")
        await page.click("[data-testid=roll-back]")
        await page.wait_for_text("[data-testid=revert-command]", "git revert")
        await page.open(f"{console_url}/deployments/{shown.succeeded}?tab=changes")
        await page.wait_for_text("[data-testid=resource-changes]", "aws_s3_bucket.assets")
        await page.click("[data-testid=resource-changes] a[href*='diff=split']")
        await page.wait_for_text("[data-testid=resource-changes] .pair .add", "replicas: 2")
        # What a branch would change.
        await page.open(f"{console_url}/deployments")
        await page.click("main a[href='/plan-previews']")
        await page.click(f"#preview-{shown.preview} .row-link")
        await page.wait_for_text("[data-testid=preview-text]", "Merging deploys 1 application")
        await page.wait_for_text("[data-testid=preview-app]", "it has no chart")
        # Sessions, roles and keys.
        await page.open(f"{console_url}/settings/users?user=vera")
        await page.click("[data-testid=session-row] summary")
        await page.click("[data-testid=session-row] details[open] button")
        await page.wait_for_text("[data-testid=flash]", "A session of vera has ended.")
        await page.open(f"{console_url}/settings/project")
        await page.click("[data-testid=role-add-form] > summary")
        await page.fill("#role-name", "night")
        await page.click("[data-testid=role-add] [aria-label='Pipeds: list']")
        await page.click("[data-testid=role-add] button.primary")
        await page.wait_for_text("[data-testid=flash]", "The role night is added.")
        await page.open(f"{console_url}/settings/api-key")
        await page.fill("#key-name", "nightly")
        await page.click("[data-testid=apikey-add] button.primary")
        key = await page.text("[data-testid=api-key]")
    assert (await cases.api_keys.verify(key.strip())).name == "nightly"
    assert await cases.pipeds.list(by=User(admin.project, "nora", ("night",)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("open_window", [*BROWSERS, NO_SCRIPTS])
async def test_several_applications_are_added_and_synced(
    *,
    open_window: OpenWindow,
    tmp_path: Path,
    console_url: str,
    live_state: Application,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
) -> None:
    async with open_window(tmp_path / "profile") as page:
        await page.sign_in(console_url, cases.sessions.issue(admin))
        await page.resize(1440, 900)
        await page.open(f"{console_url}/applications/add")
        for name in ("api", "web"):
            await page.click(f"[aria-label='Add {name} with the others']")
        await page.click("[data-testid=add-several]")
        await page.wait_for_text("main h1", "2 applications are added")
        await page.open(f"{console_url}/applications")
        for name in ("api", live_state.name):
            await page.click(f"[aria-label='Select {name}']")
        await page.click("[data-testid=bulk-sync]")
        await page.click("#bulk-form button")
        await page.wait_for_text("[data-testid=summary]", "2 syncs, all in progress.")
    commands = await cases.commands.list_unhandled(by=piped)
    assert [command.type for command in commands] == [CommandKind.SYNC_APPLICATION] * 2


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
