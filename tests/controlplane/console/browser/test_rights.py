# SPDX-License-Identifier: Apache-2.0
"""What users without the right to change anything see, and forms that no page of ours sent."""

from urllib.parse import quote, urlsplit

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.console_pages import ShownObjects

pytestmark = pytest.mark.browser

# The controls of a page that would change something.
CONTROLS = """() => [...document.querySelectorAll("main form[method=post] :is(button, input, select, textarea)")]
    .filter((e) => e.type !== "hidden" && !e.disabled).map((e) => e.outerHTML.slice(0, 120))"""
# Controls that are disabled and do not say why, to those who see and those who listen.
UNEXPLAINED = """() => [...document.querySelectorAll("main :is(button, input, select):disabled")]
    .filter((e) => e.checkVisibility() && !e.title && !document.getElementById(e.getAttribute("aria-describedby"))?.textContent.trim())
    .map((e) => e.outerHTML.slice(0, 160))"""
REASONS = (" not allow", "Only users who may update")


async def controls(page: Page, address: str) -> list[str]:
    await page.goto(address)
    return await page.evaluate(CONTROLS)


async def test_a_viewer_is_offered_nothing_that_is_refused_and_told_why(
    *,
    open_page: OpenPage,
    console_url: str,
    all_pages: tuple[str, ...],
    shown: ShownObjects,
    viewer: User,
) -> None:
    # A list of what can be done, and a deployment that has ended, leave out what the user may not do.
    ended = (f"/deployments/{shown.succeeded}", f"/deployments/{shown.failed}")
    silent = ("/applications", "/search", *ended)
    admins = await open_page("/overview")
    page = await open_page("/overview", user=viewer)
    wrong: list[str] = []
    explained = 0
    for path in all_pages:
        if path.startswith("/login"):
            continue
        offered = await controls(admins, console_url + path)
        wrong += [f"{path} offers {each}" for each in await controls(page, console_url + path)]
        wrong += [f"{path} disables {each}" for each in await page.evaluate(UNEXPLAINED)]
        text = await page.locator("main").inner_html()
        if offered and any(reason in text for reason in REASONS):
            explained += 1
        elif offered and urlsplit(path).path not in silent:
            wrong.append(f"{path} does not say why {offered[0]} is missing")
    assert not wrong, "\n".join(wrong)
    assert explained >= 8


async def test_a_form_of_another_site_changes_nothing(
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    target = f"{console_url}/deployments/{running.id}/cancel"
    form = f'<form method="post" action="{target}"><button>go</button></form>'
    page = await open_page(f"data:text/html,{quote(form)}")
    await page.get_by_text("go").click()
    await expect(page.get_by_test_id("error-403")).to_contain_text("comes from another site")
    assert await cases.commands.list_unhandled(by=piped) == ()


async def test_a_form_without_its_token_changes_nothing(
    open_page: OpenPage, running: Deployment, cases: UseCases, piped: PipedCaller
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    # When the form is sent, as a live update may bring the token back before.
    await page.evaluate(
        "document.addEventListener('submit', (event) => "
        "event.target.querySelector('input[name=csrf]').remove(), true)"
    )
    await page.get_by_test_id("cancel-button").click()
    await page.get_by_role("button", name="Cancel without rollback").click()
    await expect(page.get_by_test_id("error-403")).to_contain_text("Reload the page")
    assert await cases.commands.list_unhandled(by=piped) == ()
    await page.get_by_role("link", name="Back to the deployment").click()
    await expect(page.get_by_test_id("pipeline")).to_be_visible()
