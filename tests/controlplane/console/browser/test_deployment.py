# SPDX-License-Identifier: Apache-2.0
"""The page of one deployment in a real browser: changes, timeline, every way to stop it."""

from collections.abc import Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.clock import Now, to_unix
from pipecd.model.command import REASON_KEY, CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest
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
    await expect(page.locator("main")).to_contain_text("does not allow this")


@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["scripts", "no scripts"])
async def test_a_failed_deployment_says_why_at_the_top_and_leads_to_the_log(
    *, java_script_enabled: bool, open_page: OpenPage, rolled_back: Deployment, viewer: User
) -> None:
    page = await open_page(
        "/deployments?status=5", user=viewer, java_script_enabled=java_script_enabled
    )
    await page.get_by_test_id("dep-row").get_by_role("link", name="cart").click()
    await expect(page.get_by_test_id("dep-status").first).to_have_text("Failed")
    text = page.get_by_test_id("status-text")
    await expect(text).to_contain_text("ANALYSIS")
    await expect(text).to_contain_text("the error rate was 12%")
    await page.locator("[data-stage-id=f1]").click()
    await expect(page.get_by_test_id("log-line")).to_contain_text("this is f1")
    await text.get_by_role("link", name="See its log").click()
    await expect(page.get_by_test_id("log")).to_contain_text("The error rate was 12%.")
    await expect(page.get_by_test_id("log-line")).to_contain_text("this is f2")


async def test_stages_in_order_parallel_and_of_the_rollback_are_chosen_by_the_keyboard(
    open_page: OpenPage, rolled_back: Deployment
) -> None:
    page = await open_page(f"/deployments/{rolled_back.id}")
    columns = page.locator("#stages > li")
    stages = [
        await column.get_by_test_id("stage").evaluate_all(
            "all => all.map((e) => e.dataset.stageId)"
        )
        for column in await columns.all()
    ]
    assert stages == [["f1"], ["f2", "f3"], ["f4"]]
    await expect(page.locator("[data-stage-id=f2]")).to_contain_text("Compare the error rates")
    await expect(page.locator("#rollback").get_by_test_id("stage")).to_have_count(1)
    await page.locator("[data-stage-id=f1]").focus()
    await page.keyboard.press("Enter")
    log = page.get_by_test_id("log")
    await expect(log).to_have_attribute("aria-label", "Log of K8S_CANARY_ROLLOUT")
    for name in ("ANALYSIS", "SCRIPT_RUN", "K8S_PRIMARY_ROLLOUT", "ROLLBACK"):
        await page.keyboard.press("]")
        await expect(log).to_have_attribute("aria-label", f"Log of {name}")
    await expect(page.get_by_test_id("log-line")).to_contain_text("this is r")


async def test_slow_stages_are_marked_in_the_timeline(
    *,
    open_page: OpenPage,
    new_deployment: Callable[[], Deployment],
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    advance: Callable[[float], None],
    now: Now,
) -> None:
    async def deploy(seconds: int) -> Deployment:
        deployment, begun = new_deployment(), to_unix(now())
        await cases.deployment_reports.create(deployment, by=piped)
        stage = PipelineStage(id="s1", name="K8S_SYNC", created_at=begun, updated_at=begun)
        planned = ReportDeploymentPlannedRequest(deployment_id=deployment.id, stages=[stage])
        await cases.deployment_reports.report_planned(planned, by=piped)
        await reports.deployment(deployment, DeploymentStatus.RUNNING)
        await reports.stage(deployment, "s1", StageStatus.RUNNING)
        advance(seconds)
        await reports.stage(deployment, "s1", StageStatus.SUCCESS)
        await reports.deployment(deployment, DeploymentStatus.SUCCESS)
        return deployment

    earlier = [await deploy(seconds) for seconds in (30, 40, 50)]
    slow = await deploy(300)
    page = await open_page(f"/deployments/{slow.id}?tab=timeline")
    step = page.get_by_test_id("step").filter(has_text="K8S_SYNC")
    await expect(step.locator(".num")).to_have_text("5m 00s")
    usual = page.get_by_test_id("usual")
    await expect(usual).to_have_text("Slow: usually 40s, in the last successful deployments")
    # Before the first ones there was nothing to compare with.
    await page.goto(page.url.replace(slow.id, earlier[2].id))
    await expect(step.locator(".num")).to_have_text("50s")
    await expect(usual).to_have_count(0)
