# SPDX-License-Identifier: Apache-2.0
"""Chains, traces, events, insights and the overview of a project with some weeks of history."""

from collections.abc import Callable

import pytest
from playwright.async_api import expect
from starlette.datastructures import QueryParams

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.insights_view import parse_insights_query, time_range
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.series import Metric
from pipecd.controlplane.jobs.chains import ChainController
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.events import EventReport
from pipecd.controlplane.usecases.insights import InsightQuery
from pipecd.model.clock import Now
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import event_pb2
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.filled_project import COMMIT, FilledProject

pytestmark = pytest.mark.browser


async def test_a_chain_is_followed_block_by_block(
    *,
    open_page: OpenPage,
    filled: FilledProject,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    piped: PipedCaller,
    reports: PipedReports,
    new_deployment: Callable[[], Deployment],
    now: Now,
) -> None:
    page = await open_page("/chains")
    row = page.get_by_test_id("chain-row")
    await expect(row).to_contain_text("Block 2 of 3 starts next; 1 block after it waits.")
    # What has been deployed comes before what waits for it.
    await expect(row.locator(".flow > span")).to_have_count(3)
    await expect(row.locator(".flow > :not(.todo)")).to_have_text("cart")
    await row.get_by_role("link", name="Chain of cart").click()
    await page.wait_for_url(f"**/chains/{filled.chain}")
    text, blocks = page.get_by_test_id("chain-text"), page.get_by_test_id("chain-block")
    await expect(text).to_have_text("Block 2 of 3 starts next; 1 block after it waits.")
    await expect(blocks.nth(1)).to_contain_text("Starts when block 1 has succeeded")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    # The deployments of the second block: one succeeds, the other fails.
    chain = await stores.chains.get(filled.chain)
    chains = ChainController(stores, bus, now=now)
    for node, status in zip(
        chain.blocks[1].nodes, (DeploymentStatus.SUCCESS, DeploymentStatus.FAILURE), strict=True
    ):
        deployment = new_deployment()
        deployment.application_id = node.application_ref.application_id
        deployment.application_name = node.application_ref.application_name
        deployment.deployment_chain_id = filled.chain
        deployment.deployment_chain_block_index = 1
        await cases.deployment_reports.create(deployment, by=piped)
        await reports.deployment(deployment, status)
    await chains.resync()
    await expect(page.get_by_test_id("chain-status")).to_have_text("Failed")
    await expect(text).to_contain_text("Block 2 failed because of")
    # Where it got stuck is in the list, too, and who has started it on its page.
    await expect(page.locator("#facts")).to_contain_text("Started by")
    await page.goto(page.url.rpartition("/")[0])
    await expect(page.get_by_test_id("chain-where")).to_contain_text("Block 2 failed because of")
    await page.go_back()
    await blocks.nth(0).get_by_role("link", name="cart").click()
    await page.wait_for_url("**/deployments/*")
    await expect(page.locator(f"a[href='/chains/{filled.chain}']").first).to_be_visible()


async def test_chains_and_events_are_whole_on_a_tablet(
    open_page: OpenPage, filled: FilledProject
) -> None:
    page = await open_page("/chains", viewport={"width": 768, "height": 900})
    row = await page.get_by_test_id("chain-row").bounding_box()
    # A name is not broken into letters.
    assert row is not None
    assert row["height"] < 120
    await page.goto(page.url.replace("/chains", "/events"))
    await expect(page.get_by_test_id("event-row")).to_have_count(4)
    cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth).length"
    assert await page.locator("[data-testid=event-row] .mono").evaluate_all(cut) == 0


async def test_a_commit_is_traced_to_its_deployments(
    open_page: OpenPage, filled: FilledProject, reports: PipedReports, cases: UseCases
) -> None:
    page = await open_page("/deployment-traces")
    trace = page.get_by_test_id("trace-row")
    await expect(trace).to_contain_text("1 pending")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await trace.get_by_text("The whole message").click()
    await expect(trace.locator("pre")).to_contain_text("The bank asks for it.")
    deployment = await cases.deployments.get(
        filled.deployment, by=ApiKeyCaller("shop", "k", "ci", may_write=False)
    )
    await reports.deployment(deployment, DeploymentStatus.SUCCESS)
    await expect(page.get_by_test_id("trace-status")).to_have_text("1 succeeded")
    # What was open stays open.
    await expect(trace.locator("pre")).to_be_visible()
    await page.get_by_test_id("filter-q").fill(COMMIT[:7])
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**q={COMMIT[:7]}*")
    await trace.get_by_test_id("trace-deployment").click()
    await page.wait_for_url(f"**/deployments/{filled.deployment}")


