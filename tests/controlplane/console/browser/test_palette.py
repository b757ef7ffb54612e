# SPDX-License-Identifier: Apache-2.0
"""Palette, help and notifications in a real browser."""

import asyncio

import pytest
from playwright.async_api import Route, expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.model.command import CommandKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.filled_project import FilledProject

pytestmark = pytest.mark.browser


async def test_a_few_keys_open_an_application(
    open_page: OpenPage, application: Application
) -> None:
    page = await open_page("/events")
    await page.keyboard.press("Control+k")
    palette = page.get_by_test_id("palette")
    await expect(palette.get_by_label("Find anything")).to_be_focused()
    await expect(palette.get_by_test_id("result").first).to_contain_text("Overview")
    await page.keyboard.type("car")
    await expect(palette.get_by_test_id("result").first).to_contain_text("cart")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/applications/{application.id}")


async def test_arrows_choose_an_action_and_escape_closes(
    open_page: OpenPage, application: Application, cases: UseCases, piped: PipedCaller
) -> None:
    page = await open_page("/deployments")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("cart")
    results = page.get_by_test_id("palette").get_by_test_id("result")
    await expect(results.first).to_contain_text("cart")
    await page.keyboard.press("Escape")
    await expect(page.get_by_test_id("palette")).to_have_count(0)
    await page.get_by_test_id("open-palette").click()
    await page.keyboard.type("cart")
    sync = results.filter(has_text="Sync cart")
    await expect(sync).to_be_visible()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await expect(sync).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("notice")).to_be_visible()
    assert f"/applications/{application.id}?cmd=" in page.url
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.type == CommandKind.SYNC_APPLICATION


async def test_the_question_mark_shows_the_keys(open_page: OpenPage) -> None:
    page = await open_page("/applications")
    await page.keyboard.press("?")
    await expect(page.get_by_test_id("help")).to_contain_text("Find anything, and act")
    await page.keyboard.press("Escape")
    await expect(page.get_by_test_id("help")).to_have_count(0)
    await page.keyboard.press("g")
    await page.keyboard.press("i")
    await page.wait_for_url("**/insights")
    await page.keyboard.press("g")
    await page.keyboard.press("c")
    await page.wait_for_url("**/chains")


async def test_without_scripts_the_search_is_a_page(
    open_page: OpenPage, application: Application
) -> None:
    page = await open_page("/overview", java_script_enabled=False)
    await page.get_by_label("Find anything").fill("cart")
    await page.keyboard.press("Enter")
    await page.get_by_test_id("result").first.click()
    await page.wait_for_url(f"**/applications/{application.id}")


NOTIFICATIONS = """
    globalThis.Notification = class {
        static permission = "default";
        static async requestPermission() { this.permission = "granted"; return "granted"; }
        constructor(title) {
            if (this.constructor.permission !== "granted") return;
            const shown = document.createElement("output");
            shown.textContent = title;
            document.body.append(shown);
        }
        close() {}
    };
    Document.prototype.hasFocus = () => false;
"""


