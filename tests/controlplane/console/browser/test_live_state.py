# SPDX-License-Identifier: Apache-2.0
"""The live state and its differences with Git, in a real browser."""

from collections.abc import Callable, Iterable

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.model.application import SyncStatus
from pipecd.proto.model import application_pb2 as model
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.livestate_pb2 import ResourceState
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.live_states import DRIFT, resources, snapshot
from servers.platform_states import process_resources, terraform_resources

pytestmark = pytest.mark.browser


async def test_a_thousand_resources_are_explored(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    healthy = snapshot(application, *resources(50, 19, broken=False))
    await cases.livestate.report(healthy, by=piped)
    page = await open_page(f"/applications/{application.id}")
    await expect(page.get_by_test_id("app-health")).to_have_text("Healthy")
    await page.get_by_test_id("open-live").click()
    nodes = page.get_by_test_id("live-node")
    await expect(nodes).to_have_count(1000)
    # Branches in which everything is healthy are closed.
    await expect(nodes.filter(visible=True)).to_have_count(50)
    broken = snapshot(application, *resources(50, 19, broken=True))
    await cases.livestate.report(broken, by=piped)
    # The worst branch moves to the top and opens, though it was closed.
    await expect(nodes.first).to_contain_text("web-1")
    await expect(page.get_by_role("link", name="web-1-0")).to_be_visible()
    await expect(nodes.filter(visible=True)).to_have_count(50 + 19)
    await expect(page.get_by_test_id("app-health")).to_have_text("Unhealthy")
    await page.get_by_test_id("filter-health").select_option("unhealthy")
    await expect(nodes).to_have_count(2)
    await page.get_by_role("link", name="web-1-0").click()
    panel = page.get_by_test_id("live-panel")
    await expect(panel).to_contain_text("CrashLoopBackOff")
    await expect(panel.get_by_test_id("resource-event")).to_contain_text(
        "Unhealthy: CrashLoopBackOff"
    )
    await panel.get_by_role("link", name="web-1").click()
    await expect(panel.get_by_role("heading", name="web-1")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(panel).to_have_count(0)
    await page.get_by_role("link", name="Clear the filter").click()
    await expect(nodes).to_have_count(1000)
    await page.get_by_test_id("target-tab").filter(has_text="osaka").click()
    await expect(nodes).to_have_count(500)
    await page.get_by_role("button", name="Expand all").click()
    await expect(nodes.filter(visible=True)).to_have_count(500)
    await page.get_by_role("button", name="Collapse all").click()
    await expect(nodes.filter(visible=True)).to_have_count(25)


@pytest.mark.parametrize("scripts", [True, False])
async def test_resources_are_filtered_by_kind_and_name(
    *,
    scripts: bool,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
) -> None:
    await cases.livestate.report(snapshot(application, *resources(4, 3, broken=False)), by=piped)
    page = await open_page(f"/applications/{application.id}/live", java_script_enabled=scripts)
    nodes = page.get_by_test_id("live-node")
    await expect(nodes).to_have_count(16)
    await page.get_by_test_id("filter-kind").select_option("Deployment")
    if not scripts:
        await page.get_by_role("button", name="Filter").click()
    await expect(nodes).to_have_count(4)
    await page.get_by_test_id("filter-kind").select_option("")
    await page.get_by_test_id("filter-q").fill("web-2-1")
    await page.keyboard.press("Enter")
    # What matches stands below its owner.
    await expect(nodes).to_have_count(2)
    await expect(nodes.first).to_contain_text("web-2")


async def test_the_graph_can_be_zoomed_and_its_boxes_opened(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *resources(3, 6, broken=True)), by=piped)
    page = await open_page(f"/applications/{application.id}/live?view=graph")
    boxes = page.get_by_test_id("live-box")
    await expect(boxes.filter(has_text="6 \N{MULTIPLICATION SIGN} Pod")).to_have_count(2)
    first = boxes.first
    before = await first.bounding_box()
    await page.get_by_role("button", name="Zoom in").click()
    after = await first.bounding_box()
    assert before
    assert after
    assert after["width"] > before["width"] * 1.2
    await page.get_by_role("button", name="Fit").click()
    await (
        page.get_by_role("button", name="Pod web-1-0, unhealthy: CrashLoopBackOff")
        .or_(page.get_by_role("link", name="Pod web-1-0, unhealthy: CrashLoopBackOff"))
        .click()
    )
    await expect(page.get_by_test_id("live-panel")).to_contain_text("CrashLoopBackOff")
    await boxes.filter(has_text="6 \N{MULTIPLICATION SIGN} Pod").first.click()
    await expect(page.get_by_test_id("live-node")).not_to_have_count(0)
    await expect(page.get_by_test_id("filter-kind")).to_have_value("Pod")


@pytest.mark.parametrize("width", [390, 360])
async def test_the_graph_fits_a_phone_and_can_be_read_there(
    *,
    width: int,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
) -> None:
    await cases.livestate.report(snapshot(application, *resources(3, 6, broken=True)), by=piped)
    size = {"width": width, "height": 844}
    page = await open_page(f"/applications/{application.id}/live", viewport=size)
    await expect(page.get_by_test_id("live-node").first).to_be_visible()
    await page.get_by_test_id("view-graph").click()
    boxes = page.get_by_test_id("narrow-box")
    broken = boxes.filter(has_text="web-1-0").first
    await expect(broken).to_be_visible()
    await expect(page.get_by_test_id("live-box").first).not_to_be_visible()
    graph = page.get_by_test_id("live-graph")
    assert await graph.evaluate("e => e.scrollWidth - e.clientWidth") == 0
    # All of it is part of the page, which is scrolled downwards only.
    assert await graph.evaluate("e => e.scrollHeight - e.clientHeight") <= 1
    smallest = "all => Math.min(...all.map((e) => e.getBoundingClientRect().height))"
    assert await page.locator(".graph .narrow .name").evaluate_all(smallest) >= 14
    await graph.focus()
    await page.keyboard.press("ArrowDown")
    await expect(boxes.first).to_be_focused()
    await broken.click()
    await expect(page.get_by_test_id("live-panel")).to_contain_text("CrashLoopBackOff")
    await page.get_by_label("Close the details").click()
    await expect(page.get_by_test_id("live-panel")).to_have_count(0)
    await expect(broken).to_be_focused()


async def test_the_graph_opens_with_its_whole_width_and_is_zoomed_by_the_reader_only(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *resources(2, 3, broken=False)), by=piped)
    size = {"width": 768, "height": 900}
    page = await open_page(f"/applications/{application.id}/live", viewport=size)
    graph = page.get_by_test_id("live-graph")
    hidden = "e => e.scrollWidth - e.clientWidth"
    await page.get_by_test_id("view-graph").click()
    await expect(page.get_by_test_id("live-box").last).to_be_visible()
    assert await graph.evaluate(hidden) <= 1
    await page.reload()
    assert await graph.evaluate(hidden) <= 1
    await page.get_by_label("Zoom in").click()
    zoomed = await graph.evaluate(hidden)
    assert zoomed > 1
    await page.get_by_test_id("live-box").last.click()
    await expect(page.get_by_test_id("live-panel")).to_be_visible()
    assert await graph.evaluate(hidden) == zoomed


