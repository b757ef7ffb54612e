# SPDX-License-Identifier: Apache-2.0
"""Live updates in a real browser."""

import asyncio
import time
from collections.abc import Callable

import pytest
from playwright.async_api import Locator, Page, Route, expect

from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.usecases import UseCases
from pipecd.model.command import CommandKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.project_pb2 import Project, ProjectRBACRole
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


def connection_state(page: Page) -> Locator:
    return page.get_by_test_id("conn-dot")


async def test_the_page_follows_the_deployment_without_a_reload(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    await page.evaluate("window.same = true")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(page.get_by_test_id("dep-status").first).to_have_text("Waiting for approval")
    await expect(page.get_by_test_id("approval-card")).to_be_visible()
    await expect(page.get_by_test_id("log")).to_have_attribute("aria-label", "Log of WAIT_APPROVAL")
    await expect(page).to_have_title("Waiting for approval · cart · PipeCD")
    # The log that is followed now is that of the new stage.
    await reports.lines(running, "s2", "please approve")
    await expect(page.get_by_test_id("log-line")).to_have_text(["103:04:05please approve"])
    await reports.stage(running, "s2", StageStatus.SUCCESS)
    await reports.deployment(running, DeploymentStatus.SUCCESS)
    await expect(page.get_by_test_id("dep-status").first).to_have_text("Succeeded")
    assert await page.evaluate("window.same") is True


async def test_a_new_line_is_there_within_300_ms(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    waits: list[float] = []
    for number in range(2, 8):
        begun = time.monotonic()
        await reports.lines(running, "s1", f"line {number}")
        await page.locator(f"#L{number}").wait_for()
        waits.append(time.monotonic() - begun)
    assert sorted(waits)[len(waits) // 2] < 0.3


async def test_a_selected_stage_stays_selected(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    await page.locator("[data-stage-id=s1]").click()
    await page.wait_for_url("**?stage=s1")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(page.locator("[data-stage-id=s2]")).to_have_attribute("data-status", "RUNNING")
    await expect(page.get_by_test_id("log")).to_have_attribute(
        "aria-label", "Log of K8S_CANARY_ROLLOUT"
    )
    await page.get_by_role("link", name="Go to WAIT_APPROVAL").click()
    await expect(page.get_by_test_id("log")).to_have_attribute("aria-label", "Log of WAIT_APPROVAL")
    await page.go_back()
    await expect(page.get_by_test_id("log")).to_have_attribute(
        "aria-label", "Log of K8S_CANARY_ROLLOUT"
    )


async def test_a_lost_connection_is_reopened_without_gaps(
    open_page: OpenPage, running: Deployment, reports: PipedReports, bus: MemoryBus
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    for subscriptions in list(bus._subscriptions.values()):
        for subscription in list(subscriptions):
            subscription.close()
    await expect(connection_state(page)).to_have_text("Reconnecting")
    await reports.lines(running, "s1", "line 2", "line 3")
    await reports.stage(running, "s1", StageStatus.FAILURE)
    await expect(connection_state(page)).to_have_text("Live")
    lines = page.get_by_test_id("log-line").locator("code")
    await expect(lines).to_have_text(["line 1", "line 2", "line 3"])
    await expect(page.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "FAILURE")


async def test_a_hidden_page_closes_its_stream(
    open_page: OpenPage, running: Deployment, bus: MemoryBus
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    hide = """(is) => {
        Object.defineProperty(document, "hidden", { value: is, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(hide, True)
    await expect(connection_state(page)).to_have_text("Paused")
    await page.evaluate(hide, False)
    await expect(connection_state(page)).to_have_text("Live")


async def test_without_a_stream_the_page_polls(
    open_page: OpenPage, console_url: str, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page("/applications")
    # The requests of a shared worker cannot be intercepted.
    await page.add_init_script("delete globalThis.SharedWorker")
    await page.route("**/_/stream*", lambda route: route.abort())
    await page.goto(f"{console_url}/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Polling", timeout=15_000)
    await reports.lines(running, "s1", "line 2")
    await expect(page.locator("#L2 code")).to_have_text("line 2", timeout=15_000)


async def test_an_offline_browser_shows_a_banner(open_page: OpenPage, running: Deployment) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    await page.context.set_offline(True)
    await expect(page.locator("#offline")).to_be_visible()
    await page.context.set_offline(False)
    await expect(page.locator("#offline")).to_be_hidden()
    await expect(connection_state(page)).to_have_text("Live")


async def test_an_update_keeps_menus_and_focus(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    await page.get_by_test_id("cancel-button").click()
    await page.get_by_label("Find in log").fill("lin")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(page.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "SUCCESS")
    await expect(page.get_by_label("Find in log")).to_be_focused()
    await expect(page.get_by_label("Find in log")).to_have_value("lin")
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(page.get_by_test_id("approval-card")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel and roll back")).to_be_visible()


async def test_approving_from_one_browser_is_seen_in_another(
    *,
    open_page: OpenPage,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    mine = await open_page(f"/deployments/{running.id}")
    other = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(other)).to_have_text("Live")
    await mine.get_by_test_id("approve-button").click()
    await expect(mine.get_by_test_id("notice")).to_contain_text("The approval is requested")
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.type == CommandKind.APPROVE_STAGE
    await reports.stage(running, "s2", StageStatus.SUCCESS)
    await expect(other.get_by_test_id("approval-card")).to_have_count(0)


async def test_new_rows_appear_at_the_top(
    *,
    open_page: OpenPage,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    advance: Callable[[float], None],
) -> None:
    page = await open_page("/deployments")
    await expect(connection_state(page)).to_have_text("Live")
    row = page.locator(f"#dep-{running.id}")
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await expect(row.get_by_test_id("dep-status")).to_have_text("Failed")
    advance(1)
    await cases.deployment_reports.create(new_deployment(), by=piped)
    await expect(page.get_by_test_id("dep-row")).to_have_count(2)
    await expect(page.get_by_test_id("dep-status").first).to_have_text("Pending")


async def test_a_row_that_no_longer_matches_is_removed(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page("/deployments?status=2")
    await expect(connection_state(page)).to_have_text("Live")
    await expect(page.get_by_test_id("dep-row")).to_have_count(1)
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await expect(page.get_by_test_id("dep-row")).to_have_count(0)
    await expect(page.get_by_test_id("empty")).to_be_visible()


async def test_the_log_can_be_searched_and_followed(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    await reports.lines(running, "s1", *(f"line {n}" for n in range(2, 200)))
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    lines = page.locator("#lines")
    at_end = "e => e.scrollHeight - e.scrollTop - e.clientHeight < 4"
    assert await lines.evaluate(at_end)
    await page.get_by_label("Find in log").fill("line 19")
    await expect(page.get_by_test_id("log-matches")).to_have_text("1 of 11")
    await expect(page.locator("#L19")).to_be_in_viewport()
    await page.get_by_label("Find in log").press("Enter")
    await expect(page.get_by_test_id("log-matches")).to_have_text("2 of 11")
    await expect(page.locator("#L190")).to_be_in_viewport()
    await page.get_by_label("Find in log").press("Shift+Enter")
    await expect(page.get_by_test_id("log-matches")).to_have_text("1 of 11")
    await expect(page.locator("#L19")).to_be_in_viewport()
    await reports.lines(running, "s1", "line 200")
    await expect(page.get_by_test_id("log-follow")).to_have_text("1 new line")
    assert not await lines.evaluate(at_end)
    await page.get_by_test_id("log-follow").click()
    await expect(page.locator("#L200")).to_be_in_viewport()
    assert await lines.evaluate(at_end)


async def test_a_text_selection_survives_updates(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    selected = "() => getSelection().toString()"
    await page.evaluate(
        """() => getSelection().selectAllChildren(document.querySelector("dl.facts > div dd"))"""
    )
    before = await page.evaluate(selected)
    assert "more coffee" in before
    # The card appears above the selected text, and disappears again.
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(page.get_by_test_id("approval-card")).to_be_visible()
    assert await page.evaluate(selected) == before
    await reports.stage(running, "s2", StageStatus.SUCCESS)
    await expect(page.get_by_test_id("approval-card")).to_have_count(0)
    assert await page.evaluate(selected) == before


async def test_a_selection_in_the_log_survives_new_lines(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    selected = "() => getSelection().toString()"
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('#L1 code'))")
    assert await page.evaluate(selected) == "line 1"
    await reports.lines(running, "s1", *(f"line {n}" for n in range(2, 100)))
    await expect(page.locator("#L99")).to_be_attached()
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(page.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "SUCCESS")
    assert await page.evaluate(selected) == "line 1"


async def test_a_window_too_many_polls_and_says_so_without_a_shared_worker(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    first = await open_page("/settings")
    await first.context.add_init_script("delete globalThis.SharedWorker")
    address = first.url.replace("/settings/piped", f"/deployments/{running.id}")
    await first.goto(address)
    await expect(connection_state(first)).to_have_text("Live")
    for _ in range(4):
        other = await first.context.new_page()
        await other.goto(address)
        await expect(connection_state(other)).to_have_text("Live")
    await expect(connection_state(first)).to_have_text("Polling")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(first.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "SUCCESS")


async def test_all_windows_of_a_session_share_one_stream(
    *,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    reports: PipedReports,
    bus: MemoryBus,
) -> None:
    def streams() -> int:
        return sum(len(of_project) for of_project in bus._subscriptions.values())

    first = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(first)).to_have_text("Live")
    alone = streams()
    windows = [first]
    for path in ("/deployments", "/applications", "/overview", "/settings/piped", "/events"):
        window = await first.context.new_page()
        await window.goto(console_url + path)
        windows.append(window)
    second = await first.context.new_page()
    await second.goto(first.url)
    windows.append(second)
    for window in windows:
        await expect(connection_state(window)).to_have_text("Live")
    assert streams() == alone
    # Each window shows what concerns it, also the log of a window that is not the last one.
    await reports.lines(running, "s1", "line 2")
    for window in (first, second):
        await expect(window.locator("#L2 code")).to_have_text("line 2")
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await expect(first.get_by_test_id("dep-status").first).to_have_text("Failed")
    await expect(windows[1].get_by_test_id("dep-status").first).to_have_text("Failed")
    # The others go on when one is closed.
    await second.close()
    await reports.lines(running, "s1", "line 3")
    await expect(first.locator("#L3 code")).to_have_text("line 3")


async def test_a_window_follows_by_itself_if_the_shared_worker_does_not_start(
    open_page: OpenPage, console_url: str, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page("/settings/piped")
    await page.add_init_script(
        """const Shared = SharedWorker;
        globalThis.SharedWorker = function (_, options) { return new Shared("/nowhere.js", options); };
        """
    )
    await page.goto(f"{console_url}/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(page.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "SUCCESS")


async def test_a_page_that_cannot_be_updated_says_so_until_it_can(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    bar = page.locator("#offline")
    await page.route(f"**/deployments/{running.id}", lambda route: route.fulfill(status=503))
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(bar).to_contain_text("answers with an error (503)")
    await page.unroute(f"**/deployments/{running.id}")
    await page.get_by_role("button", name="Try now").click()
    await expect(page.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "SUCCESS")
    await expect(bar).to_be_hidden()
    # Without a click it tries again by itself.
    await page.route(f"**/deployments/{running.id}", lambda route: route.fulfill(status=502))
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(bar).to_contain_text("(502)")
    await page.unroute(f"**/deployments/{running.id}")
    await expect(page.get_by_test_id("approval-card")).to_be_visible()


async def test_a_bug_in_an_update_is_not_called_an_outage(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    await page.evaluate(
        """() => {
            window.addEventListener("error", (event) => event.preventDefault());
            const parse = DOMParser.prototype.parseFromString;
            DOMParser.prototype.parseFromString = function (...given) {
                DOMParser.prototype.parseFromString = parse;
                throw new Error("a bug");
            };
        }"""
    )
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(page.locator("#offline")).to_contain_text("This page could not be updated")
    # The next update works again.
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(page.get_by_test_id("approval-card")).to_be_visible()
    await expect(page.locator("#offline")).to_be_hidden()


async def test_a_line_chosen_during_an_update_does_not_lose_it(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(connection_state(page)).to_have_text("Live")
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await may_answer.wait()
        await route.continue_()

    await page.route(f"**/deployments/{running.id}", hold)
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await asked.wait()
    await page.locator("#L1 .n").click()
    assert page.url.endswith("#L1")
    may_answer.set()
    await expect(page.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "SUCCESS")


@pytest.fixture
async def narrow(cases: UseCases, admin: User) -> User:
    """A user whose role has applications of one label and deployments, but no events."""
    policies = parse_policies("resources=application{env:dev},deployment;actions=get,list")
    role = ProjectRBACRole(name="narrow", policies=policies)
    await cases.projects.change(lambda project: project.rbac_roles.append(role), by=admin)
    return User(admin.project, "nora", ("narrow",))


async def test_windows_of_a_narrow_role_are_live(
    open_page: OpenPage, console_url: str, running: Deployment, narrow: User
) -> None:
    first = await open_page("/overview", user=narrow)
    windows = [first]
    for path in ("/deployment-traces", "/applications", f"/deployments/{running.id}"):
        window = await first.context.new_page()
        await window.goto(console_url + path)
        windows.append(window)
    for window in windows:
        await expect(connection_state(window)).to_have_text("Live")


async def test_a_role_that_lost_rights_must_sign_in_again_and_is_told(
    *, open_page: OpenPage, cases: UseCases, admin: User, application: Application, narrow: User
) -> None:
    del application
    page = await open_page("/applications", user=narrow)
    await expect(connection_state(page)).to_have_text("Live")

    def take_applications(project: Project) -> None:
        (role,) = (role for role in project.rbac_roles if role.name == "narrow")
        del role.policies[:]
        role.policies.extend(parse_policies("resources=deployment;actions=get,list"))

    await cases.projects.change(take_applications, by=admin)
    await page.wait_for_url("**/login?return=%2Fapplications&expired=page")
    await expect(page.get_by_role("status")).to_contain_text("Your session has ended")


async def test_a_lost_right_is_said_and_does_not_stop_the_other_windows(
    *,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
    narrow: User,
) -> None:
    first = await open_page(f"/applications/{application.id}", user=narrow)
    other = await first.context.new_page()
    await other.goto(f"{console_url}/deployments/{running.id}")
    for window in (first, other):
        await expect(connection_state(window)).to_have_text("Live")
    # The role may see applications of the dev environment only, which this one leaves.
    info = ApplicationInfo(id=application.id, name=application.name, labels={"env": "prod"})
    await cases.application_reports.update_configurations([info], by=piped)
    await expect(first.locator("h1")).to_contain_text("Permission denied")
    await expect(first.locator("main")).to_contain_text("Your roles do not allow this")
    await expect(connection_state(other)).to_have_text("Live")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(other.locator("[data-stage-id=s1]")).to_have_attribute("data-status", "SUCCESS")
