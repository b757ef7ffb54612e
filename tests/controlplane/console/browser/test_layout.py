# SPDX-License-Identifier: Apache-2.0
"""Wide tables and long pipelines in a real browser."""

from collections.abc import Callable, Sequence

import pytest
from playwright.async_api import Page, ViewportSize, expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.console_pages import ShownObjects

pytestmark = pytest.mark.browser

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Parts of the page that scroll by a few pixels: many systems draw a scroll bar for them.
BARELY_SCROLLING = """() => [...document.querySelectorAll("body *")]
  .filter((each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowY))
  .filter((each) => each.scrollHeight > each.clientHeight && each.scrollHeight < each.clientHeight + 8)
  .map((each) => `${each.tagName} ${each.className}`)"""

# Where something is in the document, however far it is scrolled.
PLACE = "e => [e.getBoundingClientRect().left, e.getBoundingClientRect().top + scrollY]"


@pytest.fixture
async def long_pipeline(
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    reports: PipedReports,
) -> Deployment:
    """A deployment whose tenth of twelve stages runs, with a rollback stage that has run."""
    deployment = new_deployment()
    stages = [
        PipelineStage(
            id=f"s{n}",
            name=f"K8S_TRAFFIC_ROUTING_{n}",
            index=n,
            requires=[f"s{n - 1}"] if n else [],
            visible=True,
            created_at=1,
            updated_at=1,
        )
        for n in range(12)
    ]
    stages.append(PipelineStage(id="r", name="ROLLBACK", rollback=True, created_at=1, updated_at=1))
    await cases.deployment_reports.create(deployment, by=piped)
    planned = ReportDeploymentPlannedRequest(
        deployment_id=deployment.id, summary="canary", stages=stages
    )
    await cases.deployment_reports.report_planned(planned, by=piped)
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s9", StageStatus.RUNNING)
    await reports.stage(deployment, "r", StageStatus.SUCCESS)
    return deployment


@pytest.mark.parametrize("width", [1440, 1024, 390])
async def test_a_long_pipeline_scrolls_to_the_selected_stage(
    width: int, open_page: OpenPage, long_pipeline: Deployment
) -> None:
    viewport = {"width": width, "height": 1400}
    page = await open_page(f"/deployments/{long_pipeline.id}", viewport=viewport)
    assert await page.evaluate(OVERFLOW) == 0
    # No line leads from the title of the rollback to its stage, or from there to nowhere.
    lines = "all => all.map((each) => getComputedStyle(each, '::before').display)"
    drawn = await page.locator("#rollback > li").evaluate_all(lines)
    assert drawn[1:] == ["none"] * (len(drawn) - 1)
    current = page.locator(".stage[aria-current]")
    await expect(current).to_have_attribute("data-stage-id", "s9")
    await expect(current).to_be_in_viewport()
    await page.locator("[data-stage-id=s0]").click()
    await expect(current).to_have_attribute("data-stage-id", "s0")
    await expect(current).to_be_in_viewport()


@pytest.mark.parametrize("width", [1440, 1024, 768])
async def test_columns_fill_the_table_and_do_not_overlap(
    width: int, open_page: OpenPage, long_pipeline: Deployment
) -> None:
    page = await open_page("/deployments", viewport={"width": width, "height": 800})
    row = page.get_by_test_id("dep-row")
    boxes = await row.locator("td:visible").evaluate_all(
        "cells => cells.map(c => { const b = c.getBoundingClientRect(); return [b.left, b.right]; })"
    )
    table = await page.locator("table.list").bounding_box()
    assert table
    assert boxes[-1][1] == pytest.approx(table["x"] + table["width"], abs=2)
    strip = row.locator(".segments")
    if await strip.is_visible():
        # The rollback stage is not among them.
        await expect(strip.locator("i")).to_have_count(12)
        shown = await strip.bounding_box()
        duration = await row.locator("td[data-label=Duration]").bounding_box()
        assert shown
        assert duration
        assert shown["x"] + shown["width"] <= duration["x"]