async def test_the_details_of_a_resource_are_reached_and_left_by_the_keyboard(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *resources(2, 2, broken=True)), by=piped)
    page = await open_page(f"/applications/{application.id}/live")
    link = page.locator(".tree").get_by_role("link", name="web-1-0")
    await link.focus()
    await page.keyboard.press("Enter")
    panel = page.get_by_test_id("live-panel")
    await expect(panel.get_by_role("heading", name="web-1-0")).to_be_focused()
    # Tab goes on inside the panel.
    await page.keyboard.press("Tab")
    assert await panel.evaluate("panel => panel.contains(document.activeElement)")
    await page.keyboard.press("Escape")
    await expect(panel).to_have_count(0)
    await expect(link).to_be_focused()


async def test_a_branch_that_the_reader_closed_stays_closed(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *resources(2, 2, broken=True)), by=piped)
    page = await open_page(f"/applications/{application.id}/live")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await page.get_by_role("button", name="Collapse all").click()
    pod = page.get_by_test_id("live-node").filter(has_text="web-1-0")
    await expect(pod.last).not_to_be_visible()
    reported = [*resources(2, 2, broken=True), *resources(3, 0, broken=False)][:7]
    reported[-1].id = reported[-1].name = "web-new"
    await cases.livestate.report(snapshot(application, *reported), by=piped)
    await expect(page.get_by_role("link", name="web-new")).to_be_visible()
    await expect(pod.last).not_to_be_visible()


