# SPDX-License-Identifier: Apache-2.0
"""axe finds nothing on any page."""

from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from pipecd.controlplane.auth.setup_token import new_setup_token
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now
from pipecd.model.deployment import StageStatus
from pipecd.proto.model import application_pb2 as model
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment
from servers import programs
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.filled_project import FilledProject
from servers.live_states import DRIFT, resources, snapshot

pytestmark = pytest.mark.browser

RUN = """axe.run(document).then((found) => found.violations.map(
    (v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 200)).join(" | ")}`))"""


async def violations(page: Page, axe: str) -> list[str]:
    return await page.evaluate(f"{axe}; {RUN}")


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe."""
    try:
        return Path(programs.built_program("axe")).read_text()
    except programs.NotInstalled as e:
        programs.skip_or_fail(e)


@pytest.fixture
async def live_state(cases: UseCases, piped: PipedCaller, application: Application) -> Application:
    """An application with live resources that differ from Git."""
    await cases.application_reports.report_unregistered(
        [
            ApplicationInfo(name=name, repo_id="site", path=name, config_filename="app.pipecd.yaml")
            for name in ("api", "web")
        ],
        by=piped,
    )
    state = ApplicationSyncState(
        status=model.ApplicationSyncStatus.ValueType(SyncStatus.OUT_OF_SYNC),
        reason=DRIFT,
        timestamp=1,
    )
    await cases.application_reports.report_sync_state(application.id, state, by=piped)
    for broken in (False, True):
        found = snapshot(application, *resources(3, 6, broken=broken))
        await cases.livestate.report(found, by=piped)
    return application


# Every page is visited at every width in both themes, each pair by one test. Every run has the two
# that differ most.
EVERY_RUN = {(1440, "light"), (390, "dark")}
LOOKS = [
    pytest.param(width, theme, marks=() if (width, theme) in EVERY_RUN else pytest.mark.long)
    for width in (1440, 1024, 768, 390)
    for theme in ("light", "dark")
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_axe_finds_nothing_on_any_page(
    *,
    width: int,
    theme: str,
    axe: str,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    reports: PipedReports,
    live_state: Application,
    filled: FilledProject,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page(
        "/login?switch=1", viewport={"width": width, "height": 900}, color_scheme=theme
    )
    application = f"/applications/{live_state.id}"
    for path in (
        "/login?switch=1&expired=page",
        "/overview",
        "/applications",
        "/applications?health=unhealthy",
        "/applications/add",
        f"{application}?diff=split",
        f"{application}/live?res=osaka%2Fweb-1",
        f"{application}/live?view=graph",
        f"{application}/encrypt",
        f"{application}/settings",
        "/deployments",
        f"/deployments/{running.id}",
        f"/deployments/{running.id}?tab=changes",
        f"/deployments/{running.id}?tab=timeline",
        f"/deployments/{running.id}?stage=s1&find=line&only=matches",
        "/chains",
        f"/chains/{filled.chain}",
        f"/deployments/{filled.deployment}?tab=changes&diff=split",
        "/plan-previews",
        f"/plan-previews/{filled.preview}",
        "/deployment-traces",
        "/events",
        f"/events/{filled.event}",
        "/insights",
        "/insights?app=ch",
        "/insights?range=1w&at=1767225600",
        "/search?q=cart",
        "/help",
        "/help/console",
        "/settings/piped",
        f"/settings/piped/{live_state.piped_id}",
        "/settings/api-key",
        "/settings/users?user=vera",
        "/settings/project",
        "/docs/api",
        "/nowhere",
    ):
        await page.goto(console_url + path)
        assert await violations(page, axe) == [], path


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_axe_finds_nothing_in_empty_pages_dialogs_menus_and_results(
    *,
    width: int,
    theme: str,
    axe: str,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    viewer: User,
) -> None:
    size = {"width": width, "height": 900}
    page = await open_page("/overview", viewport=size, color_scheme=theme)

    async def check(what: str) -> None:
        assert await violations(page, axe) == [], what

    for path in ("/chains", "/deployment-traces", "/events", "/insights"):
        await page.goto(console_url + path)
        await check(path)
    await page.keyboard.press("Control+k")
    await page.keyboard.type("cart")
    await page.get_by_test_id("result").filter(has_text="Sync cart").wait_for()
    await check("palette")
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await page.get_by_test_id("help").wait_for()
    await check("help")
    await page.keyboard.press("Escape")
    await page.locator("details.account > summary").click()
    await check("menu of the account")
    await page.goto(f"{console_url}/deployments/{running.id}")
    await page.get_by_test_id("cancel-button").click()
    await check("menu of a deployment")
    await page.keyboard.press("Escape")
    await page.get_by_test_id("log-full-screen").click()
    await check("log on the whole screen")
    await page.goto(f"{console_url}/settings/api-key")
    await page.get_by_role("textbox", name="Name").fill("ci")
    await page.get_by_role("button", name="Generate").click()
    await page.wait_for_url("**/settings/api-key*")
    await check("a new API key")
    await page.goto(f"{console_url}/applications")
    await page.locator("input[name=id]").first.check()
    await page.get_by_test_id("bulk-sync").click()
    await page.get_by_role("button", name="Sync the selected applications").click()
    await expect(page.locator("main")).not_to_have_attribute("data-page", "applications")
    await check("results of a bulk sync")
    page = await open_page("/settings/project", user=viewer, viewport=size, color_scheme=theme)
    await check("what a viewer sees of the settings")
    await page.goto(f"{console_url}/settings/api-key")
    await expect(page.locator("h1")).to_contain_text("Permission denied")
    await check("permission denied")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_on_the_page_of_the_first_project(
    theme: Literal["light", "dark"],
    axe: str,
    chromium: Browser,
    stores: Stores,
    bus: MemoryBus,
    now: Now,
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
        await expect(page.get_by_label("Password")).to_be_visible()
        assert await violations(page, axe) == []
        await context.close()
        await web.stop()
