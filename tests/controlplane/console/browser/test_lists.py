# SPDX-License-Identifier: Apache-2.0
"""Lists tell about the whole project, in a real browser."""

from collections.abc import Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


async def test_counts_and_search_are_of_the_whole_project(
    *,
    open_page: OpenPage,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    advance: Callable[[float], None],
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    old = new_deployment()
    old.trigger.commit.message = "A needle in 100% of the hay"
    await cases.deployment_reports.create(old, by=piped)
    for _ in range(60):
        advance(1)
        newer = new_deployment()
        await cases.deployment_reports.create(newer, by=piped)
        await reports.deployment(newer, DeploymentStatus.SUCCESS)
    page = await open_page("/deployments")
    rows = page.get_by_test_id("dep-row")
    await expect(rows).to_have_count(50)
    # Neither of the two is among the newest.
    await expect(page.get_by_test_id("counts")).to_have_text(
        "1 waiting for approval and 1 pending."
    )
    await page.get_by_role("link", name="1 waiting for approval").click()
    await expect(rows).to_have_count(1)
    await expect(page.get_by_test_id("filter-status")).to_have_value("waiting")
    await expect(rows.get_by_test_id("dep-status")).to_have_text("Waiting for approval")
    await page.get_by_test_id("filter-status").select_option("Pending")
    await expect(rows.get_by_test_id("dep-status")).to_have_text("Pending")
    # Two statuses of a link, and what no control shows, survive the form.
    await page.goto(f"{page.url.split('?')[0]}?status=1,0&since=7d&kind=0")
    await page.get_by_test_id("filter-q").fill("needle")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**q=needle**")
    await expect(page.get_by_test_id("chip-filter")).to_have_text(
        ["“needle”", "planned or pending", "Kubernetes", "last 7 days"]
    )
    await expect(rows).to_have_count(1)
    await page.goto(page.url.split("?")[0])
    await page.get_by_test_id("filter-q").fill("Needle in 100%")
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("A needle")
