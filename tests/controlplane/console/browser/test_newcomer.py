# SPDX-License-Identifier: Apache-2.0
"""Where somebody who sees the console for the first time would hesitate."""

import re
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Locator, expect

from pipecd.controlplane.auth.setup_token import new_setup_token
from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.clock import Now, to_unix
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser

CLIPBOARD = ["clipboard-read", "clipboard-write"]


async def edges(locator: Locator) -> tuple[float, float]:
    box = await locator.bounding_box()
    assert box is not None
    return box["x"], box["x"] + box["width"]


@pytest.mark.parametrize("width", [1440, 390])
async def test_the_commands_of_a_rollback_stay_in_their_menu(
    *, width: int, open_page: OpenPage, running: Deployment, stores: Stores, reports: PipedReports
) -> None:
    await reports.deployment(running, DeploymentStatus.FAILURE)

    def clone(stored: Deployment) -> None:
        stored.git_path.repo.remote = f"file:///home/ann/{'a-long-name/' * 12}sample"

    await stores.deployments.update(running.id, clone)
    size = {"width": width, "height": 800}
    page = await open_page(f"/deployments/{running.id}", viewport=size)
    await page.get_by_test_id("roll-back").click()
    menu = page.locator("#roll-back > div")
    left, right = await edges(menu)
    for inside in (menu.locator("p"), menu.get_by_test_id("revert-command"), menu.locator(".copy")):
        assert left <= (await edges(inside))[0]
        assert (await edges(inside))[1] <= right


async def test_a_failure_that_was_repaired_says_so_on_the_overview(
    *,
    open_page: OpenPage,
    running: Deployment,
    application: Application,
    stores: Stores,
    reports: PipedReports,
    now: Now,
) -> None:
    await reports.deployment(running, DeploymentStatus.FAILURE)
    page = await open_page("/overview")
    failed = page.get_by_test_id("tile-failed")
    await expect(failed.get_by_test_id("tile-count")).to_have_text("1")
    await expect(failed.get_by_test_id("repaired")).to_have_count(0)

    def succeed(stored: Application) -> None:
        success = stored.most_recently_successful_deployment
        success.deployment_id = "later"
        success.trigger.CopyFrom(running.trigger)
        success.started_at = success.completed_at = to_unix(now()) + 60

    await stores.applications.update(application.id, succeed)
    await page.reload()
    await expect(failed.get_by_test_id("repaired")).to_have_text("Repaired")
    await expect(failed.get_by_test_id("tile-count")).to_have_text("1")


