# SPDX-License-Identifier: Apache-2.0
"""The console on a phone: nothing is cut off that somebody has to read or press."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from playwright.async_api import Locator, Page, ViewportSize, expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.filled_project import FilledProject

pytestmark = pytest.mark.browser

PHONE: ViewportSize = {"width": 390, "height": 844}
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def assert_within(page: Page, shown: Locator) -> None:
    """Asserts that something is visible and not beyond the edges of the window."""
    await expect(shown).to_be_visible()
    box = await shown.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    assert await page.evaluate(OVERFLOW) == 0


@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["scripts", "no scripts"])
@pytest.mark.parametrize("path", ["/applications", "/deployments"])
async def test_filters_beside_the_search_are_shown_on_demand(
    *, path: str, java_script_enabled: bool, open_page: OpenPage, filled: FilledProject
) -> None:
    del filled
    page = await open_page(path, viewport=PHONE, java_script_enabled=java_script_enabled)
    status = page.get_by_test_id("filter-status")
    await expect(page.get_by_test_id("filter-q")).to_be_visible()
    await expect(status).not_to_be_visible()
    await page.get_by_test_id("more-filters").focus()
    await page.keyboard.press("Space")
    await expect(status).to_be_visible()
    await expect(page.get_by_test_id("more-filters")).to_be_checked()
    wide = await open_page(path, viewport={"width": 1440, "height": 900})
    await expect(wide.get_by_test_id("filter-status")).to_be_visible()
    await expect(wide.locator(".more-filters")).not_to_be_visible()


async def test_menus_in_lists_stay_within_the_window(
    *, open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    await cases.roles.add_group("shop/payments", "Editor", by=admin)
    await cases.api_keys.generate("CI of the shop", APIKey.READ_ONLY, by=admin)
    await cases.sessions.begin(User("shop", "olga", ("Viewer",)))
    for path, row in (
        ("/settings/project", "group"),
        ("/settings/api-key", "apikey-row"),
        ("/settings/users?user=olga", "session-row"),
    ):
        page = await open_page(path, viewport=PHONE)
        menu = page.get_by_test_id(row).first.locator("details.menu")
        await menu.locator("summary").click()
        await assert_within(page, menu.locator("> div"))
        await assert_within(page, menu.get_by_role("button").last)


async def test_the_name_of_an_application_is_read_whole(
    *,
    open_page: OpenPage,
    new_deployment: Callable[[], Deployment],
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    deployment = new_deployment()
    deployment.application_name = "thumbnailer-of-the-marketing-team-x1"
    subject = "Use the new tax rates of 2027 for orders from Switzerland and Liechtenstein"
    deployment.trigger.commit.message = subject
    await cases.deployment_reports.create(deployment, by=piped)
    page = await open_page("/deployments", viewport=PHONE)
    row = page.get_by_test_id("dep-row")
    for text in (row.locator(".row-link"), row.get_by_text(subject)):
        await assert_within(page, text)
        assert await text.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
        assert await text.evaluate("e => e.scrollHeight <= e.clientHeight + 1")
    # The overview has the commit below the name.
    await page.goto(page.url.replace("/deployments", "/overview"))
    tile = page.get_by_test_id("tile-running")
    name, commit = tile.get_by_role("link", name="thumbnailer"), tile.get_by_text(subject)
    upper, lower = await name.bounding_box(), await commit.bounding_box()
    assert upper is not None
    assert lower is not None
    assert lower["y"] >= upper["y"] + upper["height"]
    assert lower["width"] > 250


async def test_a_deployment_has_its_status_and_time_in_one_line(
    open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page("/deployments", viewport=PHONE)
    row = page.get_by_test_id("dep-row")
    status = await row.get_by_test_id("dep-status").bounding_box()
    time = await row.locator("time").bounding_box()
    name = await row.locator(".row-link").bounding_box()
    assert status
    assert time
    assert name
    assert abs(status["y"] + status["height"] / 2 - time["y"] - time["height"] / 2) < 6
    assert name["y"] >= time["y"] + time["height"]
    await page.goto(page.url.replace("/deployments", f"/applications/{running.application_id}"))
    time = await row.locator("time").bounding_box()
    commit = await row.locator(".row-link").bounding_box()
    assert time
    assert commit
    assert commit["y"] >= time["y"] + time["height"]


async def test_the_actions_of_a_list_share_the_line_of_its_title(
    open_page: OpenPage, application: Application
) -> None:
    del application
    page = await open_page("/applications", viewport=PHONE)
    title = await page.get_by_role("heading", level=1).bounding_box()
    add = await page.get_by_role("link", name="Add an application").bounding_box()
    assert title
    assert add
    assert add["y"] < title["y"] + title["height"]
    await page.get_by_test_id("bulk-sync").click()
    await assert_within(page, page.locator("#bulk-sync > div"))


@pytest.mark.parametrize("width", [390, 1440])
async def test_what_waits_for_an_approval_is_directly_below_the_status(
    *, width: int, open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    viewport: ViewportSize = {"width": width, "height": 844}
    page = await open_page(f"/deployments/{running.id}", viewport=viewport)
    card = await page.get_by_test_id("approval-card").bounding_box()
    status = await page.locator("#head > div").first.bounding_box()
    cancel = await page.get_by_test_id("cancel-button").bounding_box()
    approve = await page.get_by_test_id("approve-button").bounding_box()
    assert card
    assert status
    assert cancel
    assert approve
    assert 0 <= card["y"] - (status["y"] + status["height"]) <= 32
    assert (cancel["y"] > approve["y"]) is (width == 390)
    assert await page.evaluate(OVERFLOW) == 0


async def test_the_links_of_a_heading_share_a_line(
    open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page(f"/applications/{running.application_id}", viewport=PHONE)
    previews = await page.get_by_test_id("application-previews").bounding_box()
    every = await page.get_by_role("link", name="All deployments").bounding_box()
    assert previews
    assert every
    assert previews["y"] == every["y"]


async def test_the_ways_to_sync_open_directly_below_their_button(
    open_page: OpenPage, application: Application
) -> None:
    page = await open_page(f"/applications/{application.id}", viewport=PHONE)
    await page.get_by_test_id("sync-menu").click()
    menu = page.locator("#sync-menu > div")
    await assert_within(page, menu)
    opened, button = await menu.bounding_box(), await page.locator(".split-button").bounding_box()
    assert opened
    assert button
    assert opened["y"] - button["y"] - button["height"] == pytest.approx(4, abs=1)


async def test_results_of_the_palette_have_their_commit(
    open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page("/overview", viewport=PHONE)
    await page.get_by_test_id("find-link").click()
    await page.keyboard.type(running.application_name)
    result = page.get_by_test_id("result").filter(has_text=re.compile("c0ffee"))
    name = result.locator("b")
    await expect(name).to_contain_text("c0ffee")
    assert await name.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    # The status is an icon here, and words for who cannot see it.
    await expect(result).to_contain_text("Running")


async def test_the_sign_in_page_says_what_it_is(open_page: OpenPage) -> None:
    page = await open_page("/login", user=None, viewport=PHONE)
    await expect(page.get_by_text("PipeCD", exact=True)).to_be_visible()


async def test_an_overview_without_pipeds_has_the_first_step_and_no_empty_tiles(
    open_page: OpenPage, cases: UseCases
) -> None:
    admin = await cases.projects.add("empty", "")
    user = User("empty", admin.username, ("Admin",))
    page = await open_page("/overview", user=user, viewport=PHONE)
    await expect(page.get_by_test_id("first-step")).to_be_visible()
    await expect(page.locator(".tile")).to_have_count(0)


async def test_stages_beside_parallel_ones_have_the_whole_width(
    open_page: OpenPage, rolled_back: Deployment
) -> None:
    page = await open_page(f"/deployments/{rolled_back.id}", viewport=PHONE)
    stages = page.get_by_test_id("stage")
    await expect(stages).to_have_count(5)
    boxes = [await stage.bounding_box() for stage in await stages.all()]
    widths = {round(box["width"]) for box in boxes if box}
    assert len(widths) == 1
    assert widths.pop() > 300


async def test_the_text_of_a_log_is_aligned_whatever_the_number_of_its_line(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    slow = (f"step {n}" + (": too slow" if n % 3000 == 7 else "") for n in range(2, 10_010))
    await reports.lines(running, "s1", *slow)
    page = await open_page(
        f"/deployments/{running.id}?stage=s1&find=too+slow&only=matches", viewport=PHONE
    )
    texts = page.get_by_test_id("log-line").locator("code")
    await expect(texts).to_have_count(4)
    left = await texts.evaluate_all("all => all.map(e => e.getBoundingClientRect().left)")
    assert len(set(left)) == 1, left


async def test_a_timeline_says_in_which_zone_its_times_are(
    open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page(f"/deployments/{running.id}?tab=timeline", viewport=PHONE)
    await assert_within(page, page.get_by_test_id("timeline").get_by_text("Times in"))


# Elements that are wider than their box, so that a reader has to scroll sideways.
WIDE_TABLES = """() => [...document.querySelectorAll(".markdown table")]
    .filter((table) => table.scrollWidth > table.clientWidth + 1).length"""
# Blocks of code whose first line begins below their padding, or is covered by the button.
BLOCKS = """() => [...document.querySelectorAll(".code:has(> .btn)")].map((block) => {
    const [button, pre] = [block.querySelector(":scope > .btn"), block.querySelector("pre")];
    const [a, b] = [button.getBoundingClientRect(), pre.getBoundingClientRect()];
    const covers = a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    return { covers, above: parseFloat(getComputedStyle(pre).paddingTop), top: b.top - block.getBoundingClientRect().top - block.clientTop };
})"""


@pytest.mark.parametrize("name", ["commands", "operations", "plugins", "piped-configuration"])
async def test_long_pages_of_the_documentation_fit_a_phone(open_page: OpenPage, name: str) -> None:
    page = await open_page(f"/help/{name}", viewport=PHONE)
    await expect(page.locator("article h2").first).to_be_visible()
    assert await page.evaluate(WIDE_TABLES) == 0
    for block in await page.evaluate(BLOCKS):
        assert not block["covers"]
        assert block["above"] <= 16
        assert block["top"] == 0
    assert await page.get_by_text("<!--").count() == 0
    # What the rows are about: the names of the other columns are in the cells.
    for heading in await page.locator(".markdown thead tr").all():
        await expect(heading.locator(":scope > :first-child")).to_be_visible()


@pytest.mark.parametrize("period", ["1w", "3m", "2y"])
async def test_the_dates_below_a_chart_do_not_overlap(open_page: OpenPage, period: str) -> None:
    page = await open_page(f"/insights?range={period}", viewport=PHONE)
    boxes = await page.locator(".x-axis").first.evaluate(
        """(axis) => [...axis.querySelectorAll("text")].map((text) => text.getBoundingClientRect())
            .filter((box) => box.width).map(({ left, right }) => [left, right])"""
    )
    assert len(boxes) > 1
    for (_, right), (left, _) in pairwise(boxes):
        assert right < left
