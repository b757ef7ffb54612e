# SPDX-License-Identifier: Apache-2.0
"""All pages in a real browser: by keyboard, on narrow screens, without scripts."""

from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.async_api import Request, expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.console import formatting
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.command import CommandKind
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


async def test_signing_in_with_the_keyboard_returns_to_the_page(
    open_page: OpenPage, static_admin: StaticAdmin, deployment: Deployment
) -> None:
    page = await open_page(f"/deployments/{deployment.id}", user=None)
    await page.fill("#project", "shop")
    await page.fill("#username", static_admin.username)
    await page.fill("#password", "wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("password is wrong")
    await expect(page.locator("#username")).to_have_value(static_admin.username)
    await expect(page.locator("#password")).to_be_focused()
    await page.fill("#password", static_admin.password)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/deployments/{deployment.id}")
    await page.get_by_label("Account of").click()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_link_on_another_site_opens_the_page_signed_in(
    open_page: OpenPage, console_url: str, running: Deployment
) -> None:
    link = f"{console_url}/deployments/{running.id}?stage=s1"
    page = await open_page(f"data:text/html,{quote(f'<a href={link}>go</a>')}")
    await page.get_by_text("go").click()
    await expect(page.get_by_test_id("pipeline")).to_be_visible()
    assert page.url == link


async def test_everything_works_without_scripts(
    *,
    open_page: OpenPage,
    running: Deployment,
    static_admin: StaticAdmin,
    reports: PipedReports,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page("/applications", user=None, java_script_enabled=False)
    await page.fill("#project", "shop")
    await page.fill("#username", static_admin.username)
    await page.fill("#password", static_admin.password)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_test_id("app-row").get_by_role("link", name="cart").click()
    await page.get_by_test_id("dep-row").get_by_role("link").click()
    await page.locator("[data-stage-id=s1]").click()
    await expect(page.get_by_test_id("log-line").locator("code")).to_have_text(["line 1"])
    await expect(page.get_by_test_id("log-follow")).to_be_hidden()
    await expect(page.get_by_test_id("conn-dot")).to_be_hidden()
    await page.get_by_test_id("approve-button").click()
    await expect(page.get_by_test_id("notice")).to_be_visible()
    await page.get_by_test_id("cancel-button").click()
    await page.get_by_role("button", name="Cancel without rollback").click()
    kinds = {command.type for command in await cases.commands.list_unhandled(by=piped)}
    assert kinds == {CommandKind.APPROVE_STAGE, CommandKind.CANCEL_DEPLOYMENT}
    await page.goto(f"{page.url.split('?')[0]}?stage=s1")
    await page.get_by_role("link", name="Raw").click()
    await expect(page.locator("body")).to_have_text("2026-01-02T03:04:05Z line 1")


@pytest.mark.parametrize("width", [1280, 1024, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_fits_and_names_its_controls(
    *,
    width: int,
    theme: str,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    application: Application,
) -> None:
    page = await open_page(
        "/applications", viewport={"width": width, "height": 800}, color_scheme=theme
    )
    for path in (
        "/overview",
        "/applications",
        "/applications/add",
        f"/applications/{application.id}",
        f"/applications/{application.id}/settings",
        "/deployments",
        f"/deployments/{running.id}",
        f"/deployments/{running.id}?tab=changes",
        f"/deployments/{running.id}?tab=timeline",
        f"/deployments/{running.id}?stage=s1&find=line&only=matches",
        "/chains",
        "/deployment-traces",
        "/events",
        "/insights",
        "/search?q=cart",
        "/help",
        "/help/console",
        "/settings/piped",
        f"/settings/piped/{application.piped_id}",
        "/settings/api-key",
        "/settings/project",
        "/docs/api",
        "/nowhere",
    ):
        await page.goto(console_url + path)
        found = await page.evaluate(CHECK)
        assert found == {"overflow": 0, "unnamed": [], "headings": 1, "landmarks": LANDMARKS}, path


# The help is in the menu of the account.
LANDMARKS = ["header", "Main", "Help", "main"]
CHECK = """() => {
    const name = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.title ||
        (e.id && document.querySelector(`label[for="${e.id}"]`)?.textContent) || "";
    const root = document.documentElement;
    const shown = (e) => e.checkVisibility();
    return {
        overflow: Math.max(0, root.scrollWidth - root.clientWidth),
        unnamed: [...document.querySelectorAll("a, button, summary, input:not([type=hidden]), select")]
            .filter((e) => shown(e) && !name(e)).map((e) => e.outerHTML),
        headings: document.querySelectorAll("h1").length,
        landmarks: [...document.querySelectorAll("body > header, main, header nav")]
            .map((e) => e.getAttribute("aria-label") ?? e.nodeName.toLowerCase()),
    };
}"""


async def test_the_theme_can_be_chosen(open_page: OpenPage, console_url: str) -> None:
    page = await open_page("/applications", color_scheme="light")
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(background)
    await page.get_by_label("Account of").click()
    await page.get_by_role("button", name="Dark").click()
    dark = await page.evaluate(background)
    assert dark != light
    # The server knows it, so that no page flashes in the other theme.
    for path in ("/deployments", "/login?switch=1"):
        await page.goto(console_url + path)
        assert await page.evaluate(background) == dark
    await page.goto(f"{console_url}/applications")
    await page.get_by_label("Account of").click()
    await page.get_by_role("button", name="Auto").click()
    await page.reload()
    assert await page.evaluate(background) == light


async def test_keyboard_shortcuts(open_page: OpenPage, running: Deployment) -> None:
    page = await open_page("/applications")
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    await page.wait_for_url("**/deployments")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/deployments/{running.id}")
    await page.keyboard.press("]")
    await page.wait_for_url("**stage=s2")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Find anything")).to_be_focused()
    await page.keyboard.type("cart")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/search?q=cart")


async def test_browser_and_server_format_times_alike(open_page: OpenPage) -> None:
    page = await open_page("/applications")
    script = await page.locator("script[type=module]").get_attribute("src")
    seconds = [0, 9, 10, 59, 60, 3599, 3600, 86399, 86400, 86400 * 29, 86400 * 65, 86400 * 800]
    formatted = await page.evaluate(
        """async ([address, all]) => {
            const { ago, duration } = await import(address);
            return all.map((s) => [ago(s), duration(s)]);
        }""",
        [script, seconds],
    )
    assert formatted == [[formatting.ago(s), formatting.duration(s)] for s in seconds]


async def test_the_first_load_is_small(
    open_page: OpenPage, console_url: str, running: Deployment
) -> None:
    page = await open_page("data:text/html,")
    requests: list[Request] = []
    page.on("requestfinished", lambda request: requests.append(request))  # noqa: PLW0108 - Playwright wraps functions only
    await page.goto(f"{console_url}/deployments")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    sizes = [await request.sizes() for request in requests if "/_/stream" not in request.url]
    assert 3 <= len(sizes) <= 8
    assert sum(size["responseBodySize"] for size in sizes) <= 60_000


async def test_times_tick(
    open_page: OpenPage, running: Deployment, advance: Callable[[float], None]
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    shown = page.locator("dl [data-since]")
    before = await shown.text_content()
    await expect(shown).not_to_have_text(before or "", timeout=5000)
