# SPDX-License-Identifier: Apache-2.0
"""Signing in through another site with a real browser, which has its own ideas about cookies."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.usecases.projects import StaticAdmin
from servers.browser import chromium

pytestmark = pytest.mark.browser

Way = Callable[..., Any]


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A page that tolerates no complaint about policies."""
    complaints: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(10_000)
        page.on(
            "console",
            lambda said: complaints.append(said.text) if "Content Security" in said.text else None,
        )
        yield page
    assert complaints == []


@pytest.fixture
async def elsewhere(oidc: Any, site: str, trust: Way, by_oidc: Way) -> None:
    """The provider is another site for the browser: another name, not only another port."""
    oidc.issuer = oidc.issuer.replace("127.0.0.1", "localhost")
    await trust(by_oidc(redirect_uri=f"{site}/auth/callback"))


@pytest.mark.usefixtures("elsewhere")
async def test_a_deep_link_leads_through_the_provider_and_back(page: Page, site: str) -> None:
    await page.goto(f"{site}/deployments?status=2")
    await page.get_by_role("textbox", name="Project").fill("shop")
    await page.get_by_role("button", name="Use single sign-on").click()
    await page.wait_for_url(f"{site}/deployments?status=2")
    await page.get_by_label("Account of olga").click()
    await expect(page.get_by_text("Editor in shop")).to_be_visible()


@pytest.mark.usefixtures("elsewhere")
async def test_the_button_of_the_provider_is_enough(page: Page, site: str) -> None:
    await page.goto(f"{site}/login?project=shop")
    await page.get_by_role("button", name="Sign in with localhost").click()
    await expect(page.get_by_label("Account of olga")).to_be_visible()


@pytest.mark.usefixtures("elsewhere")
async def test_a_refusal_is_read_on_the_page(page: Page, site: str, oidc: Any) -> None:
    oidc.claims = {"name": "stray"}
    await page.goto(f"{site}/login?project=shop")
    await page.get_by_role("button", name="Sign in with localhost").click()
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("ask an administrator of project shop")
    await page.reload()
    await expect(alert).to_have_count(0)


@pytest.mark.usefixtures("elsewhere")
async def test_somebody_changes_the_project_by_its_name_in_the_header(
    page: Page, site: str, static_admin: StaticAdmin
) -> None:
    await page.goto(f"{site}/login?project=declared")
    await page.get_by_label("Username").fill("root")
    await page.get_by_label("Password").fill("config-password")
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await page.get_by_test_id("project-switch").click()
    await page.get_by_role("textbox", name="Project").fill("shop")
    await page.get_by_label("Username").fill(static_admin.username)
    await page.get_by_label("Password").fill(static_admin.password)
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await expect(page.get_by_test_id("project-switch")).to_have_text("shop")
    await page.get_by_test_id("project-switch").click()
    await page.get_by_role("link", name="declared").click()
    await expect(page.get_by_role("heading", name="Sign in to declared")).to_be_visible()
