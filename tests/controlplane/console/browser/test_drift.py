# SPDX-License-Identifier: Apache-2.0
"""The differences of all applications with Git on one page, in a real browser."""

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.application import SyncStatus
from pipecd.proto.model import application_pb2 as model
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from servers.axe import violations
from servers.browser import OpenPage
from servers.live_states import DRIFT

pytestmark = pytest.mark.browser

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
async def drifted(
    cases: UseCases, draft: Application, admin: User, piped: PipedCaller
) -> list[str]:
    """The names of 23 applications that differ from Git, of which the last is in production."""
    names = [f"app-{number:02}" for number in range(23)]
    for name in names:
        draft.name, draft.git_path.path = name, f"apps/{name}"
        draft.labels["env"] = "prod" if name == names[-1] else "dev"
        id = await cases.applications.add(draft, by=admin)
        await report(cases, id, SyncStatus.OUT_OF_SYNC, piped)
    return names


async def report(
    cases: UseCases, id: str, status: SyncStatus, piped: PipedCaller, *, has_diff: bool = True
) -> None:
    state = ApplicationSyncState(
        status=model.ApplicationSyncStatus.ValueType(status),
        short_reason="1 to change" if status is SyncStatus.OUT_OF_SYNC else "",
        reason=DRIFT if status is SyncStatus.OUT_OF_SYNC and has_diff else "",
        timestamp=1,
    )
    await cases.application_reports.report_sync_state(id, state, by=piped)


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scripts", [True, False])
async def test_the_differences_of_all_applications_are_read_on_one_page(
    *,
    width: int,
    scripts: bool,
    open_page: OpenPage,
    application: Application,
    drifted: list[str],
) -> None:
    size = {"width": width, "height": 900}
    page = await open_page("/applications", viewport=size, java_script_enabled=scripts)
    # The one that matches Git is not on the page.
    assert application.name == "cart"
    await page.get_by_test_id("all-drift").click()
    await expect(page.get_by_test_id("summary")).to_have_text("23 applications differ from Git.")
    rows = page.get_by_test_id("drifted")
    await expect(rows.get_by_role("heading")).to_have_text(drifted[:20])
    diff = rows.first.get_by_text("replicas: 2")
    # Of many, each is folded.
    await expect(diff).not_to_be_visible()
    await rows.first.locator("summary").first.click()
    await expect(diff).to_be_visible()
    assert await page.evaluate(OVERFLOW) == 0
    if scripts:
        assert await violations(page) == []
    await page.locator("a[rel=next]").click()
    await expect(rows).to_have_count(3)
    await expect(rows.first.get_by_text("replicas: 2")).to_be_visible()
    # A phone has no room for two columns.
    if width > 390:
        await page.get_by_role("link", name="Side by side").click()
        await expect(rows.first.locator(".pair .add")).to_contain_text("replicas: 2")
    await rows.last.get_by_role("link", name="Go to app-22").click()
    await expect(page.locator("h1")).to_contain_text("app-22")


async def test_the_page_follows_the_filters_of_the_list_and_the_reports(
    *,
    open_page: OpenPage,
    drifted: list[str],
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    page = await open_page("/applications?labels[0]=env:prod")
    await page.get_by_test_id("all-drift").click()
    rows = page.get_by_test_id("drifted")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(drifted[-1])
    await expect(page.get_by_test_id("chip-filter")).to_have_text("env: prod")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    id = (await rows.get_attribute("id") or "").removeprefix("app-")
    await report(cases, id, SyncStatus.SYNCED, piped)
    await expect(rows).to_have_count(0)
    await expect(page.get_by_test_id("empty")).to_contain_text("No application that matches")
    await page.get_by_role("link", name="Clear all filters").click()
    await expect(rows).to_have_count(20)


async def test_only_what_a_role_covers_is_on_the_page(
    open_page: OpenPage, cases: UseCases, admin: User, drifted: list[str]
) -> None:
    policies = parse_policies("resources=application{env:prod};actions=get,list")
    await cases.roles.add("production", policies, by=admin)
    page = await open_page("/applications/drift", user=User("shop", "paul", ("production",)))
    await expect(page.get_by_test_id("drifted")).to_have_count(1)
    await expect(page.get_by_test_id("summary")).to_have_text("1 application differs from Git.")
    # An id may begin like a name.
    assert f">{drifted[0]}<" not in await page.content()


async def test_all_are_unfolded_and_folded_at_once(open_page: OpenPage, drifted: list[str]) -> None:
    page = await open_page("/applications/drift")
    last = page.get_by_test_id("drifted").nth(19)
    await expect(last).to_contain_text(drifted[19])
    diff = last.get_by_text("replicas: 2")
    await expect(diff).not_to_be_visible()
    await page.get_by_role("button", name="Expand all").click()
    await expect(diff).to_be_visible()
    await page.get_by_role("button", name="Collapse all", exact=True).click()
    await expect(diff).not_to_be_visible()


async def test_without_lines_the_page_says_what_the_piped_says(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await report(cases, application.id, SyncStatus.OUT_OF_SYNC, piped, has_diff=False)
    page = await open_page("/applications/drift")
    row = page.get_by_test_id("drifted")
    await expect(row).to_contain_text("1 to change. Checked")
    await row.get_by_role("link", name="Go to cart").click()
    await expect(page.locator("h1")).to_contain_text("cart")


async def test_without_differences_the_page_says_so(
    open_page: OpenPage, application: Application
) -> None:
    del application
    page = await open_page("/applications/drift")
    await expect(page.get_by_test_id("empty")).to_contain_text("Everything matches Git")


async def test_one_or_all_are_synced_from_the_page(
    *,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
    draft: Application,
    admin: User,
    viewer: User,
) -> None:
    draft.name, draft.git_path.path = "web", "apps/web"
    other = await cases.applications.add(draft, by=admin)
    for id in (application.id, other):
        await report(cases, id, SyncStatus.OUT_OF_SYNC, piped)
    page = await open_page("/applications/drift")
    await page.get_by_role("button", name="Sync web").click()
    await expect(page.get_by_test_id("notice")).to_contain_text("sync is requested")
    await page.get_by_role("link", name="Applications").first.click()
    await page.get_by_test_id("all-drift").click()
    await page.get_by_test_id("sync-all").click()
    await page.get_by_role("button", name="Sync all 2 applications").click()
    await expect(page.get_by_test_id("bulk-row")).to_have_count(2)
    synced = [each.application_id for each in await cases.commands.list_unhandled(by=piped)]
    assert set(synced) == {application.id, other}
    page = await open_page("/applications/drift", user=viewer)
    await expect(page.get_by_test_id("drifted")).to_have_count(2)
    await expect(page.get_by_test_id("sync-all")).to_have_count(0)
    await expect(page.get_by_test_id("sync-one")).to_have_count(0)
