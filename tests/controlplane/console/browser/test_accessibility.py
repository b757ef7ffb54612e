# SPDX-License-Identifier: Apache-2.0
"""axe finds nothing on any page, in any theme, at any width, whatever is open."""

from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from pipecd.controlplane.auth.setup_token import new_setup_token
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.console.documentation import read_documents
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.clock import Now
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.axe import violations
from servers.browser import OpenPage
from servers.console_pages import NO_PAGE, ShownObjects

pytestmark = pytest.mark.browser

# Every page is visited at every width in both themes, each pair by one test. Every run has the two
# that differ most.
EVERY_RUN = ((1440, "light"), (390, "dark"))
LOOKS = [
    pytest.param(width, theme, marks=() if (width, theme) in EVERY_RUN else pytest.mark.long)
    for width in (1440, 1024, 768, 390)
    for theme in ("light", "dark")
]
MENUS = {
    "Bulk actions",
    "Cancel",
    "Change",
    "Disable",
    "End",
    "Reject",
    "Restart",
    "Roll back",
    "Skip ANALYSIS",
    "Sync strategies",
}
# Opens whatever the page folds, other than menus, of which one at a time is open.
UNFOLD = """() => {
    const folded = [...document.querySelectorAll("details:not([open]):not(.menu)")];
    folded.forEach((each) => { each.open = true; });
    return folded.length;
}"""


