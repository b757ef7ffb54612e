# SPDX-License-Identifier: Apache-2.0
"""The operator pages in a real browser: used as a person would, at every width, with axe."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.operator.pages import OperatorPages, create_operator_pages
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.projects import ProjectUseCases, StaticAdmin
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.errors import Unauthenticated
from servers.axe import violations
from servers.browser import chromium

pytestmark = pytest.mark.browser

EVERY_RUN = ((1440, "light"), (390, "dark"))
LOOKS = [
    pytest.param((width, theme), marks=() if (width, theme) in EVERY_RUN else pytest.mark.long)
    for width in (1440, 1024, 768, 390)
    for theme in ("light", "dark")
]
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
TOO_LOW = """
    () => [...document.querySelectorAll("main button, main .button, main input:not([type=checkbox])")]
        .filter((pressed) => pressed.type !== "hidden" && pressed.offsetHeight < 44)
        .map((pressed) => pressed.outerHTML)
"""
LONG = "d" * 500


@pytest.fixture
def projects(stores: Stores, bus: MemoryBus) -> ProjectUseCases:
    endings = SessionEndings(stores.session_endings, bus)
    return ProjectUseCases(stores, bus, Access(stores), endings, b"", [])


@pytest.fixture
async def page(request: pytest.FixtureRequest, projects: ProjectUseCases) -> AsyncIterator[Page]:
    """The first of the pages, in one of the looks."""
    width, theme = request.param
    web = WebServer(create_operator_pages(projects, shared_sso=["company"]))
    async with http_server(web, host="127.0.0.1", port=0) as port, chromium() as browser:
        context = await browser.new_context(
            base_url=f"http://127.0.0.1:{port}",
            viewport={"width": width, "height": 900},
            color_scheme=theme,
        )
        context.set_default_timeout(10_000)
        page = await context.new_page()
        await page.goto("/")
        yield page
        await context.close()
        await web.stop()


async def check(page: Page) -> None:
    await expect(page.get_by_role("heading", level=1)).to_have_count(1)
    assert await violations(page) == [], page.url
    assert await page.evaluate(OVERFLOW) == 0, page.url
    if page.viewport_size and page.viewport_size["width"] < 760:
        assert await page.evaluate(TOO_LOW) == [], page.url


async def credentials(page: Page) -> StaticAdmin:
    return StaticAdmin(
        await page.locator("#username").inner_text(), await page.locator("#password").inner_text()
    )


@pytest.mark.parametrize("page", LOOKS, indirect=True)
async def test_a_project_is_added_and_its_password_reset(
    page: Page, projects: ProjectUseCases, cases: UseCases
) -> None:
    await check(page)
    paths = {path for method, path in OperatorPages(projects, [])._endpoints if method == "GET"}
    # The browser opened the first one already.
    visited = {"/", "/style.css"}

    async def visit(path: str) -> None:
        visited.add(path.partition("?")[0])
        await page.goto(path)
        await check(page)

    await visit("/projects")
    await expect(page.locator("main")).to_contain_text("There is no project yet")
    await visit("/projects/add")
    await page.get_by_label("ID").fill("shop")
    await page.get_by_label("Description").fill(LONG)
    await page.get_by_role("button", name="Add and show the password").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("The project was added")
    await check(page)
    first = await credentials(page)
    assert await cases.sessions.sign_in("shop", *first)
    await page.get_by_role("link", name="Go to the projects").click()
    await check(page)
    await page.get_by_role("link", name="Reset the password of shop").click()
    await visit("/projects/reset-password?ID=shop")
    await page.get_by_label("ID").fill("hop")
    await page.get_by_role("button", name="Reset the password").click()
    await expect(page.get_by_role("alert")).to_contain_text("does not match")
    await check(page)
    await page.get_by_label("ID").fill("shop")
    await page.get_by_role("button", name="Reset the password").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("The password was reset")
    await check(page)
    assert await cases.sessions.sign_in("shop", *await credentials(page))
    with pytest.raises(Unauthenticated):
        await cases.sessions.sign_in("shop", *first)
    await page.goto("/projects/reset-password?ID=nowhere")
    await expect(page.get_by_role("alert")).to_contain_text("is not found")
    await check(page)
    assert visited == paths