async def test_events_are_filtered_and_explain_their_result(
    open_page: OpenPage,
    filled: FilledProject,
    cases: UseCases,
    program: ApiKeyCaller,
    piped: PipedCaller,
) -> None:
    page = await open_page("/events")
    rows = page.get_by_test_id("event-row")
    await expect(rows).to_have_count(4)
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    request = RegisterEventRequest(name="image-pushed", data="v9", labels={"app": "cart"})
    id = await cases.events.register(request, by=program)
    await expect(rows).to_have_count(5)
    new = rows.filter(has_text="v9")
    await expect(new).to_have_count(1)
    report = EventReport(id, event_pb2.EVENT_SUCCESS, "committed c0ffee1 to site")
    await cases.events.report_statuses([report], by=piped)
    await expect(new.get_by_test_id("event-status")).to_have_text("Handled")
    await page.get_by_test_id("filter-status").select_option(label="Failed")
    await expect(rows).to_have_count(1)
    await expect(rows.get_by_test_id("event-result")).to_contain_text("has no field image.tag")
    await rows.get_by_role("link", name="registry.example/shop/shop:v7.2.0").click()
    await page.wait_for_url(f"**/events/{filled.event}")
    await expect(page.locator("#contexts")).to_contain_text("https://ci.example/runs/1472")
    # What has failed can be registered again as it was.
    await expect(page.get_by_test_id("register-again")).to_contain_text(
        "--data=registry.example/shop/shop:v7.2.0"
    )


async def test_insights_lead_to_the_deployments_behind_a_point(
    open_page: OpenPage, filled: FilledProject
) -> None:
    page = await open_page("/insights")
    await expect(page.get_by_test_id("card-applications")).to_contain_text("4")
    await expect(page.get_by_test_id("chart-frequency").locator("a")).to_have_count(24)
    # A part of the name is enough, and what is ambiguous is offered.
    field = page.get_by_test_id("filter-app")
    await field.fill("ch")
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("candidates")).to_contain_text("2 applications contain “ch”")
    # Until one is chosen there is nothing to draw.
    await expect(page.get_by_test_id("chart-frequency")).to_have_count(0)
    await page.get_by_test_id("candidates").get_by_role("link", name="checkout").click()
    await expect(page.get_by_test_id("chip-filter")).to_contain_text("checkout")
    await field.fill("CAR")
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("chip-filter")).to_contain_text("cart")
    await expect(page.get_by_test_id("chart-value").first).to_have_text("16")
    # Labels narrow it down, too.
    await page.get_by_test_id("filter-label").fill("tier:none")
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("chart-value").first).to_have_text("none")
    await page.get_by_role("link", name="Remove filter tier: none").click()
    await expect(page.get_by_test_id("chart-value").first).to_have_text("16")
    bar = page.get_by_test_id("chart-frequency").locator("a").last
    label = await bar.get_attribute("aria-label") or ""
    await bar.focus()
    await page.keyboard.press("Enter")
    behind = page.get_by_test_id("behind")
    await expect(behind).to_contain_text(label.partition(":")[0])
    await expect(behind).to_contain_text("1 completed deployment")
    await behind.get_by_test_id("behind-row").get_by_role("link").click()
    await page.wait_for_url("**/deployments/*")
    await expect(page.locator("h1")).to_contain_text("cart")


async def test_a_question_leads_to_a_sample_of_the_documentation_that_is_copied(
    open_page: OpenPage,
) -> None:
    page = await open_page("/help", permissions=["clipboard-read", "clipboard-write"])
    await page.get_by_test_id("search-documentation").fill("configure a canary")
    await page.keyboard.press("Enter")
    await page.get_by_test_id("result").filter(has_text="Kubernetes: Canary").click()
    await page.wait_for_url("**/help/kubernetes#canary")
    sample = page.locator(".code").filter(has_text="replicas: 10%")
    await sample.get_by_role("button", name="Copy code").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("Code copied")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("apiVersion: pipecd.dev/v1beta1\nkind: Application\n")
    # The next page of the guide is one click away.
    await page.get_by_role("link", name="Next").click()
    await expect(page.locator("h1")).to_have_text("Terraform and OpenTofu")