async def test_a_deployment_that_waits_or_ends_is_notified_once_asked_for(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page("/settings/piped")
    await page.add_init_script(NOTIFICATIONS)
    await page.goto(page.url.replace("/settings/piped", f"/deployments/{running.id}"))
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    assert await page.evaluate("Notification.permission") == "default"
    await page.get_by_test_id("notify-me").click()
    await expect(page.get_by_test_id("notify-me")).to_have_attribute("aria-pressed", "true")
    await expect(page.get_by_test_id("notify-me")).to_have_attribute(
        "title", "You are notified when it ends or waits for an approval"
    )
    await expect(page.get_by_test_id("notify-me")).to_have_text("Notifications on")
    # A page that is watched goes on while it is hidden.
    await page.evaluate(
        """() => { Object.defineProperty(document, "hidden", { value: true, configurable: true });
        document.dispatchEvent(new Event("visibilitychange")); }"""
    )
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    shown = page.locator("output")
    await expect(shown).to_have_text(["cart waits for an approval"])
    await reports.stage(running, "s2", StageStatus.SUCCESS)
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await expect(shown).to_have_text(["cart waits for an approval", "cart has failed"])


async def test_blocked_notifications_say_where_to_allow_them(open_page: OpenPage) -> None:
    page = await open_page("/settings/piped")
    await page.add_init_script(NOTIFICATIONS)
    await page.add_init_script('Notification.requestPermission = async () => "denied";')
    await page.goto(page.url.replace("/settings/piped", "/overview"))
    await page.clock.install()
    await page.get_by_test_id("notify-me").click()
    toast = page.get_by_test_id("toast")
    await expect(toast).to_contain_text("allow them in its settings")
    # It does not leave by itself before it is read.
    await page.clock.fast_forward(60_000)
    await expect(toast).to_contain_text("allow them in its settings")
    await toast.get_by_role("button", name="Close").click()
    await expect(toast).to_be_empty()
    await expect(page.get_by_test_id("notify-me")).to_have_attribute("aria-pressed", "false")


async def test_a_description_is_markdown_without_scripts(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    text = (
        "**Holds** the cart, [runbook](https://wiki.example) [bad](javascript:alert(1)) <img src=x>"
    )
    info = ApplicationInfo(id=application.id, name="cart", description=text)
    await cases.application_reports.update_configurations([info], by=piped)
    page = await open_page(f"/applications/{application.id}")
    description = page.get_by_test_id("description")
    await expect(description.locator("strong")).to_have_text("Holds")
    await expect(description.locator("a")).to_have_count(1)
    await expect(description.locator("img")).to_have_count(0)


async def test_enter_opens_what_is_in_the_field_not_what_was_found_before(
    open_page: OpenPage, application: Application
) -> None:
    page = await open_page("/events")

    async def slowly(route: Route) -> None:
        await asyncio.sleep(0.3)
        await route.continue_()

    await page.keyboard.press("Control+k")
    results = page.get_by_test_id("palette").get_by_test_id("result")
    await expect(results.first).to_contain_text("Overview")
    await page.route("**/search?q=c*", slowly)
    await page.keyboard.type("cart")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/applications/{application.id}")


async def test_keys_do_nothing_behind_a_dialog(
    open_page: OpenPage, application: Application
) -> None:
    del application
    page = await open_page("/applications")
    await page.keyboard.press("?")
    close = page.get_by_test_id("help").get_by_role("button", name="Close")
    await close.focus()
    await page.keyboard.press("j")
    await page.keyboard.press("g")
    await page.keyboard.press("i")
    await expect(close).to_be_focused()
    await close.click()
    await page.keyboard.press("i")
    assert page.url.endswith("/applications")


@pytest.mark.parametrize("path", ["/deployment-traces", "/chains/{chain}"])
async def test_the_keys_of_stages_open_no_deployment_elsewhere(
    path: str, open_page: OpenPage, filled: FilledProject
) -> None:
    page = await open_page(path.format(chain=filled.chain))
    link = page.locator("a.stage, [data-testid=trace-deployment]").first
    await expect(link).to_be_visible()
    await page.keyboard.press("]")
    await page.keyboard.press("g")
    await page.keyboard.press("e")
    await page.wait_for_url("**/events")


async def test_keys_without_ctrl_can_be_switched_off(
    open_page: OpenPage, application: Application
) -> None:
    page = await open_page("/help")
    switch = page.get_by_role("checkbox", name="Keys without Ctrl")
    await expect(switch).to_be_checked()
    await switch.uncheck()
    await page.goto(page.url.replace("/help", "/applications"))
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    for key in ("?", "g", "i", "j"):
        await page.keyboard.press(key)
    await expect(page.get_by_test_id("help")).to_have_count(0)
    assert page.url.endswith("/applications")
    # The palette needs Ctrl, and goes on working; the menu leads to the switch.
    await page.keyboard.press("Control+k")
    await page.keyboard.type("car")
    await expect(page.get_by_test_id("result").first).to_contain_text(application.name)
    await page.keyboard.press("Escape")
    await page.locator("details.account > summary").click()
    await page.get_by_role("button", name="Keyboard shortcuts").click()
    await page.get_by_test_id("help").get_by_role("checkbox", name="Keys without Ctrl").check()
    await page.get_by_test_id("help").get_by_role("button", name="Close").click()
    await page.keyboard.press("?")
    await expect(page.get_by_test_id("help")).to_be_visible()


async def test_escape_closes_a_menu_and_returns_the_focus(open_page: OpenPage) -> None:
    page = await open_page("/applications")
    menu = page.locator("details.account > summary")
    await menu.press("Enter")
    await page.get_by_role("button", name="Dark").focus()
    await page.keyboard.press("Escape")
    await expect(menu).to_be_focused()
    await expect(page.get_by_role("button", name="Dark")).not_to_be_visible()


async def test_a_browser_that_cannot_notify_goes_on_following(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page("/settings/piped")
    # Chrome on Android has the class, but its constructor throws.
    await page.add_init_script(
        """globalThis.Notification = class {
            static permission = "granted";
            static requestPermission = async () => "granted";
            constructor() { throw new TypeError("Illegal constructor"); }
        };
        Document.prototype.hasFocus = () => false;
        localStorage.setItem(`notify ${location.pathname}`, "1");"""
    )
    await page.goto(page.url.replace("/settings/piped", f"/deployments/{running.id}"))
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    await expect(page.get_by_test_id("approval-card")).to_be_visible()
    await expect(page.get_by_test_id("notify-me")).to_be_hidden()
    await reports.stage(running, "s2", StageStatus.SUCCESS)
    await expect(page.get_by_test_id("approval-card")).to_have_count(0)
    await expect(page.locator("#offline")).to_be_hidden()


async def test_a_browser_without_notifications_of_pages_offers_none(
    open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page("/settings/piped")
    await page.add_init_script(
        """globalThis.Notification = class {
            static permission = "default";
            constructor() { throw new TypeError("Illegal constructor"); }
        };"""
    )
    await page.goto(page.url.replace("/settings/piped", f"/deployments/{running.id}"))
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await expect(page.get_by_test_id("notify-me")).to_be_hidden()


async def test_copying_works_without_https(open_page: OpenPage, running: Deployment) -> None:
    page = await open_page("/settings/piped")
    # As on a plain HTTP address, which a test on loopback is not.
    await page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
    )
    await page.goto(page.url.replace("/settings/piped", f"/deployments/{running.id}"))
    copy = page.locator("main [data-copy]").first
    await copy.click()
    await expect(page.get_by_test_id("toast")).to_contain_text("copied")
    await page.get_by_label("Find in log").click()
    await page.keyboard.press("Control+v")
    text = await copy.get_attribute("data-copy")
    await expect(page.get_by_label("Find in log")).to_have_value(text or "nothing")
