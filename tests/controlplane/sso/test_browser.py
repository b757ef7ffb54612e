# SPDX-License-Identifier: Apache-2.0
"""Single sign-on in a real browser, with its rules for cookies and redirects."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.usecases.projects import StaticAdmin
from servers.browser import chromium

pytestmark = pytest.mark.browser

Fixture = Callable[..., Any]


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A page; the test fails if it violates the Content Security Policy."""
    violations: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(10_000)
        page.on(
            "console",
            lambda message: (
                violations.append(message.text) if "Content Security" in message.text else None
            ),
        )
        yield page
    assert violations == []


@pytest.fixture
async def provider_on_another_site(
    oidc: Any, site: str, configure_sso: Fixture, oidc_config: Fixture
) -> None:
    """The provider has another host name than the console, so it is another site."""
    oidc.issuer = oidc.issuer.replace("127.0.0.1", "localhost")
    await configure_sso(oidc_config(redirect_uri=f"{site}/auth/callback"))


@pytest.mark.usefixtures("provider_on_another_site")
async def test_a_deep_link_is_opened_after_the_sign_in(page: Page, site: str) -> None:
    await page.goto(f"{site}/deployments?status=2")
    await page.get_by_role("textbox", name="Project").fill("shop")
    await page.get_by_role("button", name="Use single sign-on").click()
    await page.wait_for_url(f"{site}/deployments?status=2")
    await page.get_by_label("Account of olga").click()
    await expect(page.get_by_text("Editor in shop")).to_be_visible()


@pytest.mark.usefixtures("provider_on_another_site")
async def test_the_button_of_the_provider_signs_in(page: Page, site: str) -> None:
    await page.goto(f"{site}/login?project=shop")
    await page.get_by_role("button", name="Sign in with localhost").click()
    await expect(page.get_by_label("Account of olga")).to_be_visible()


@pytest.mark.usefixtures("provider_on_another_site")
async def test_the_page_shows_why_a_sign_in_was_rejected(page: Page, site: str, oidc: Any) -> None:
    oidc.claims = {"name": "stray"}
    await page.goto(f"{site}/login?project=shop")
    await page.get_by_role("button", name="Sign in with localhost").click()
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("ask an administrator of project shop")
    await page.reload()
    await expect(alert).to_have_count(0)


@pytest.mark.usefixtures("provider_on_another_site")
async def test_a_user_switches_the_project_in_the_header(
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
