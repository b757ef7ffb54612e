# SPDX-License-Identifier: Apache-2.0
"""The page of one deployment in a real browser: changes, timeline, every way to stop it."""

from collections.abc import Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.command import REASON_KEY, CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


def image(name: str, version: str) -> ArtifactVersion:
    return ArtifactVersion(kind=ArtifactVersion.CONTAINER_IMAGE, name=name, version=version)


@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["scripts", "no scripts"])
async def test_changes_compare_with_what_ran_before(
    *,
    java_script_enabled: bool,
    open_page: OpenPage,
    running: Deployment,
    new_deployment: Callable[[], Deployment],
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    stores: Stores,
    advance: Callable[[float], None],
) -> None:
    await stores.deployments.update(running.id, lambda d: d.versions.append(image("web", "v1")))
    await reports.deployment(running, DeploymentStatus.SUCCESS)
    advance(60)
    following = new_deployment()
    following.deployment_trace_commit_hash = "beef" * 10
    await cases.deployment_reports.create(following, by=piped)

    def plan(stored: Deployment) -> None:
        stored.versions.extend([image("web", "v2"), image("<b>job</b>\u202e", "v7")])

    await stores.deployments.update(following.id, plan)
    page = await open_page(f"/deployments/{following.id}", java_script_enabled=java_script_enabled)
    await expect(page.get_by_test_id("version")).to_contain_text("web v1 → v2")
    href = await page.get_by_test_id("trace").get_by_role("link").get_attribute("href")
    assert href == f"/deployment-traces?commitHash={'beef' * 10}"
    await page.get_by_test_id("tab-changes").click()
    rows = page.get_by_test_id("version-change")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("web")
    await expect(rows.first.locator("del")).to_have_text("v1")
    await expect(rows.first.locator("ins")).to_have_text("v2")
    await expect(rows.nth(1)).to_contain_text("<b>job</b>")
    await page.get_by_role("link", name="the successful deployment of c0ffee").click()
    await page.wait_for_url(f"**/deployments/{running.id}")


async def test_every_way_to_stop_is_in_the_timeline_with_who_and_what_became_of_it(
    *,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    advance: Callable[[float], None],
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s3", StageStatus.RUNNING)
    cleo = User("shop", "cleo", ("Editor",))
    page = await open_page(f"/deployments/{running.id}?tab=timeline", user=cleo)
    modes = {
        "Cancel": (False, False),
        "Cancel and roll back": (True, False),
        "Cancel without rollback": (False, True),
    }
    for name, flags in modes.items():
        advance(10)
        await page.get_by_test_id("cancel-button").click()
        await page.locator("#cancel-menu").get_by_role("button", name=name, exact=True).click()
        await expect(page.get_by_test_id("notice")).to_contain_text("cancellation is requested")
        command = (await cases.commands.list_unhandled(by=piped))[-1]
        cancel = command.cancel_deployment
        assert (cancel.force_rollback, cancel.force_no_rollback) == flags
        reason = {REASON_KEY: "it is too late"}
        result = CommandResult(command.id, CommandStatus.FAILED, 1, reason)
        await cases.commands.report_handled(result, by=piped)
        await expect(page.get_by_test_id("notice")).to_contain_text("it is too late")
    advance(10)
    await page.get_by_test_id("skip-button").click()
    await page.get_by_role("button", name="Skip the stage").click()
    await expect(page.get_by_test_id("notice")).to_contain_text("skip is requested")
    await page.get_by_test_id("tab-timeline").click()
    steps = page.get_by_test_id("step")
    for name in modes:
        step = steps.filter(has=page.get_by_text(name, exact=True))
        await expect(step).to_contain_text("by cleo")
        await expect(step).to_contain_text("Failed: it is too late.")
    skip = steps.filter(has_text="Skip ANALYSIS")
    await expect(skip).to_contain_text("The piped has not handled it yet.")
    await expect(steps.filter(has_text="Triggered")).to_contain_text("by ann")
    # The timeline follows the deployment.
    await reports.stage(running, "s3", StageStatus.FAILURE, "too many errors")
    await expect(steps.filter(has_text="ANALYSIS Failed")).to_contain_text("Too many errors.")


@pytest.mark.parametrize("query", ["?stage=gone&tab=<script>&at=x&from=-1&match=1e9&only=<b>"])
async def test_a_page_with_nonsense_in_its_address_is_whole(
    query: str, open_page: OpenPage, running: Deployment, viewer: User
) -> None:
    page = await open_page(f"/deployments/{running.id}{query}", user=viewer)
    await expect(page.get_by_test_id("log-line")).to_have_count(1)
    await expect(page.get_by_test_id("cancel-button")).to_be_disabled()
    await expect(page.locator("main")).to_contain_text("do not allow this")