async def test_the_subject_of_a_commit_is_read_whole_in_lists(
    *,
    open_page: OpenPage,
    new_deployment: Callable[[], Deployment],
    cases: UseCases,
    stores: Stores,
    piped: PipedCaller,
) -> None:
    deployment = new_deployment()
    subject = "Keep the cart of a signed-out visitor for 30 days, also on phones"
    deployment.trigger.commit.message = subject
    await cases.deployment_reports.create(deployment, by=piped)

    def refer(stored: Application) -> None:
        reference = stored.most_recently_triggered_deployment
        reference.deployment_id, reference.started_at = deployment.id, 1
        reference.trigger.CopyFrom(deployment.trigger)

    await stores.applications.update(deployment.application_id, refer)
    for path in ("/applications", "/deployments", f"/applications/{deployment.application_id}"):
        page = await open_page(path, viewport={"width": 1440, "height": 800})
        text = page.locator(".list").get_by_text(subject)
        await expect(text).to_be_visible()
        assert await text.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), path
        assert await text.evaluate("e => e.scrollHeight <= e.clientHeight + 1"), path


@pytest.mark.parametrize("width", [1440, 1280, 1110])
@pytest.mark.parametrize("path", ["/applications", "/deployments"])
async def test_the_filters_of_a_list_share_a_line(
    *, width: int, path: str, open_page: OpenPage, cases: UseCases, admin: User, shown: ShownObjects
) -> None:
    await cases.pipeds.update(shown.piped, "the piped of the cluster in Johannesburg", "", by=admin)
    page = await open_page(path, viewport={"width": width, "height": 800})
    await expect(page.get_by_test_id("filter-q")).to_be_visible()
    tops = await page.locator("#filters > :is(input, select):visible").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect().top)"
    )
    assert len(tops) >= 4
    assert len(set(tops)) == 1
    assert await page.evaluate(OVERFLOW) == 0


@pytest.mark.parametrize("width", [1440, 1024, 768, 390])
async def test_every_width_shows_the_day_of_the_deployments(
    width: int, open_page: OpenPage, long_pipeline: Deployment
) -> None:
    page = await open_page("/deployments", viewport={"width": width, "height": 800})
    day, row = page.locator("th.dayhead"), page.get_by_test_id("dep-row")
    await expect(day).to_be_visible()
    heading, table = await day.locator("xpath=..").bounding_box(), await row.bounding_box()
    assert heading
    assert table
    assert heading["width"] == pytest.approx(table["width"], abs=2)


async def test_the_selected_stage_stays_in_view_when_a_phone_is_turned(
    open_page: OpenPage, long_pipeline: Deployment
) -> None:
    upright, turned = ViewportSize(width=390, height=844), ViewportSize(width=844, height=390)
    page = await open_page(f"/deployments/{long_pipeline.id}", viewport=turned)
    strip = page.locator("#stages")
    await expect(strip).not_to_have_js_property("scrollLeft", 0)
    await page.set_viewport_size(upright)
    await expect(strip).to_have_js_property("scrollLeft", 0)
    await page.set_viewport_size(turned)
    await expect(strip).not_to_have_js_property("scrollLeft", 0)


@pytest.mark.parametrize("width", [1440, 1280, 1200, 1100, 1024, 900, 800])
@pytest.mark.parametrize("with_trace", [True, False])
async def test_no_fact_stands_alone_in_its_line(
    *,
    width: int,
    with_trace: bool,
    open_page: OpenPage,
    running: Deployment,
    stores: Stores,
) -> None:
    def add_facts(stored: Deployment) -> None:
        stored.versions.add(kind=ArtifactVersion.CONTAINER_IMAGE, name="web", version="v2")
        stored.deployment_trace_commit_hash = "beef" * 10 if with_trace else ""

    await stores.deployments.update(running.id, add_facts)
    size = {"width": width, "height": 800}
    page = await open_page(f"/deployments/{running.id}", viewport=size)
    facts = page.locator("#facts > div")
    await expect(facts).to_have_count(7 if with_trace else 6)
    for path in (page.url, f"/applications/{running.application_id}"):
        await page.goto(path if path.startswith("http") else page.url.split("/dep")[0] + path)
        tops = await facts.evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
        lines = [tops.count(top) for top in dict.fromkeys(tops)]
        assert len(lines) <= 2, (path, lines)
        assert min(lines) > 1, (path, lines)


