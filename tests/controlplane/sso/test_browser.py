# SPDX-License-Identifier: Apache-2.0
"""Single sign-on in a real browser, with its rules for cookies and redirects."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.projects import StaticAdmin
from servers.axe import violations
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


async def test_settings_are_tried_in_a_tab_of_their_own_before_they_are_saved(
    *, page: Page, site: str, static_admin: StaticAdmin, oidc: Any, stores: Stores
) -> None:
    oidc.issuer = oidc.issuer.replace("127.0.0.1", "localhost")
    await page.goto(f"{site}/settings/project")
    for name, value in (
        ("Project", "shop"),
        ("Username", static_admin.username),
        ("Password", static_admin.password),
    ):
        await page.get_by_label(name).fill(value)
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await page.get_by_text("Use OpenID Connect").click()
    form = page.get_by_test_id("sso-oidc")
    for name, value in (
        ("Client ID", "client"),
        ("Client secret", "s:ecret%"),
        ("Issuer", oidc.issuer),
        ("Callback address", f"{site}/auth/callback"),
    ):
        await form.get_by_label(name).fill(value)

    async def try_it() -> Page:
        async with page.expect_popup() as opened:
            await form.get_by_test_id("try-oidc").click()
        return await opened.value

    oidc.claims = {"preferred_username": "olga"}
    tab = await try_it()
    await expect(tab.get_by_role("heading", level=1)).to_have_text("It does not work yet")
    assert await violations(tab) == []
    oidc.claims = {"preferred_username": "olga", "roles": ["Editor"]}
    tab = await try_it()
    await expect(tab.get_by_role("heading", level=1)).to_have_text("It works")
    await expect(tab.get_by_test_id("sso-trial")).to_contain_text("olga with the role Editor")
    assert await violations(tab) == []
    # The form is still there, nothing is saved, and the administrator stays signed in.
    await expect(form.get_by_label("Issuer")).to_have_value(oidc.issuer)
    assert not (await stores.projects.get("shop")).HasField("sso")
    await form.get_by_role("button", name="Save").click()
    await expect(page.get_by_test_id("sso")).to_contain_text("Users sign in with OpenID Connect")
    await expect(page.get_by_label(f"Account of {static_admin.username}")).to_be_visible()
