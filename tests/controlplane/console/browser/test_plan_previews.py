# SPDX-License-Identifier: Apache-2.0
"""Plan previews in a real browser: found in the list, followed live, read by resource."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.clock import Now, to_unix
from pipecd.model.command import CommandStatus
from pipecd.model.document import to_json
from pipecd.proto.model import common_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.sample_diffs import kubernetes_result, results_of_all_platforms

pytestmark = pytest.mark.browser

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

App = ApplicationPlanPreviewResult
RequestPreview = Callable[[], Awaitable[str]]
ReportPreview = Callable[[str, PlanPreviewCommandResult], Awaitable[None]]


@pytest.fixture
def request_preview(cases: UseCases, program: ApiKeyCaller, piped: PipedCaller) -> RequestPreview:
    """Requests the preview of a branch, as pipectl does."""
    del piped

    async def request() -> str:
        asked = RequestPlanPreviewRequest(
            repo_remote_url="git@github.com:shop/site.git",
            head_branch="feature/<b>retry</b>",
            head_commit="beef" * 10,
            base_branch="main",
            timeout=60,
        )
        (id,) = await cases.plan_previews.request(asked, by=program)
        return id

    return request


@pytest.fixture
def report_preview(cases: UseCases, piped: PipedCaller, now: Now) -> ReportPreview:
    """Reports a preview, as its piped does."""

    async def report(id: str, result: PlanPreviewCommandResult) -> None:
        status = CommandStatus.FAILED if result.error else CommandStatus.SUCCEEDED
        output = to_json(result).encode()
        await cases.commands.report_handled(
            CommandResult(id, status, to_unix(now()), output=output), by=piped
        )

    return report


def previewed(application: Application, id: str = "", name: str = "") -> App:
    return App(
        application_id=id or application.id,
        application_name=name or application.name,
        application_directory="web",
        labels=application.labels,
        sync_strategy=common_pb2.PIPELINE,
        plugin_plan_results=[kubernetes_result()] if id else results_of_all_platforms(),
    )


async def test_a_preview_is_found_followed_and_read_by_resource(
    *,
    open_page: OpenPage,
    application: Application,
    request_preview: RequestPreview,
    report_preview: ReportPreview,
    reports: PipedReports,
    viewer: User,
) -> None:
    await reports.online()
    page = await open_page("/deployments", user=viewer)
    await page.get_by_role("link", name="Plan previews").click()
    await expect(page.get_by_test_id("empty")).to_contain_text("pipectl plan-preview")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    id = await request_preview()
    row = page.get_by_test_id("preview-row")
    await expect(row.get_by_test_id("preview-status")).to_have_text("Running")
    await row.get_by_role("link", name="feature/<b>retry</b>").click()
    await expect(page.get_by_test_id("preview-running")).to_be_visible()
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    failed = App(
        application_id="gone", application_name="cart", error="failed while planning, no target"
    )
    same = App(
        application_id="same",
        application_name="search",
        no_change=True,
        plugin_plan_results=[kubernetes_result()],
    )
    result = PlanPreviewCommandResult(results=[same, previewed(application), failed])
    await report_preview(id, result)
    await expect(page.get_by_test_id("preview-status")).to_have_text("Partly failed")
    await expect(page.get_by_test_id("preview-text")).to_have_text(
        "Merging deploys 2 applications, 1 of them without changes, "
        "and the preview of 1 application failed."
    )
    # Previews are a part of the deployments.
    await expect(page.locator("nav [aria-current=page]")).to_have_text("Deployments")
    rows = page.get_by_test_id("preview-app-row")
    await expect(rows).to_have_count(3)
    assert await rows.locator(".row-link").all_text_contents() == [
        "cart",
        application.name,
        "search",
    ]
    cards = page.get_by_test_id("preview-app")
    await expect(cards.nth(0)).to_contain_text("failed while planning, no target.")
    card = cards.nth(1)
    await expect(card.locator(".title")).to_contain_text("Strategy: pipeline")
    await expect(card.get_by_test_id("diff-section")).to_have_count(9)
    await expect(card.get_by_test_id("change-counts").first).to_contain_text("+3 added")
    await expect(cards.nth(2)).to_contain_text("No resource changes.")
    await rows.nth(1).get_by_role("link").click()
    await expect(card.locator("h2")).to_be_in_viewport()
    await page.get_by_role("link", name="Side by side").click()
    pair = card.locator(".pair", has=page.get_by_text("replicas: 5"))
    await expect(pair.locator(".add")).to_contain_text("replicas: 2")
    await page.get_by_role("button", name="Collapse all", exact=True).click()
    await expect(pair).not_to_be_visible()


@pytest.mark.parametrize("width", [1440, 390])
async def test_an_application_leads_to_its_own_previews(
    *,
    width: int,
    open_page: OpenPage,
    console_url: str,
    application: Application,
    request_preview: RequestPreview,
    report_preview: ReportPreview,
    viewer: User,
) -> None:
    viewport = {"width": width, "height": 800}
    page = await open_page(f"/applications/{application.id}", user=viewer, viewport=viewport)
    await page.get_by_test_id("application-previews").click()
    await expect(page.get_by_test_id("empty")).to_contain_text(f"No previews of {application.name}")
    mine, other = await request_preview(), await request_preview()
    results = [previewed(application), previewed(application, "other", "search")]
    await report_preview(mine, PlanPreviewCommandResult(results=results))
    await report_preview(other, PlanPreviewCommandResult(results=results[1:]))
    row = page.get_by_test_id("preview-row")
    await expect(row).to_have_count(1)
    assert await page.evaluate(OVERFLOW) == 0
    await row.get_by_role("link", name="feature/<b>retry</b>").click()
    await page.wait_for_url(f"**/plan-previews/{mine}?app={application.id}")
    await expect(page.get_by_test_id("preview-app")).to_have_count(1)
    await page.go_back()
    await page.get_by_test_id("of-application").get_by_role("link", name="Show those").click()
    await expect(row).to_have_count(2)
    await page.goto(f"{console_url}/plan-previews?applicationId=unknown")
    await expect(page.get_by_test_id("error-404")).to_be_visible()


@pytest.mark.parametrize("width", [1440, 390])
async def test_the_pipeds_of_one_request_are_one_row_with_a_link_to_each_preview(
    *,
    width: int,
    open_page: OpenPage,
    cases: UseCases,
    stores: Stores,
    piped: PipedCaller,
    other_piped: PipedCaller,
    request_preview: RequestPreview,
    report_preview: ReportPreview,
) -> None:
    first = await request_preview()
    command = await stores.commands.get(first)
    second = Command(piped_id=other_piped.piped, project_id=command.project_id, type=command.type)
    second.build_plan_preview.CopyFrom(command.build_plan_preview)
    other = await cases.commands.add(second)
    await report_preview(first, PlanPreviewCommandResult(error="no chart"))
    page = await open_page("/plan-previews", viewport={"width": width, "height": 800})
    row = page.get_by_test_id("preview-row")
    await expect(row).to_have_count(1)
    await expect(row.get_by_test_id("preview-status")).to_have_text("Failed")
    assert await page.evaluate(OVERFLOW) == 0
    for name, id in (("dev : Failed", first), ("prod : Waiting", other)):
        link = row.get_by_role("link", name=name)
        await expect(link).to_have_attribute("href", f"/plan-previews/{id}")
    await row.get_by_role("link", name="prod").click()
    await page.wait_for_url(f"**/plan-previews/{other}")


@pytest.mark.parametrize("width", [1440, 390])
async def test_a_preview_of_many_applications_is_bounded_and_each_is_shown_alone(
    *,
    width: int,
    open_page: OpenPage,
    application: Application,
    request_preview: RequestPreview,
    report_preview: ReportPreview,
) -> None:
    id = await request_preview()
    lines = b"+ line\n" * 3000
    many = [previewed(application, f"app-{number:03}", f"web-{number:03}") for number in range(60)]
    many[59].plugin_plan_results[0].plan_details += lines
    await report_preview(id, PlanPreviewCommandResult(results=many))
    viewport = {"width": width, "height": 900}
    page = await open_page(f"/plan-previews/{id}", viewport=viewport)
    await expect(page.get_by_test_id("preview-app-row")).to_have_count(60)
    await expect(page.get_by_test_id("preview-app")).to_have_count(50)
    await expect(page.get_by_test_id("preview-more")).to_contain_text("10 more applications")
    assert await page.evaluate(OVERFLOW) == 0
    await page.get_by_role("link", name="web-059").click()
    await expect(page.get_by_test_id("preview-app")).to_have_count(1)
    await expect(page.get_by_test_id("preview-only")).to_contain_text("Only web-059 is shown.")
    await page.get_by_role("link", name="All 60 applications").click()
    await expect(page.get_by_test_id("preview-app")).to_have_count(50)


async def test_failed_and_expired_previews_say_so(
    *,
    open_page: OpenPage,
    request_preview: RequestPreview,
    report_preview: ReportPreview,
    advance: Callable[[float], None],
    viewer: User,
) -> None:
    id = await request_preview()
    error = "detected conflicts between commit beef and main (web/app.pipecd.yaml)"
    await report_preview(id, PlanPreviewCommandResult(error=error))
    page = await open_page(f"/plan-previews/{id}", user=viewer)
    await expect(page.get_by_test_id("preview-status")).to_have_text("Failed")
    await expect(page.get_by_test_id("preview-error")).to_contain_text("detected conflicts")
    advance(24 * 3600 + 1)
    fresh = await open_page(f"/plan-previews/{id}", user=viewer)
    await expect(fresh.get_by_test_id("preview-status")).to_have_text("Expired")
    await expect(fresh.get_by_test_id("preview-text")).to_contain_text("Push to the branch")
    await fresh.get_by_role("link", name="Recent previews").click()
    await expect(fresh.get_by_test_id("preview-row")).to_have_count(0)
    await open_page("/plan-previews/unknown", user=viewer)


@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["scripts", "no scripts"])
async def test_users_see_the_applications_that_their_labels_cover(
    *,
    java_script_enabled: bool,
    open_page: OpenPage,
    cases: UseCases,
    stores: Stores,
    admin: User,
    application: Application,
    request_preview: RequestPreview,
    report_preview: ReportPreview,
) -> None:
    policy = ProjectRBACPolicy(
        resources=[ProjectRBACResource(type=ProjectRBACResource.APPLICATION, labels={"team": "a"})],
        actions=[ProjectRBACPolicy.ALL],
    )
    await cases.roles.add("team-a", [policy], by=admin)
    await stores.applications.update(application.id, lambda stored: stored.labels.clear())
    await stores.applications.update(
        application.id, lambda stored: stored.labels.update({"team": "a"})
    )
    id = await request_preview()
    # The labels of a preview come from the branch, which anyone may have pushed.
    other = previewed(application, "other", "secret-service")
    other.labels["team"] = "a"
    await report_preview(id, PlanPreviewCommandResult(results=[previewed(application), other]))
    member = User("shop", "tina", ("team-a",))
    page = await open_page("/plan-previews", user=member, java_script_enabled=java_script_enabled)
    await page.get_by_test_id("preview-row").get_by_role("link").first.click()
    await expect(page.get_by_test_id("preview-app")).to_have_count(1)
    await expect(page.get_by_test_id("preview-hidden")).to_contain_text("1 more application is not")
    assert "secret-service" not in await page.content()
    await stores.applications.update(application.id, lambda stored: stored.labels.clear())
    await page.goto(page.url)
    await expect(page.locator("h1")).to_have_text("Permission denied")