async def expect_none_on(page: Page, addresses: Sequence[str], script: str) -> None:
    """The script finds no part of any page."""
    found: dict[str, list[str]] = {}
    for address in addresses:
        await page.goto(address)
        found[address] = await page.evaluate(script)
    assert {address: parts for address, parts in found.items() if parts} == {}


@pytest.mark.parametrize("width", [1440, 390])
async def test_nothing_has_a_scroll_bar_for_a_few_pixels(
    width: int, open_page: OpenPage, console_url: str, all_pages: tuple[str, ...]
) -> None:
    page = await open_page("/overview", viewport={"width": width, "height": 900})
    await expect_none_on(page, [console_url + path for path in all_pages], BARELY_SCROLLING)


@pytest.mark.parametrize("width", [1440, 1024, 390])
async def test_the_state_of_the_connection_moves_nothing_when_it_appears(
    width: int, open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page(f"/deployments/{running.id}", viewport={"width": width, "height": 900})
    dot = page.get_by_test_id("conn-dot")
    await expect(dot).to_have_text("Live")
    places = """() => [...document.querySelectorAll('.topbar > :not(.live, .grow)')]
        .filter((each) => each.offsetWidth && !each.matches('[data-notify-me]'))
        .map((each) => Math.round(each.getBoundingClientRect().left))"""
    with_dot = await page.evaluate(places)
    await dot.evaluate("each => each.hidden = true")
    assert await page.evaluate(places) == with_dot


@pytest.mark.parametrize("opener", ["Delete this application", "Disable this application"])
async def test_what_opens_below_does_not_move_its_opener(
    opener: str, open_page: OpenPage, application: Application
) -> None:
    page = await open_page(f"/applications/{application.id}/settings")
    await expect_unmoved(page, opener)


async def test_what_opens_in_a_row_stays_in_its_row(open_page: OpenPage) -> None:
    page = await open_page("/settings/project")
    for opener in ("End all sessions", "End the sessions of a user"):
        await expect_unmoved(page, opener)


async def expect_unmoved(page: Page, opener: str) -> None:
    """Presses an opener twice: it opens and closes what is below, and stays where it is."""
    summary = page.locator("summary", has_text=opener)
    before = await summary.evaluate(PLACE)
    for _ in range(2):
        await summary.click()
        assert await summary.evaluate(PLACE) == before


# Headings that reach into the next column, and names that are cut.
CROWDED = """() => {
  const words = (cell) => { const all = document.createRange(); all.selectNodeContents(cell); return all.getBoundingClientRect(); };
  const seen = (each) => each.getClientRects().length && each.textContent.trim() && !each.querySelector(".visually-hidden");
  const overlaps = [...document.querySelectorAll(".list thead tr")].flatMap((row) => {
    const cells = [...row.cells].filter(seen);
    return cells.slice(1).filter((cell, n) => words(cells[n]).right > words(cell).left).map((cell) => `heading ${cell.innerText}`);
  });
  const cut = [...document.querySelectorAll(".list .row-link, .node-name a")].filter(seen)
    .filter((name) => getComputedStyle(name).overflow === "hidden")
    .filter((name) => name.scrollWidth > name.clientWidth + 1 || name.scrollHeight > name.clientHeight + 3)
    .map((name) => `name ${name.innerText}`);
  return [...overlaps, ...cut];
}"""


@pytest.mark.parametrize("width", [1024, 768])
async def test_no_heading_reaches_into_the_next_column_and_no_name_is_cut_on_a_tablet(
    width: int, open_page: OpenPage, console_url: str, all_pages: tuple[str, ...]
) -> None:
    page = await open_page("/overview", viewport={"width": width, "height": 900})
    await expect_none_on(page, [console_url + path for path in all_pages], CROWDED)
