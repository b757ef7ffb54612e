# SPDX-License-Identifier: Apache-2.0
"""The overview, the list of applications and the life of one, in a real browser."""

from collections.abc import Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.application import SyncStatus
from pipecd.model.command import TRIGGERED_KEY, CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import application_pb2 as model
from pipecd.proto.model.application_pb2 import (
    Application,
    ApplicationDeploymentReference,
    ApplicationSyncState,
)
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


async def test_the_overview_counts_what_its_lists_show(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page("/")
    await page.wait_for_url("**/overview")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    count = page.get_by_test_id("tile-running").get_by_test_id("tile-count")
    waiting = page.get_by_test_id("tile-waiting")
    await expect(count).to_have_text("1")
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(count).to_have_text("0")
    await expect(waiting).to_contain_text("1 for you")
    await waiting.get_by_role("heading").get_by_role("link").click()
    await expect(page.get_by_test_id("dep-row")).to_have_count(1)
    await reports.stage(running, "s2", StageStatus.FAILURE, "Rejected")
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await page.get_by_test_id("nav-overview").click()
    failed = page.get_by_test_id("tile-failed")
    await expect(failed.get_by_test_id("tile-count")).to_have_text("1")
    await failed.get_by_role("heading").get_by_role("link").click()
    await expect(page.get_by_test_id("dep-row")).to_have_count(1)
    await expect(page.get_by_test_id("chip-filter").last).to_contain_text("Last 24 hours")


async def test_a_row_tells_the_truth_at_a_glance(
    open_page: OpenPage, application: Application, running: Deployment, reports: PipedReports
) -> None:
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page("/applications")
    row = page.get_by_test_id("app-row")
    await expect(row.get_by_test_id("app-sync-status")).to_have_text("Waiting for approval")
    await expect(page.locator("#counts")).to_contain_text("waiting for approval")
    await row.get_by_role("link", name="env: dev").click()
    await expect(page.get_by_test_id("chip-filter")).to_have_text("env: dev")
    await expect(row).to_have_count(1)
    await row.get_by_role("link", name="cart").click()
    await page.get_by_test_id("waiting").click()
    await expect(page.get_by_test_id("approval-card")).to_be_visible()


async def test_an_application_that_is_deployed_leads_to_its_deployment(
    open_page: OpenPage, application: Application, running: Deployment, stores: Stores
) -> None:
    await stores.applications.update(
        application.id, lambda stored: setattr(stored, "deploying", True)
    )
    page = await open_page(f"/applications/{application.id}")
    await expect(page.locator(".head .reason")).to_contain_text("A deployment is in progress.")
    await page.get_by_test_id("moving").click()
    await page.wait_for_url(f"**/deployments/{running.id}")


async def test_an_application_says_why_it_failed_and_what_is_unhealthy(
    *, open_page: OpenPage, live_state: Application, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/applications/{live_state.id}")
    await page.get_by_test_id("trouble").click()
    await expect(page.get_by_test_id("live-section")).to_be_in_viewport()
    await expect(page.get_by_test_id("failed-latest")).to_have_count(0)
    await reports.stage(running, "s1", StageStatus.FAILURE, "no such image")
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await page.get_by_role("link", name="See why it failed").click()
    await expect(page.get_by_test_id("status-text")).to_contain_text("no such image")


async def test_the_overview_says_which_stage_a_deployment_is_at(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page("/overview")
    tile = page.get_by_test_id("tile-running")
    await expect(tile).to_contain_text("Stage 1 of 3")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s3", StageStatus.RUNNING)
    await expect(tile).to_contain_text("Stage 3 of 3")


async def test_the_overview_shows_drift_and_lost_pipeds_as_they_come(
    *,
    open_page: OpenPage,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    advance: Callable[[float], None],
) -> None:
    await reports.online()
    page = await open_page("/overview")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    for tile, count in (("different", "0"), ("offline", "0")):
        shown = page.get_by_test_id(f"tile-{tile}").get_by_test_id("tile-count")
        await expect(shown).to_have_text(count)
    state = ApplicationSyncState(
        status=model.ApplicationSyncStatus.ValueType(SyncStatus.OUT_OF_SYNC), timestamp=1
    )
    await cases.application_reports.report_sync_state(application.id, state, by=piped)
    drift = page.get_by_test_id("tile-different")
    await expect(drift.get_by_test_id("tile-count")).to_have_text("1")
    advance(125)
    await cases.pipeds.offline_detector.check()
    lost = page.get_by_test_id("tile-offline")
    await expect(lost.get_by_test_id("tile-count")).to_have_text("1")
    await lost.get_by_role("heading").get_by_role("link").click()
    await expect(page.get_by_test_id("piped-row")).to_have_count(1)
    await page.go_back()
    await drift.get_by_role("heading").get_by_role("link").click()
    await expect(page.get_by_test_id("app-row")).to_have_count(1)


async def test_a_row_shows_what_runs_and_how_the_last_deployment_ended(
    *,
    open_page: OpenPage,
    application: Application,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    await reports.deployment(running, DeploymentStatus.FAILURE)
    version = ArtifactVersion(kind=ArtifactVersion.CONTAINER_IMAGE, name="web", version="v1.4.2")
    reference = ApplicationDeploymentReference(
        deployment_id=running.id, trigger=running.trigger, versions=[version], started_at=1
    )
    report = cases.application_reports.report_most_recent_deployment
    for status in (DeploymentStatus.SUCCESS, DeploymentStatus.PENDING):
        await report(application.id, status, reference, by=piped)
    page = await open_page("/applications")
    row = page.get_by_test_id("app-row")
    await expect(row.locator("td[data-label=Running]")).to_contain_text("v1.4.2")
    commit = await row.locator("td[data-label=Running] [title]").get_attribute("title")
    assert "c0ffee" in (commit or "")
    await expect(row).to_contain_text("more coffee")
    await expect(row).to_contain_text("Failed")


@pytest.mark.parametrize("scripts", [True, False])
async def test_several_applications_are_synced_at_once(
    *,
    scripts: bool,
    open_page: OpenPage,
    console_url: str,
    application: Application,
    draft: Application,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
) -> None:
    draft.name, draft.git_path.path = "off", "apps/off"
    disabled = await cases.applications.add(draft, by=admin)
    await cases.applications.disable(disabled, by=admin)
    draft.name, draft.git_path.path = "web", "apps/web"
    other = await cases.applications.add(draft, by=admin)
    page = await open_page("/applications", java_script_enabled=scripts)
    menu = page.get_by_test_id("bulk-sync")
    if scripts:
        await page.get_by_label("Select all").check()
        await expect(page.get_by_label("Select web")).to_be_checked()
        await expect(page.get_by_label("Select off")).not_to_be_checked()
        await page.get_by_label("Select all").uncheck()
    await menu.click()
    await expect(page.get_by_test_id("none-ticked")).to_be_visible()
    await menu.click()
    await page.get_by_label("Select cart").check()
    await menu.click()
    await expect(page.get_by_test_id("none-ticked")).to_be_hidden()
    # Without a filter it would be the whole project.
    every = page.get_by_role("button", name="on this page")
    await expect(every).to_have_count(0)
    await page.get_by_role("button", name="Sync the selected applications").click()
    summary = page.get_by_test_id("summary")
    await expect(summary).to_have_text("The sync is in progress.")
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.application_id == application.id
    # A reload shows the same and syncs nothing again.
    await page.reload()
    await expect(summary).to_have_text("The sync is in progress.")
    assert len(await cases.commands.list_unhandled(by=piped)) == 1
    if scripts:
        await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
        done = {TRIGGERED_KEY: "d1"}
        result = CommandResult(command.id, CommandStatus.SUCCEEDED, 1, done)
        await cases.commands.report_handled(result, by=piped)
        await expect(summary).to_have_text("The sync is done.")
        opened = page.get_by_role("link", name="Open the deployment")
        await expect(opened).to_have_attribute("href", "/deployments/d1")
    await page.goto(f"{console_url}/applications?labels[0]=env:dev")
    await menu.click()
    await page.get_by_role("button", name="Sync all 2 on this page").click()
    await expect(summary).to_have_text("2 syncs, all in progress.")
    rows = page.get_by_test_id("bulk-row")
    await rows.get_by_role("link", name="web").click()
    await expect(page.get_by_test_id("notice")).to_contain_text("The sync is requested")
    assert other in page.url


@pytest.mark.parametrize("scripts", [True, False])
async def test_several_applications_are_disabled_and_enabled_at_once(
    *,
    scripts: bool,
    open_page: OpenPage,
    console_url: str,
    application: Application,
    draft: Application,
    cases: UseCases,
    stores: Stores,
    admin: User,
) -> None:
    ids = [application.id]
    for name in ("search", "web"):
        draft.name, draft.git_path.path = name, f"apps/{name}"
        ids.append(await cases.applications.add(draft, by=admin))

    async def disabled() -> list[bool]:
        return [(await cases.applications.get(id, by=admin)).disabled for id in ids]

    page = await open_page("/applications", java_script_enabled=scripts)
    menu, rows = page.get_by_test_id("bulk-sync"), page.get_by_test_id("bulk-row")
    disable = page.get_by_role("button", name="Disable the selected applications")
    await menu.click()
    await expect(page.locator("#bulk-sync")).to_contain_text("What is running keeps running")
    # There is none to enable yet.
    await expect(page.get_by_role("button", name="Enable the selected")).to_have_count(0)
    await disable.click()
    await expect(page.get_by_test_id("flash")).to_contain_text("Select the applications")
    for name in ("cart", "web"):
        await page.get_by_label(f"Select {name}").check()
    await menu.click()
    await disable.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("2 applications are disabled")
    assert await disabled() == [True, False, True]
    # One of them is deleted before the form is sent.
    await page.goto(f"{console_url}/applications")
    for name in ("cart", "web"):
        await page.get_by_label(f"Select {name}").check()
    await menu.click()
    await stores.applications.update(ids[2], lambda stored: setattr(stored, "deleted", True))
    await page.get_by_role("button", name="Enable the selected applications").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("1 application is enabled")
    await expect(rows.filter(has_text="web")).to_contain_text("deleted")
    assert (await disabled())[0] is False
    await rows.get_by_role("link", name="cart").click()
    await expect(page.get_by_test_id("sync-button")).to_be_enabled()


async def test_a_sync_without_a_selection_says_what_to_do(
    open_page: OpenPage, application: Application, console_url: str
) -> None:
    page = await open_page("/applications?q=cart")
    await page.get_by_test_id("bulk-sync").click()
    await page.get_by_role("button", name="Sync the selected applications").click()
    await expect(page.get_by_test_id("flash")).to_contain_text("Select the applications")
    assert page.url == f"{console_url}/applications?q=cart"


@pytest.mark.parametrize("scripts", [True, False])
async def test_the_life_of_an_application(
    *,
    scripts: bool,
    open_page: OpenPage,
    application: Application,
    cases: UseCases,
    admin: User,
    other_piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> None:
    await cases.pipeds.report_meta(meta, by=other_piped)
    page = await open_page(f"/applications/{application.id}", java_script_enabled=scripts)
    settings = page.get_by_test_id("application-settings")
    await settings.click()
    await page.get_by_label("Piped").select_option(label="prod (offline)")
    if not scripts:
        await page.get_by_role("button", name="Choose").click()
    await expect(page.get_by_test_id("edit-form")).to_contain_text("cart moves to piped prod")
    await page.get_by_label("Configuration file").fill("other.pipecd.yaml")
    await page.get_by_role("button", name="Move to prod").click()
    await expect(page.locator("dl.facts")).to_contain_text("other.pipecd.yaml")
    moved = await cases.applications.get(application.id, by=admin)
    assert moved.piped_id == other_piped.piped
    await settings.click()
    button = page.get_by_role("button", name="Disable cart")
    await expect(button).to_be_hidden()
    await page.get_by_text("Disable this application").click()
    await button.click()
    await expect(page.get_by_test_id("sync-button")).to_be_disabled()
    await expect(page.get_by_test_id("app-disabled")).to_be_visible()
    await page.get_by_role("link", name="Enable it").click()
    await page.get_by_role("button", name="Enable cart").click()
    await expect(page.get_by_test_id("sync-button")).to_be_enabled()
    await expect(page.get_by_test_id("app-disabled")).to_have_count(0)
    await settings.click()
    await page.get_by_text("Delete this application").click()
    # What stays is said before the form is open, what goes beside its button.
    await expect(page.locator("#delete")).to_contain_text("What is running keeps running")
    await expect(page.get_by_test_id("delete-form")).to_contain_text("PipeCD forgets cart")
    await page.get_by_role("button", name="Delete cart").click()
    await expect(page.get_by_test_id("flash")).to_contain_text("cart is deleted.")
    assert page.url.endswith("/applications")
    await expect(page.get_by_test_id("empty")).to_be_visible()


async def test_a_viewer_sees_why_nothing_can_be_changed(
    open_page: OpenPage, application: Application, viewer: User
) -> None:
    page = await open_page(f"/applications/{application.id}/settings", user=viewer)
    await expect(page.get_by_test_id("disabled-reason")).to_contain_text("Your role (Viewer)")
    await expect(page.get_by_role("button", name="Delete cart")).to_have_count(0)
