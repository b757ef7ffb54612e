# SPDX-License-Identifier: Apache-2.0
"""All pages in a real browser: by keyboard, on narrow screens, without scripts."""

from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.async_api import Request, expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.console import formatting
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.deployments import APPROVAL_STAGE
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.command import CommandKind
from pipecd.model.deployment import StageStatus
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncStatus
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.model.piped_pb2 import Piped
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.console_pages import ShownObjects

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


async def test_only_a_browser_that_has_signed_in_is_told_the_project(
    open_page: OpenPage, console_url: str, static_admin: StaticAdmin
) -> None:
    stranger = await open_page("/login", user=None)
    await expect(stranger.locator("#project")).to_have_value("")
    await expect(stranger.locator("#project")).to_be_focused()
    assert "shop" not in await stranger.content()
    page = await open_page("/login?project=shop", user=None)
    await page.fill("#username", static_admin.username)
    await page.fill("#password", static_admin.password)
    await page.keyboard.press("Enter")
    await page.get_by_label("Account of").click()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.locator("#project")).to_have_value("shop")
    await expect(page.locator("#username")).to_be_focused()
    # Who wants another project types its name.
    await page.goto(f"{console_url}/login?switch=1")
    await expect(page.locator("#project")).to_have_value("")


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


# A browser lays a name out as one word, and turns text after the mark around.
HOSTILE = "\u202e" + "n" * 10_000


@pytest.fixture
async def hostile_names(
    stores: Stores, shown: ShownObjects, running: Deployment, reports: PipedReports
) -> None:
    """Gives whatever has a name the longest one that can be stored."""

    def rename(stored: Application) -> None:
        stored.name, stored.git_path.path = HOSTILE[:50], HOSTILE
        stored.git_path.repo.id = HOSTILE
        stored.labels["team"] = HOSTILE[:200]
        stored.sync_state.status = ApplicationSyncStatus.INVALID_CONFIG
        stored.sync_state.timestamp = 1
        stored.sync_state.reason = stored.description = HOSTILE

    def rename_deployment(stored: Deployment) -> None:
        stored.application_name = HOSTILE[:36]
        stored.summary = stored.trigger.strategy_summary = HOSTILE
        commit = stored.trigger.commit
        commit.message = commit.author = commit.branch = HOSTILE
        stored.labels["team"] = HOSTILE[:200]
        for stage in stored.stages:
            stage.name = stage.desc = HOSTILE
        stored.stages[0].status = pb.StageStatus.ValueType(StageStatus.FAILURE)
        stored.stages[0].status_reason = HOSTILE
        stored.stages[1].name = APPROVAL_STAGE
        stored.stages[1].authorized_operators.append(HOSTILE)

    def rename_piped(stored: Piped) -> None:
        stored.name, stored.desc = HOSTILE[:50], HOSTILE
        stored.version = stored.desired_version = HOSTILE
        stored.repositories.add(id=HOSTILE, remote=HOSTILE, branch=HOSTILE)

    def rename_event(stored: Event) -> None:
        stored.name, stored.data, stored.status_description = HOSTILE[:50], HOSTILE, HOSTILE
        stored.labels["team"] = stored.contexts["Source-Run"] = HOSTILE[:200]

    def rename_chain(stored: DeploymentChain) -> None:
        for block in stored.blocks:
            for node in block.nodes:
                node.application_ref.application_name = HOSTILE[:36]

    def rename_preview(stored: Command) -> None:
        asked = stored.build_plan_preview
        asked.head_branch = asked.base_branch = asked.head_commit = asked.repository_id = HOSTILE

    await reports.lines(running, "s1", HOSTILE)
    await stores.events.update(shown.event, rename_event)
    await stores.chains.update(shown.chain, rename_chain)
    await stores.commands.update(shown.preview, rename_preview)
    await stores.applications.update(shown.application, rename)
    for deployment in (shown.waiting, shown.failed):
        await stores.deployments.update(deployment, rename_deployment)
    await stores.pipeds.update(shown.piped, rename_piped)