async def test_arrow_keys_move_in_the_graph(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *resources(2, 2, broken=False)), by=piped)
    page = await open_page(f"/applications/{application.id}/live?view=graph")
    box = page.get_by_test_id("live-box")
    await page.get_by_test_id("live-graph").focus()
    await page.keyboard.press("ArrowDown")
    first = await page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert first.startswith("Deployment ")
    for key, kind in (
        ("ArrowRight", "Pod"),
        ("ArrowDown", "Pod"),
        ("ArrowLeft", "Deployment"),
        ("ArrowDown", "Deployment"),
        ("ArrowUp", "Deployment"),
    ):
        before = await page.evaluate("document.activeElement.id")
        await page.keyboard.press(key)
        assert await page.evaluate("document.activeElement.id") != before, key
        label = await page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert label.startswith(f"{kind} "), key
    assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == first
    await page.keyboard.press("Enter")
    await expect(page.locator("#panel-title")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(box.and_(page.locator(":focus"))).to_have_attribute("aria-label", first)


async def test_processes_are_shown_below_their_variant_and_router(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *process_resources()), by=piped)
    page = await open_page(f"/applications/{application.id}/live")
    router = page.get_by_test_id("live-node").filter(has_text="0.0.0.0:8080").first
    canary = router.get_by_test_id("live-node").filter(has_text="canary").first
    await expect(canary).to_contain_text("traffic 10%")
    await expect(canary.get_by_test_id("live-node")).to_contain_text("GET /healthz answered 503")
    await expect(router.get_by_test_id("live-node").filter(has_text="primary-1")).not_to_have_count(
        0
    )
    await canary.get_by_role("link", name="canary-0").click()
    await expect(page.get_by_test_id("live-panel")).to_contain_text("48 MiB")
    await page.get_by_test_id("view-graph").click()
    await expect(page.get_by_test_id("live-box")).to_have_count(6)


async def test_a_terraform_state_is_shown_by_module(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *terraform_resources()), by=piped)
    page = await open_page(f"/applications/{application.id}/live")
    # What is broken comes first, and the module of a module is below it.
    await expect(page.get_by_test_id("live-node").first).to_contain_text("it is tainted")
    network = page.get_by_test_id("live-node").filter(has_text="network").first
    await expect(network).to_contain_text("aws_subnet.private[2]")
    await expect(network.get_by_test_id("live-node").filter(has_text="dns").first).to_contain_text(
        "aws_route53_zone.shop"
    )
    await page.get_by_role("link", name="aws_s3_bucket.assets").click()
    await expect(page.get_by_test_id("live-panel")).to_contain_text("arn:aws:s3:::shop-assets")


@pytest.mark.parametrize("width", [1440, 1024, 768, 390])
@pytest.mark.parametrize("found", [terraform_resources, process_resources])
async def test_resources_without_places_fit_every_width(
    *,
    width: int,
    found: Callable[[], Iterable[ResourceState]],
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
) -> None:
    await cases.livestate.report(snapshot(application, *found()), by=piped)
    size = {"width": width, "height": 800}
    page = await open_page(f"/applications/{application.id}/live", viewport=size)
    nodes = page.get_by_test_id("live-node").locator("> .node").filter(visible=True)
    await expect(nodes).not_to_have_count(0)
    for path in (page.url, page.url.removesuffix("/live")):
        await page.goto(path)
        await expect(nodes).not_to_have_count(0)
        # Neither the page nor a cell of the tree is wider than the window.
        right = "nodes => Math.max(...nodes.flatMap(n => [n, ...n.querySelectorAll('*')]).map(e => e.getBoundingClientRect().right))"
        assert await nodes.evaluate_all(right) <= width, path
        root = "document.documentElement"
        assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, path


