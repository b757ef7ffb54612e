# SPDX-License-Identifier: Apache-2.0
"""What the page of a deployment says of it: what ran before, its stages, the way back."""

from collections.abc import Callable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DISPLAY_KEY, DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


def image(name: str, version: str) -> ArtifactVersion:
    return ArtifactVersion(kind=ArtifactVersion.CONTAINER_IMAGE, name=name, version=version)


async def test_who_may_not_list_deployments_is_not_told_that_it_is_the_first(
    *,
    open_page: OpenPage,
    running: Deployment,
    new_deployment: Callable[[], Deployment],
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    reports: PipedReports,
    stores: Stores,
    advance: Callable[[float], None],
) -> None:
    policy = ProjectRBACPolicy(
        resources=[ProjectRBACResource(type=ProjectRBACResource.DEPLOYMENT)],
        actions=[ProjectRBACPolicy.GET],
    )
    await cases.roles.add("reader", [policy], by=admin)
    await stores.deployments.update(running.id, lambda d: d.versions.append(image("web", "v1")))
    await reports.deployment(running, DeploymentStatus.SUCCESS)
    advance(60)
    following = new_deployment()
    await cases.deployment_reports.create(following, by=piped)
    await stores.deployments.update(following.id, lambda d: d.versions.append(image("web", "v2")))
    reader = User("shop", "rita", ("reader",))
    page = await open_page(f"/deployments/{following.id}", user=reader)
    await expect(page.get_by_test_id("version")).to_contain_text("v2")
    await expect(page.get_by_test_id("version")).not_to_contain_text("succe")
    await page.get_by_test_id("tab-changes").click()
    await expect(page.get_by_test_id("nothing-before")).to_contain_text(
        "Your roles do not allow listing deployments"
    )
    await expect(page.get_by_test_id("version-change")).to_contain_text("not known")


@pytest.mark.parametrize("width", [1440, 390])
async def test_what_a_stage_says_about_itself_can_be_read_whole(
    *,
    width: int,
    open_page: OpenPage,
    running: Deployment,
    stores: Stores,
) -> None:
    long = "75 % of the requests go to the canary, 25 % to the primary; " * 4

    def say(stored: Deployment) -> None:
        stored.stages[0].metadata[DISPLAY_KEY] = long.strip()

    await stores.deployments.update(running.id, say)
    page = await open_page(
        f"/deployments/{running.id}?stage=s1", viewport={"width": width, "height": 900}
    )
    card = page.locator("[data-stage-id=s1]")
    await expect(card.locator("small")).to_contain_text("25 % to the primary")
    assert await card.get_attribute("title") is not None
    about = page.get_by_test_id("stage-about")
    await expect(about).to_contain_text(long.strip())
    assert await about.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    root = "document.documentElement"
    assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0


async def test_an_application_leads_to_the_commands_that_roll_it_back(
    *, open_page: OpenPage, running: Deployment, stores: Stores, reports: PipedReports
) -> None:
    await reports.deployment(running, DeploymentStatus.SUCCESS)

    def remember(stored: Application) -> None:
        last = stored.most_recently_triggered_deployment
        last.deployment_id, last.started_at = running.id, 1
        last.trigger.CopyFrom(running.trigger)

    await stores.applications.update(running.application_id, remember)
    page = await open_page(f"/applications/{running.application_id}")
    await page.get_by_role("link", name="Roll back").click()
    await page.wait_for_url(f"**/deployments/{running.id}#roll-back")
    await expect(page.get_by_test_id("revert-command")).to_be_visible()
    text = page.get_by_test_id("roll-back-text")
    await expect(text).to_contain_text("No deployment has succeeded before this one")

    def follow_another(stored: Deployment) -> None:
        stored.running_commit_hash = "beef" * 10

    await stores.deployments.update(running.id, follow_another)
    await page.reload()
    await expect(text).to_contain_text("Git says what runs")

    def succeed_again(stored: Application) -> None:
        last = stored.most_recently_successful_deployment
        last.deployment_id, last.started_at = "the-sync", running.created_at + 1
        last.trigger.CopyFrom(running.trigger)

    await stores.applications.update(running.application_id, succeed_again)
    await page.reload()
    await expect(text).to_contain_text("A later deployment of the same commit has succeeded")

    def succeed_later(stored: Application) -> None:
        last = stored.most_recently_successful_deployment
        last.deployment_id = "the-revert"
        last.trigger.commit.hash = "cafe" * 10

    await stores.applications.update(running.application_id, succeed_later)
    await page.reload()
    await expect(text).to_contain_text("A later deployment has succeeded: commit cafecaf runs.")
    await text.get_by_role("link", name="See what runs").click()
    await page.wait_for_url(f"**/applications/{running.application_id}")


async def test_an_ended_deployment_does_not_boast_of_its_approval(
    *,
    open_page: OpenPage,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page(f"/deployments/{running.id}")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await page.get_by_test_id("approve-button").click()
    notice = page.get_by_test_id("notice")
    await expect(notice).to_contain_text("The approval is requested")
    (command,) = await cases.commands.list_unhandled(by=piped)
    result = CommandResult(command.id, CommandStatus.SUCCEEDED, 1)
    await cases.commands.report_handled(result, by=piped)
    await expect(notice).to_contain_text("The approval you requested succeeded.")
    await reports.stage(running, "s2", StageStatus.SUCCESS)
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await expect(page.get_by_test_id("dep-status").first).to_have_text("Failed")
    await expect(notice).to_have_count(0)