# A theme changes no sizes, so that the second one need not be in every run.
@pytest.mark.parametrize("width", [1440, 1024, 768, 390])
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_every_page_fits_and_names_its_controls(
    *,
    width: int,
    theme: str,
    open_page: OpenPage,
    console_url: str,
    all_pages: tuple[str, ...],
) -> None:
    viewport = {"width": width, "height": 800}
    page = await open_page("/applications", viewport=viewport, color_scheme=theme)
    wrong: list[str] = []

    def check_host(request: Request) -> None:
        if not request.url.startswith((console_url, "data:", "blob:")):
            wrong.append(f"{page.url} requests {request.url}")

    page.on("request", check_host)
    for path in all_pages:
        if path.startswith("/login"):
            continue
        await page.goto(console_url + path)
        found = await page.evaluate(CHECK)
        expected = {"overflow": 0, "cut": [], "unnamed": [], "headings": 1, "landmarks": LANDMARKS}
        if found != expected:
            wrong.append(f"{path[:80]}: {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("width", [1440, 1024, 768, 390])
async def test_every_page_fits_with_hostile_names(
    *,
    width: int,
    open_page: OpenPage,
    console_url: str,
    all_pages: tuple[str, ...],
    hostile_names: None,
) -> None:
    viewport = {"width": width, "height": 800}
    page = await open_page("/applications", viewport=viewport)
    wrong: list[str] = []
    shown_marks = 0
    filtered = f"/applications?q={HOSTILE[:2000]}&labels[0]=team:{HOSTILE[:2000]}"
    for path in (*all_pages, filtered):
        await page.goto(console_url + path)
        found = await page.evaluate(CHECK)
        # No name is wider than the page or turns the words around it.
        turned = await page.evaluate(TURNING)
        shown_marks += (await page.locator("body").inner_text()).count("\ufffdn")
        if found["overflow"] or found["cut"] or found["headings"] != 1 or turned:
            wrong.append(f"{path[:80]}: {found['overflow']} {found['cut']} {turned}")
    assert not wrong, "\n".join(wrong)
    assert shown_marks > 50


# Texts with a mark that turns what follows around; a page shows U+FFFD in its place.
TURNING = r"""() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const text = walker.currentNode;
        if (text.data.includes("\u202e")) found.push(text.parentElement.outerHTML.replace(/n{9,}/g, "N").slice(0, 200));
    }
    return found;
}"""
# The help is in the menu of the account.
LANDMARKS = ["header", "Main", "Account", "main"]
CHECK = """() => {
    const name = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.title ||
        [...(e.labels ?? [])].map((label) => label.textContent.trim()).join();
    const root = document.documentElement;
    const shown = (e) => e.checkVisibility();
    const scrolls = (e) => e !== root && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
    // A text of a drawing has the scroll width of the drawing.
    const right = (e) => Math.max(e.getBoundingClientRect().right,
        getComputedStyle(e).overflowX === "visible" && !e.ownerSVGElement ? e.getBoundingClientRect().left + e.scrollWidth : 0);
    const isWide = (e) => right(e) > root.clientWidth + 1 && !e.matches(".skip") &&
        (!scrolls(e.parentElement) || (innerWidth > 760 && e.matches(".topbar *")));
    return {
        overflow: Math.max(0, root.scrollWidth - root.clientWidth),
        // Elements that make the page wider than the window, and controls of the top bar outside of it.
        cut: [...document.querySelectorAll("body *")]
            .filter((e) => shown(e) && isWide(e) && ![...e.children].some((c) => isWide(c)))
            .slice(0, 5).map((e) => e.outerHTML.replace(/n{9,}/g, "N").slice(0, 160)),
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


async def test_nothing_moves_for_readers_who_prefer_it(
    open_page: OpenPage, running: Deployment
) -> None:
    moving = "() => document.getAnimations().filter((each) => each instanceof CSSAnimation).length"
    for preference in ("no-preference", "reduce"):
        page = await open_page(f"/deployments/{running.id}", reduced_motion=preference)
        await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
        assert bool(await page.evaluate(moving)) is (preference == "no-preference")


async def test_a_deployment_is_found_and_approved_by_the_keyboard_alone(
    *,
    open_page: OpenPage,
    running: Deployment,
    reports: PipedReports,
    static_admin: StaticAdmin,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page("/login?switch=1", user=None)
    for value in ("shop", static_admin.username, static_admin.password):
        await page.keyboard.type(value)
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/overview")
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    await page.wait_for_url("**/deployments")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/deployments/{running.id}")
    approve = page.get_by_test_id("approve-button")
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await approve.evaluate("each => each === document.activeElement"):
            break
    # The focus can be seen.
    outline = await approve.evaluate("each => getComputedStyle(each).outlineStyle")
    assert outline != "none"
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("notice")).to_contain_text("approval is requested")
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.type == CommandKind.APPROVE_STAGE
