# SPDX-License-Identifier: Apache-2.0
"""Lists tell about the whole project, in a real browser."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import application_pb2 as model
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser


async def test_counts_and_search_are_of_the_whole_project(
    *,
    open_page: OpenPage,
    running: Deployment,
    reports: PipedReports,
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    advance: Callable[[float], None],
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    old = new_deployment()
    old.trigger.commit.message = "A needle in 100% of the hay"
    await cases.deployment_reports.create(old, by=piped)
    for _ in range(60):
        advance(1)
        newer = new_deployment()
        await cases.deployment_reports.create(newer, by=piped)
        await reports.deployment(newer, DeploymentStatus.SUCCESS)
    page = await open_page("/deployments")
    rows = page.get_by_test_id("dep-row")
    await expect(rows).to_have_count(50)
    # Neither of the two is among the newest.
    await expect(page.get_by_test_id("counts")).to_have_text(
        "1 waiting for approval and 1 pending."
    )
    await page.get_by_role("link", name="1 waiting for approval").click()
    await expect(rows).to_have_count(1)
    await expect(page.get_by_test_id("filter-status")).to_have_value("waiting")
    await expect(rows.get_by_test_id("dep-status")).to_have_text("Waiting for approval")
    await page.get_by_test_id("filter-status").select_option("Pending")
    await expect(rows.get_by_test_id("dep-status")).to_have_text("Pending")
    # Two statuses of a link, and what no control shows, survive the form.
    await page.goto(f"{page.url.split('?')[0]}?status=1,0&since=7d&kind=0")
    await page.get_by_test_id("filter-q").fill("needle")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**q=needle**")
    await expect(page.get_by_test_id("chip-filter")).to_have_text(
        ["“needle”", "Planned or pending", "Kubernetes", "Last 7 days"]
    )
    await expect(rows).to_have_count(1)
    await page.goto(page.url.split("?")[0])
    await page.get_by_test_id("filter-q").fill("Needle in 100%")
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("A needle")


@pytest.fixture
async def many_applications(
    cases: UseCases, draft: Application, admin: User, piped: PipedCaller
) -> list[str]:
    """The names of 120 applications; the first 70 differ from Git."""
    names = [f"app-{number:03}" for number in range(119)] + ["xylophone"]
    state = ApplicationSyncState(
        status=model.ApplicationSyncStatus.ValueType(SyncStatus.OUT_OF_SYNC), timestamp=1
    )
    for number, name in enumerate(names):
        draft.name, draft.git_path.path = name, f"apps/{name}"
        draft.labels["env"] = "dev" if number < 100 else "prod"
        id = await cases.applications.add(draft, by=admin)
        if number < 70:
            await cases.application_reports.report_sync_state(id, state, by=piped)
    return names


async def shown_rows(page: Page, rows: str) -> list[str]:
    return await page.locator(rows).evaluate_all("all => all.map((each) => each.id)")


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_bookmark_of_upstream_shows_its_page_and_three_letters_find_a_name(
    *, scripts: bool, open_page: OpenPage, console_url: str, many_applications: list[str]
) -> None:
    bookmark = "/applications?kind=0&syncStatus=3&labels%5B0%5D=env:dev&page="
    page = await open_page(f"{bookmark}2", java_script_enabled=scripts)
    second = await page.locator(".row-link").all_text_contents()
    await page.goto(f"{console_url}{bookmark}1")
    first = await page.locator(".row-link").all_text_contents()
    assert (len(first), len(second)) == (50, 20)
    assert sorted(first + second) == many_applications[:70]
    # A name of the last page is found by a part of it.
    await page.goto(f"{console_url}/applications?sort=name")
    await expect(page.get_by_test_id("app-row")).to_have_count(50)
    assert "xylophone" not in await page.locator("main").inner_text()
    await page.get_by_test_id("filter-q").fill("lop")
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("app-row")).to_have_count(1)
    await expect(page.get_by_test_id("app-row")).to_contain_text("xylophone")


async def test_the_list_of_applications_begins_with_what_needs_somebody(
    *, open_page: OpenPage, many_applications: list[str]
) -> None:
    page = await open_page("/applications?q=app-0")
    names = page.locator(".row-link")
    # 100 match; the first 70 differ from Git.
    assert await names.all_text_contents() == many_applications[:50]
    await expect(page.locator("th[aria-sort]")).to_have_text("Status")
    await expect(page.locator("#foot")).to_contain_text("100 applications, page 1 of 2")
    await page.get_by_role("link", name="Status", exact=True).click()
    await page.wait_for_url("**dir=desc**")
    await expect(names.first).not_to_have_text("app-000")
    # The line above says how many there are; one page needs no other.
    await page.get_by_test_id("filter-q").fill("xylo")
    await page.keyboard.press("Enter")
    await expect(names).to_have_text(["xylophone"])
    await expect(page.locator("#counts")).to_contain_text("1 application")
    await expect(page.locator("#foot")).to_have_count(0)


Create = Callable[[int], Awaitable[str]]


@pytest.fixture(params=["/deployments", "/events", "/deployment-traces"])
def long_list(
    request: pytest.FixtureRequest,
    cases: UseCases,
    piped: PipedCaller,
    program: ApiKeyCaller,
    new_deployment: Callable[[], Deployment],
) -> tuple[str, Create]:
    """The address of a list, and what adds an object to it and returns the id of its row."""

    async def deploy(number: int) -> str:
        del number
        deployment = new_deployment()
        await cases.deployment_reports.create(deployment, by=piped)
        return f"dep-{deployment.id}"

    async def register(number: int) -> str:
        event = RegisterEventRequest(name="image", data=f"v{number}", labels={"app": "cart"})
        return f"event-{await cases.events.register(event, by=program)}"

    async def push(number: int) -> str:
        event = RegisterEventRequest(
            name="image",
            data=f"v{number}",
            commit_hash=f"{number:040x}",
            commit_url="https://git.example/c",
            commit_title=f"commit {number}",
            commit_author="ann",
        )
        await cases.events.register(event, by=program)
        return f"commit {number}"

    creates = {"/deployments": deploy, "/events": register, "/deployment-traces": push}
    return request.param, creates[request.param]


@pytest.mark.parametrize("scripts", [True, False])
async def test_older_rows_are_reached_page_by_page_each_once(
    *,
    scripts: bool,
    open_page: OpenPage,
    long_list: tuple[str, Create],
    advance: Callable[[float], None],
) -> None:
    path, create = long_list
    created: list[str] = []
    for number in range(110):
        # Over more than a quarter of a year.
        advance(86400)
        created.append(await create(number))
    page = await open_page(path, java_script_enabled=scripts)
    names = page.locator("article h3") if path == "/deployment-traces" else None
    older, seen = page.locator("a[rel=next]"), list[str]()
    while True:
        await expect(page.locator("h1")).to_be_visible()
        seen += await names.all_text_contents() if names else await shown_rows(page, "tbody tr[id]")
        if not await older.count():
            break
        # What comes meanwhile shifts nothing on the pages behind; the first one shows it.
        if not scripts or "before=" in page.url:
            advance(1)
            await create(len(created) + len(seen))
        address = page.url
        await older.click()
        await page.wait_for_url(lambda url, before=address: url != before)
    assert len(seen) == len(set(seen))
    assert [each for each in seen if each in created] == created[::-1]


async def test_the_search_reaches_beyond_the_newest_thousand(
    open_page: OpenPage,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
) -> None:
    for number in range(1_100):
        deployment = new_deployment()
        deployment.created_at = deployment.updated_at = number + 1
        if number == 0:
            deployment.trigger.commit.message = "A needle below the hay"
        await stores.deployments.add(deployment)
    page = await open_page("/deployments?q=needle")
    await expect(page.get_by_test_id("dep-row")).to_have_count(1)
    await page.keyboard.press("Control+k")
    await page.keyboard.type("needle")
    await expect(page.get_by_test_id("result").first).to_contain_text("needle")