async def test_the_overview_says_why_and_leads_to_what_waits(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page("/overview")
    text = page.get_by_test_id("overview-text")
    await expect(text).to_have_text("cart waits for your approval.")
    await page.get_by_role("link", name="Review cart").click()
    await expect(page.get_by_test_id("approve-button")).to_be_enabled()
    await reports.stage(running, "s2", StageStatus.FAILURE, "not before the sale is over")
    await reports.deployment(running, DeploymentStatus.FAILURE)
    await page.get_by_test_id("nav-overview").click()
    await expect(text).to_have_text("cart has failed and not succeeded since.")
    failed = page.get_by_test_id("tile-failed")
    await expect(failed).to_contain_text("WAIT_APPROVAL failed: not before the sale is over.")
    await expect(page.get_by_test_id("review")).to_have_count(0)


async def test_a_new_piped_comes_with_a_configuration_to_copy(open_page: OpenPage) -> None:
    page = await open_page("/settings/piped", permissions=CLIPBOARD)
    await page.get_by_test_id("add-link").click()
    await expect(page.locator("#piped-name")).to_be_in_viewport()
    await page.get_by_label("Name").fill("prod")
    await page.get_by_role("button", name="Add and show the key").click()
    # The piped is called by its name, not by its ID.
    await expect(page.get_by_label("You are here")).to_have_text(re.compile("prod"))
    await page.get_by_role("button", name="Copy configuration").click()
    copied = str(await page.evaluate("navigator.clipboard.readText()"))
    shown = await page.get_by_test_id("snippet").inner_text()
    assert copied.splitlines() == shown.splitlines()
    await page.get_by_role("link", name="Installing a piped").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Installing a piped")


async def test_the_commands_of_an_api_key_are_copied_one_by_one(open_page: OpenPage) -> None:
    page = await open_page("/settings/api-key", permissions=CLIPBOARD)
    await page.get_by_label("Name", exact=True).fill("laptop")
    await page.get_by_role("button", name="Generate and show the key").click()
    # What the page is for is its first button, and the way off it the last one.
    await page.get_by_role("button", name="Copy the key", exact=True).click()
    copied = str(await page.evaluate("navigator.clipboard.readText()"))
    assert copied == await page.get_by_test_id("api-key").inner_text()
    names = await page.locator("main .btn").all_inner_texts()
    assert (names[0], names[-1]) == ("Copy the key", "Go to the API keys")
    # Both at once would paste the second line as the key.
    await page.get_by_role("button", name="Copy command that saves the key").click()
    saves = str(await page.evaluate("navigator.clipboard.readText()"))
    assert saves.startswith("(umask 077; read -rs key;")
    await page.get_by_role("button", name="Copy command", exact=True).click()
    calls = str(await page.evaluate("navigator.clipboard.readText()"))
    assert calls.startswith("pipectl application list ")
    assert calls.endswith(" --api-key-file=api-key")
    lines = [line.removesuffix(" \\") for line in calls.splitlines()]
    assert [line.strip() for line in lines if line.count("--") > 1] == []


async def test_a_refusal_names_the_missing_right(open_page: OpenPage, viewer: User) -> None:
    page = await open_page("/settings/api-key", user=viewer)
    await expect(page.get_by_test_id("error-403")).to_contain_text(
        "Ask an administrator of the project for a role that may list API keys."
    )


async def test_the_palette_finds_the_documentation(open_page: OpenPage) -> None:
    page = await open_page("/overview")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("event watcher")
    await expect(page.get_by_test_id("palette").get_by_text("Documentation")).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Event watcher")


async def test_the_run_behind_an_event_is_a_link_and_nothing_else_is(
    open_page: OpenPage, cases: UseCases, program: ApiKeyCaller, piped: PipedCaller
) -> None:
    del piped
    run = "https://ci.example/runs/1472"
    contexts = {"Source-Run": run, "Requested-By": "ann", "Bad": "javascript:alert(1)"}
    request = RegisterEventRequest(name="image-pushed", data="v1", contexts=contexts)
    event = await cases.events.register(request, by=program)
    page = await open_page(f"/events/{event}")
    links = page.locator("#contexts a")
    await expect(links).to_have_text([run])
    await expect(links).to_have_attribute("href", run)
    await expect(links).to_have_attribute("rel", "noopener noreferrer")


async def test_the_name_of_the_project_is_asked_for_with_a_hint(open_page: OpenPage) -> None:
    page = await open_page("/login", user=None)
    hint = "The administrator of this PipeCD can tell you its name."
    await expect(page.get_by_label("Project")).to_have_accessible_description(hint)


async def test_the_overview_of_a_new_project_leads_from_step_to_step(
    open_page: OpenPage, cases: UseCases
) -> None:
    password = await cases.projects.add("fresh", "")
    user = User("fresh", password.username, ("Admin",))
    page = await open_page("/overview", user=user)
    text, step = page.get_by_test_id("overview-text"), page.get_by_test_id("first-step")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await expect(text).to_have_text("This project has no piped yet, so nothing can be deployed.")
    registered = await cases.pipeds.register("prod", "", by=user)
    await expect(text).to_have_text("No piped is started yet, so nothing can be deployed.")
    await expect(step.get_by_role("link")).to_have_text("Show how to start it")
    piped = PipedCaller("fresh", registered.id)
    await cases.pipeds.report_meta(ReportPipedMetaRequest(version="v1.0.0", config="{}"), by=piped)
    await cases.pipeds.report_stat(b"up 1", by=piped)
    await expect(text).to_have_text("No application is added yet, so nothing is deployed.")
    # Numbers of what cannot be there yet say nothing.
    await expect(page.locator(".tile")).to_have_count(0)
    await step.get_by_role("link", name="See what was found").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Add an application")


async def test_who_creates_the_first_project_types_only_the_password_again(
    chromium: Browser, stores: Stores, bus: MemoryBus, now: Now
) -> None:
    key = b"0" * 32
    cases = build_use_cases(stores, bus, address="", encryption_key=key, now=now)
    sso = SsoSettings("", "state", key)
    web = WebServer(create_console(cases, bus, insecure_cookie=True, sso=sso, now=now))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        context = await chromium.new_context()
        page = await context.new_page()
        token = quote(new_setup_token(key, now()))
        await page.goto(f"http://127.0.0.1:{port}/setup?token={token}")
        await page.get_by_label("Project").fill("shop")
        await page.get_by_label("Username").fill("ann")
        password = page.get_by_label("Password, at least")
        await password.fill("a good password")
        show = page.get_by_role("button", name="Show the password")
        inside, card = await show.bounding_box(), await page.locator(".card").bounding_box()
        assert inside
        assert card
        assert inside["x"] + inside["width"] < card["x"] + card["width"]
        await show.click()
        await expect(password).to_have_attribute("type", "text")
        await password.press("Enter")
        await expect(page.get_by_test_id("created")).to_contain_text("The project is created")
        await expect(page.locator("#username")).to_have_value("ann")
        await expect(page.locator("#password")).to_be_focused()
        await page.keyboard.type("a good password")
        await page.keyboard.press("Enter")
        await expect(page.get_by_test_id("first-step")).to_contain_text("Start with a piped")
        await context.close()
        await web.stop()