async def test_differences_are_shown_by_resource_and_side_by_side(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    state = ApplicationSyncState(
        status=model.ApplicationSyncStatus.ValueType(SyncStatus.OUT_OF_SYNC),
        short_reason="1 differs",
        reason=DRIFT,
        timestamp=1,
    )
    await cases.application_reports.report_sync_state(application.id, state, by=piped)
    await cases.livestate.report(snapshot(application, *resources(2, 1, broken=False)), by=piped)
    page = await open_page(f"/applications/{application.id}")
    section = page.get_by_test_id("diff-section")
    await expect(section.locator("summary")).to_contain_text("web-1")
    await expect(section.locator(".counts")).to_have_text("+1 \N{MINUS SIGN}1")
    await expect(page.locator(".diff-signs")).to_have_text("\N{MINUS SIGN} live + in Git")
    await page.get_by_text("Side by side").click()
    await expect(section.locator(".sides span")).to_have_text(["Live", "In Git"])
    pair = section.locator(".pair", has=page.locator(".remove"))
    await expect(pair.locator(".remove")).to_contain_text("replicas: 5")
    await expect(pair.locator(".add")).to_contain_text("replicas: 2")
    # One resource is folded by itself; buttons for all of them would be too many.
    await expect(page.get_by_role("button", name="Collapse all", exact=True)).to_have_count(0)
    await section.locator("summary").click()
    await expect(pair).not_to_be_visible()
    await page.goto(f"{page.url.partition('?')[0]}/live?res=osaka%2Fweb-1")
    await expect(page.get_by_test_id("live-panel")).to_contain_text("replicas: 5")


@pytest.mark.parametrize("width", [1440, 1200, 390])
async def test_equal_names_of_several_targets_are_told_apart(
    *,
    width: int,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
) -> None:
    await cases.livestate.report(snapshot(application, *resources(2, 1, broken=True)), by=piped)
    size = {"width": width, "height": 800}
    path = f"/applications/{application.id}/live?res=osaka%2Fweb-1-0"
    page = await open_page(path, viewport=size)
    await expect(page.get_by_test_id("live-panel")).to_be_visible()
    places = page.locator("[data-testid=live-node] > .node > .node-location")
    await expect(places.filter(has_text="shop · osaka").first).to_be_visible()
    await expect(places.filter(has_text="shop · tokyo").first).to_be_visible()


async def test_the_page_of_an_application_shows_only_what_is_wrong(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    await cases.livestate.report(snapshot(application, *resources(4, 2, broken=True)), by=piped)
    page = await open_page(f"/applications/{application.id}")
    nodes = page.get_by_test_id("live-node")
    await expect(nodes).to_have_count(2)
    await expect(page.get_by_test_id("live-section")).to_contain_text("10 more")
    await cases.livestate.report(snapshot(application, *resources(4, 2, broken=False)), by=piped)
    # What is healthy is folded, but not while somebody reads it.
    await expect(nodes.filter(visible=True)).to_have_count(6)
    await page.reload()
    await expect(nodes.filter(visible=True)).to_have_count(4)


async def test_the_list_shows_and_filters_the_health(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    page = await open_page("/applications")
    row = page.get_by_test_id("app-row")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await expect(row.get_by_test_id("app-health")).to_have_count(0)
    await cases.livestate.report(snapshot(application, *resources(2, 1, broken=True)), by=piped)
    await expect(row.get_by_test_id("app-health")).to_have_text("Unhealthy")
    await page.goto(f"{page.url}?health=healthy")
    await expect(page.get_by_test_id("empty")).to_contain_text("No application matches")
    await page.goto(f"{page.url.partition('?')[0]}?health=unhealthy&status=UNKNOWN")
    await expect(row).to_have_count(1)


async def test_a_new_kind_appears_while_somebody_watches(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, application: Application
) -> None:
    known = list(resources(2, 1, broken=False))
    await cases.livestate.report(snapshot(application, *known), by=piped)
    page = await open_page(f"/applications/{application.id}/live")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await page.evaluate("window.same = true")
    added = ResourceState()
    added.CopyFrom(known[0])
    added.id = added.name = "nightly"
    added.resource_type = added.resource_metadata["Kind"] = "CronJob"
    await cases.livestate.report(snapshot(application, *known, added), by=piped)
    await expect(page.get_by_role("link", name="nightly")).to_be_visible()
    kinds = page.get_by_test_id("filter-kind").locator("option")
    await expect(kinds.filter(has_text="CronJob")).to_have_count(1)
    await page.get_by_test_id("view-graph").click()
    await expect(page.get_by_test_id("live-box").filter(has_text="nightly")).to_have_count(1)
    assert await page.evaluate("window.same") is True


async def test_an_invalid_configuration_says_what_to_fix_and_a_drift_is_copied(
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    application: Application,
) -> None:
    await reports.online()
    page = await open_page(
        f"/applications/{application.id}", permissions=["clipboard-read", "clipboard-write"]
    )
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    for status, reason in (
        (SyncStatus.INVALID_CONFIG, "apps/cart/app.pipecd.yaml:3: unknown field witth"),
        (SyncStatus.OUT_OF_SYNC, DRIFT),
    ):
        state = ApplicationSyncState(
            status=model.ApplicationSyncStatus.ValueType(status), reason=reason, timestamp=1
        )
        await cases.application_reports.report_sync_state(application.id, state, by=piped)
        if status is SyncStatus.INVALID_CONFIG:
            await expect(page.locator(".head .reason")).to_contain_text("unknown field witth")
            await expect(page.get_by_test_id("drift-section")).to_have_count(0)
    drift = page.get_by_test_id("drift-section")
    await drift.get_by_role("button", name="Copy differences").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("copied")
    assert "replicas: 5" in await page.evaluate("navigator.clipboard.readText()")