class PageCheck:
    """Checks pages as they are, unfolded, and with each of their menus open."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._menus = set[tuple[str, str]]()
        self._found: list[str] = []

    async def check(self, what: str) -> None:
        self._found += [f"{what}: {each}" for each in await violations(self._page)]

    async def check_all(self, what: str) -> None:
        await self.check(what)
        if await self._page.evaluate(UNFOLD):
            await self.check(f"{what}, unfolded")
        for menu in await self._page.locator("details.menu").filter(visible=True).all():
            summary = menu.locator("> summary")
            name = " ".join((await summary.inner_text()).split())
            name = name or await summary.get_attribute("aria-label") or ""
            # Rows have the same menu, and all pages that of the account.
            is_account = "account" in (await menu.get_attribute("class") or "")
            key = (name, "" if is_account else self._section())
            if key in self._menus:
                continue
            self._menus.add(key)
            await summary.click()
            found = await violations(self._page, menu)
            self._found += [f"{what}, menu {name}: {each}" for each in found]
            await self._page.keyboard.press("Escape")

    def _section(self) -> str:
        parts = urlsplit(self._page.url).path.split("/")
        return "/".join(parts[:3] if parts[1] == "settings" else parts[:2])

    @property
    def menus(self) -> set[str]:
        return {name for name, _ in self._menus}

    def assert_nothing_was_found(self) -> None:
        assert not self._found, "\n".join(self._found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_axe_finds_nothing_on_any_page(
    *,
    width: int,
    theme: str,
    open_page: OpenPage,
    console_url: str,
    all_pages: tuple[str, ...],
) -> None:
    page = await open_page(
        "/login?switch=1", viewport={"width": width, "height": 900}, color_scheme=theme
    )
    checked = PageCheck(page)
    for path in all_pages:
        response = await page.goto(console_url + path)
        assert response is not None
        assert response.status == (404 if path == NO_PAGE else 200), path
        await checked.check_all(path)
    checked.assert_nothing_was_found()
    assert checked.menus >= MENUS


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_axe_finds_nothing_in_empty_pages_dialogs_and_results(
    *,
    width: int,
    theme: str,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    viewer: User,
) -> None:
    size = {"width": width, "height": 900}
    allowed = ["clipboard-read", "clipboard-write"]
    page = await open_page("/overview", viewport=size, color_scheme=theme, permissions=allowed)
    checked = PageCheck(page)
    empty = ("/chains", "/deployment-traces", "/events", "/insights", "/plan-previews")
    for path in (*empty, "/settings/users", "/settings/api-key"):
        await page.goto(console_url + path)
        await checked.check(f"{path} without content")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("cart")
    await page.get_by_test_id("result").filter(has_text="Sync cart").wait_for()
    await checked.check("palette")
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await page.get_by_test_id("help").wait_for()
    await checked.check("keys of the keyboard")
    await page.keyboard.press("Escape")
    await page.goto(f"{console_url}/deployments/{running.id}")
    await page.get_by_test_id("log-full-screen").click()
    await checked.check("log on the whole screen")
    await page.keyboard.press("Escape")
    await page.locator("#L1 .n").click()
    await page.get_by_role("button", name="Copy link").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("copied")
    await checked.check("chosen lines and a toast")
    await page.context.set_offline(True)
    await expect(page.locator("#offline")).to_be_visible()
    await checked.check("a page without connection")
    await page.context.set_offline(False)
    await page.goto(f"{console_url}/applications")
    await page.locator("input[name=id]").first.check()
    await page.get_by_test_id("bulk-sync").click()
    await page.get_by_role("button", name="Sync the selected applications").click()
    await expect(page.locator("main")).not_to_have_attribute("data-page", "applications")
    await checked.check("results of a bulk sync")
    await page.get_by_test_id("bulk-row").get_by_role("link").first.click()
    await expect(page.get_by_test_id("notice")).to_be_visible()
    await checked.check("a requested sync")
    checked.assert_nothing_was_found()
    page = await open_page("/settings/project", user=viewer, viewport=size, color_scheme=theme)
    checked = PageCheck(page)
    await checked.check("what a viewer sees of the settings")
    await page.goto(f"{console_url}/settings/api-key")
    await expect(page.get_by_test_id("error-403")).to_contain_text("Permission denied")
    await checked.check("permission denied")
    checked.assert_nothing_was_found()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_axe_finds_nothing_on_the_pages_that_answer_a_form(
    *,
    width: int,
    theme: str,
    open_page: OpenPage,
    console_url: str,
    shown: ShownObjects,
    cases: UseCases,
    piped: PipedCaller,
    meta: ReportPipedMetaRequest,
    spec_dir: Path,
) -> None:
    meta.secret_encryption.type = "KEY_PAIR"
    meta.secret_encryption.public_key = (spec_dir / "vectors" / "secret_public.pem").read_text()
    await cases.pipeds.report_meta(meta, by=piped)
    look: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
    page = await open_page("/settings/api-key", **look)
    checked = PageCheck(page)
    await page.get_by_label("Name", exact=True).fill("nightly")
    await page.get_by_role("button", name="Generate and show the key").click()
    await expect(page.get_by_test_id("api-key")).to_be_visible()
    await checked.check_all("a new API key")
    await page.goto(f"{console_url}/settings/piped")
    await page.get_by_label("Name", exact=True).fill("prod")
    await page.get_by_role("button", name="Add and show the key").click()
    await expect(page.get_by_test_id("piped-key")).to_be_visible()
    await checked.check_all("the key of a piped")
    await page.goto(f"{console_url}/applications/add")
    await page.get_by_test_id("add-several").click()
    await expect(page.get_by_test_id("form-error")).to_be_visible()
    await checked.check("nothing was ticked")
    await page.get_by_label("Add api with the others").check()
    await page.get_by_test_id("add-several").click()
    await expect(page.get_by_test_id("bulk-row")).to_have_count(1)
    await checked.check("results of a bulk add")
    await page.goto(f"{console_url}/applications/{shown.application}/encrypt")
    await page.locator("#secret").fill("hunter22")
    await page.get_by_test_id("encrypt-button").click()
    await expect(page.get_by_test_id("ciphertext")).to_be_visible()
    await checked.check("an encrypted secret")
    await page.goto(f"{console_url}/settings/project")
    await page.get_by_test_id("role-add-form").locator("> summary").click()
    await page.get_by_test_id("role-add-form").locator("details > summary").click()
    await page.get_by_label("Name of the role").fill("night")
    await page.get_by_label("Policies, with a blank line").fill("resources=pipd;actions=get")
    await page.get_by_role("button", name="Add the text").click()
    await expect(page.get_by_test_id("form-error")).to_be_visible()
    await checked.check("a rejected role")
    checked.assert_nothing_was_found()
    page = await open_page("/login?project=shop&switch=1", user=None, **look)
    await page.fill("#username", "admin")
    await page.fill("#password", "wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_be_visible()
    assert await violations(page) == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("width", "theme"), EVERY_RUN)
async def test_axe_finds_nothing_in_the_documentation(
    width: int, theme: str, open_page: OpenPage, console_url: str
) -> None:
    size = {"width": width, "height": 900}
    page = await open_page("/help", viewport=size, color_scheme=theme)
    checked = PageCheck(page)
    for name in read_documents():
        await page.goto(f"{console_url}/help/{name}")
        await checked.check(name)
    checked.assert_nothing_was_found()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_on_the_page_of_the_first_project(
    theme: Literal["light", "dark"], chromium: Browser, stores: Stores, bus: MemoryBus, now: Now
) -> None:
    key = b"0" * 32
    cases = build_use_cases(stores, bus, address="", encryption_key=key, now=now)
    sso = SsoSettings("", "state", key)
    web = WebServer(create_console(cases, bus, insecure_cookie=True, sso=sso, now=now))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        context = await chromium.new_context(color_scheme=theme)
        page = await context.new_page()
        token = quote(new_setup_token(key, now()))
        await page.goto(f"http://127.0.0.1:{port}/setup?token={token}")
        await expect(page.get_by_label("Password, at least")).to_be_visible()
        assert await violations(page) == []
        await context.close()
        await web.stop()