async def test_insights_say_whether_the_team_got_faster(
    open_page: OpenPage, filled: FilledProject
) -> None:
    del filled
    page = await open_page("/insights?range=1w")
    trend = page.get_by_test_id("chart-lead-time").get_by_test_id("trend")
    await expect(trend).to_contain_text("Faster than in the 7 days before")


@pytest.mark.parametrize("scripts", [True, False])
async def test_all_four_keys_have_the_deployments_behind_their_points(
    *, scripts: bool, open_page: OpenPage, filled: FilledProject
) -> None:
    del filled
    page = await open_page("/insights?range=1m", java_script_enabled=scripts)
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Download CSV").click()
    lines = (await (await downloading.value).path()).read_text().splitlines()[1:]
    days = [[int(cell or 0) for cell in line.split(",")[1:]] for line in lines]
    total, failed = (sum(column) for column in list(zip(*days, strict=True))[:2])
    values = {
        key: page.get_by_test_id(f"chart-{key}").get_by_test_id("chart-value")
        for key in ("frequency", "failure-rate", "lead-time", "restore")
    }
    assert failed
    await expect(values["frequency"]).to_have_text(str(total))
    rate = await values["failure-rate"].inner_text()
    assert float(rate.removesuffix("%")) == pytest.approx(100 * failed / total, abs=0.5)
    for key, column in (("lead-time", 2), ("restore", 3)):
        await expect(values[key]).not_to_have_text("none")
        # A day without a value has no bar.
        bars = page.get_by_test_id(f"chart-{key}").locator("a .bar")
        await expect(bars).to_have_count(sum(bool(day[column]) for day in days))
    for key in values:
        await page.get_by_test_id(f"chart-{key}").locator("a").last.click()
        await expect(page.get_by_test_id("behind-row")).not_to_have_count(0)


async def test_the_search_is_reached_on_a_phone(open_page: OpenPage, filled: FilledProject) -> None:
    page = await open_page("/overview", viewport={"width": 390, "height": 800})
    await page.get_by_test_id("find-link").click()
    await page.keyboard.type("checkou")
    result = page.get_by_test_id("palette").get_by_test_id("result").first
    await expect(result).to_contain_text("checkout")
    await result.click()
    await page.wait_for_url("**/applications/*")
    plain = await open_page(
        "/overview", viewport={"width": 390, "height": 800}, java_script_enabled=False
    )
    await plain.get_by_test_id("find-link").click()
    await plain.get_by_test_id("search-q").fill("checkou")
    await plain.keyboard.press("Enter")
    await expect(plain.get_by_test_id("result").first).to_contain_text("checkout")


async def test_the_log_of_a_phone_has_times_on_demand_and_their_zone(
    open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page(
        f"/deployments/{running.id}",
        viewport={"width": 390, "height": 800},
        timezone_id="Asia/Tokyo",
    )
    time = page.locator("#L1 time")
    await expect(time).not_to_be_visible()
    await page.reload()
    await expect(page.get_by_test_id("log-zone")).to_contain_text("JST")
    await page.get_by_test_id("log-times").click()
    await expect(time).to_be_visible()
    assert "times=1" in page.url
    await page.reload()
    await expect(time).to_have_text("12:04:05")
    assert (
        await page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        == 0
    )


@pytest.mark.parametrize("scripts", [True, False])
async def test_the_numbers_behind_the_charts_are_read_downloaded_and_those_of_the_api(
    *,
    scripts: bool,
    open_page: OpenPage,
    filled: FilledProject,
    cases: UseCases,
    admin: User,
    now: Now,
) -> None:
    del filled
    page = await open_page("/insights?range=1m", java_script_enabled=scripts)
    await page.get_by_text("Show the charts as a table").click()
    rows = page.get_by_test_id("numbers-row")
    deployed = [
        int(text) for text in await rows.locator("td[data-label=Deployments]").all_text_contents()
    ]
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Download CSV").click()
    lines = (await (await downloading.value).path()).read_text().splitlines()[1:]
    # The table begins with the last day.
    deployed.reverse()
    assert [int(line.split(",")[1]) for line in lines] == deployed
    whole = time_range(parse_insights_query(QueryParams("range=1m")), now())
    query = InsightQuery(whole)
    points = await cases.insights.series(Metric.DEPLOYMENT_FREQUENCY, query, by=admin)
    assert [value for _, value in points] == deployed
    assert sum(deployed) > 20
