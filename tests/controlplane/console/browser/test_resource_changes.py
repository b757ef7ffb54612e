# SPDX-License-Identifier: Apache-2.0
"""What a deployment changes, resource by resource, in a real browser."""

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.planpreview_pb2 import PluginPlanPreviewResult
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.sample_diffs import kubernetes_result, results_of_all_platforms

pytestmark = pytest.mark.browser

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
HOSTILE = "<script>alert(1)</script>\u202e" + "n" * 10_000


@pytest.fixture
async def leased(cases: UseCases, piped: PipedCaller) -> None:
    """The piped is one of ours, which reports changes."""
    request = AcquirePipedLeaseRequest(host="worker")
    request.ticket = (await cases.piped_leases.acquire(request, by=piped))[0].ticket
    await cases.piped_leases.acquire(request, by=piped)


async def test_changes_appear_by_resource_as_soon_as_the_piped_reports_them(
    *,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    leased: None,
) -> None:
    page = await open_page(f"/deployments/{running.id}?tab=changes")
    card = page.get_by_test_id("resource-changes")
    await expect(card).to_contain_text("has not reported yet which resources change")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    changes = DeploymentChanges(results=[kubernetes_result()], created_at=1)
    await cases.deployment_reports.report_changes(running.id, changes, by=piped)
    counts = card.get_by_test_id("change-counts")
    await expect(counts).to_have_text("+1 added~1 changed\N{MINUS SIGN}1 deleted")
    sections = card.get_by_test_id("diff-section")
    await expect(sections).to_have_count(3)
    await expect(sections.nth(0)).to_contain_text("Deleted")
    # What is added or deleted as a whole has nothing to fold.
    await expect(sections.nth(0).locator("summary")).to_have_count(0)
    changed = sections.nth(2)
    await expect(changed.locator("summary")).to_contain_text("web")
    await expect(changed.locator("summary .counts")).to_have_text("+2 \N{MINUS SIGN}2")
    await page.get_by_role("button", name="Collapse all", exact=True).click()
    await expect(changed.locator(".remove").first).not_to_be_visible()
    await changed.locator("summary").click()
    await expect(changed.locator(".remove").first).to_be_visible()
    await page.get_by_role("link", name="Side by side").click()
    pair = changed.locator(".pair", has=page.get_by_text("replicas: 5"))
    await expect(pair.locator(".add")).to_contain_text("replicas: 2")


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["scripts", "no scripts"])
async def test_the_formats_of_all_platforms_are_shown_by_target(
    *,
    width: int,
    java_script_enabled: bool,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    changes = DeploymentChanges(
        results=results_of_all_platforms(), stages_had_started=True, created_at=1
    )
    await cases.deployment_reports.report_changes(running.id, changes, by=piped)
    page = await open_page(
        f"/deployments/{running.id}?tab=changes",
        java_script_enabled=java_script_enabled,
        viewport={"width": width, "height": 900},
    )
    card = page.get_by_test_id("resource-changes")
    names = [
        "dev · kubernetes",
        "network · terraform",
        "tokyo · ecs",
        "osaka · lambda",
        "here · process",
    ]
    assert await card.locator(".diff-target bdi").all_text_contents() == names
    sections = card.get_by_test_id("diff-section")
    # Three manifests, two resources of the plan, task definition, function, and two files.
    await expect(sections).to_have_count(9)
    await expect(sections.nth(3)).to_contain_text("aws_s3_bucket.assets")
    await expect(sections.nth(5)).to_contain_text("registry.example/shop/web:v2")
    await expect(sections.nth(7)).to_contain_text("Changed")
    await expect(sections.nth(7).locator("b")).to_have_text("run.sh")
    await expect(sections.nth(8)).to_contain_text("conf/web.toml")
    await expect(card.locator(".findings")).to_have_text("replicas: 1 → 2.")
    await expect(card.get_by_test_id("late-plan")).to_contain_text("when this plan was made")
    # A phone has no room for two sides.
    side_by_side = page.get_by_role("link", name="Side by side")
    if width < 760:
        await expect(side_by_side).to_be_hidden()
    else:
        await side_by_side.click()
        await expect(card.locator(".pair").first).to_be_attached()
    if java_script_enabled:
        assert await page.evaluate(OVERFLOW) == 0


async def test_an_error_and_missing_reports_have_reasons(
    *,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    page = await open_page(f"/deployments/{running.id}?tab=changes")
    await expect(page.get_by_test_id("no-changes-reported")).to_contain_text("does not report")
    changes = DeploymentChanges(error="there was no result within 2m0s", created_at=1)
    await cases.deployment_reports.report_changes(running.id, changes, by=piped)
    await reports.deployment(running, DeploymentStatus.SUCCESS)
    await page.reload()
    await expect(page.get_by_test_id("changes-error")).to_contain_text(
        "there was no result within 2m0s."
    )
    await cases.deployment_reports.report_changes(
        running.id, DeploymentChanges(results=[], no_change=True, created_at=1), by=piped
    )
    await page.reload()
    await expect(page.get_by_test_id("resource-changes")).to_contain_text("No resource changes.")


async def test_hostile_names_in_a_diff_stay_text_and_fit(
    *, open_page: OpenPage, running: Deployment, cases: UseCases, piped: PipedCaller
) -> None:
    heading = f'# 1. name="{HOSTILE}", kind="{HOSTILE}", namespace="x", apiVersion="v1"\n\n'
    details = f"{heading}- {HOSTILE}\n+ {HOSTILE}\n"
    result = PluginPlanPreviewResult(
        plugin_name=HOSTILE[:100],
        deploy_target=HOSTILE,
        plan_summary=HOSTILE.encode(),
        plan_details=details.encode(),
    )
    changes = DeploymentChanges(results=[result], error=HOSTILE, created_at=1)
    await cases.deployment_reports.report_changes(running.id, changes, by=piped)
    for width in (1440, 390):
        page = await open_page(
            f"/deployments/{running.id}?tab=changes&diff=split",
            viewport={"width": width, "height": 900},
        )
        await expect(page.get_by_test_id("diff-section")).to_have_count(1)
        assert await page.evaluate(OVERFLOW) == 0


async def test_who_approves_gets_to_the_changes_from_the_approval(
    *,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    changes = DeploymentChanges(results=[kubernetes_result()], created_at=1)
    await cases.deployment_reports.report_changes(running.id, changes, by=piped)
    page = await open_page(f"/deployments/{running.id}", viewport={"width": 390, "height": 800})
    await page.get_by_test_id("approval-card").get_by_role("link", name="what changes").click()
    await expect(page.get_by_test_id("diff-section").first).to_be_in_viewport()


async def test_sides_of_a_diff_differ_by_more_than_colour(
    *, open_page: OpenPage, running: Deployment, cases: UseCases, piped: PipedCaller
) -> None:
    changes = DeploymentChanges(results=[kubernetes_result()], created_at=1)
    await cases.deployment_reports.report_changes(running.id, changes, by=piped)
    page = await open_page(f"/deployments/{running.id}?tab=changes&diff=split")
    sign = "each => getComputedStyle(each, '::before').content"
    for kind, drawn in (("remove", "\u2212"), ("add", "+")):
        assert await page.locator(f".pair > .{kind}").first.evaluate(sign) == f'"{drawn}"'
