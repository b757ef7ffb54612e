# SPDX-License-Identifier: Apache-2.0
"""API keys and the settings of the project in a real browser."""

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import Unauthenticated
from servers.browser import OpenPage

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scripts", [True, False])
async def test_an_api_key_is_generated_used_and_disabled(
    *, scripts: bool, open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    page = await open_page("/settings", java_script_enabled=scripts)
    await page.get_by_role("link", name="API keys").click()
    await expect(page.get_by_test_id("empty")).to_contain_text("No API keys yet")
    await page.get_by_label("Name").fill("deploy from CI")
    await page.get_by_label("Read and write").check()
    await page.get_by_role("button", name="Generate and show the key").click()
    key = await page.get_by_test_id("api-key").inner_text()
    caller = await cases.api_keys.verify(key)
    assert isinstance(caller, ApiKeyCaller)
    assert (caller.name, caller.may_write) == ("deploy from CI", True)
    await page.get_by_role("link", name="Go to the API keys").click()
    row = page.get_by_test_id("apikey-row")
    await expect(row).to_contain_text("Read and write")
    assert key not in await page.content()
    await row.locator("summary").click()
    await page.get_by_role("button", name="Disable deploy from CI").click()
    await expect(row).to_contain_text("Disabled")
    with pytest.raises(Unauthenticated):
        await cases.api_keys.verify(key)


async def test_a_viewer_is_told_why_there_are_no_keys(open_page: OpenPage, viewer: User) -> None:
    page = await open_page("/settings/api-key", user=viewer)
    await expect(page.get_by_test_id("error-403")).to_contain_text("Your roles do not allow this")


async def test_changing_the_own_password_keeps_the_session(
    open_page: OpenPage, static_admin: StaticAdmin
) -> None:
    async def sign_in(password: str) -> None:
        for key, value in (
            ("project", "shop"),
            ("username", static_admin.username),
            ("password", password),
        ):
            await page.fill(f"#{key}", value)
        await page.keyboard.press("Enter")

    page = await open_page("/settings/project", user=None)
    await sign_in(static_admin.password)
    other = await open_page("/settings/project", user=None)
    page, mine = other, page
    await sign_in(static_admin.password)
    page = mine
    await page.get_by_text("Change username and password").click()
    await page.get_by_label("New password").fill("a much better password")
    await page.get_by_test_id("admin-form").get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
    # The other browser, which knows only the old password, is signed out.
    await other.reload()
    await expect(other.get_by_test_id("expired")).to_be_visible()


async def test_locking_oneself_out_asks_twice(
    open_page: OpenPage, cases: UseCases, admin: User, single_sign_on: None
) -> None:
    page = await open_page("/settings/project")
    button = page.get_by_role("button", name=f"Disable {admin.name}")
    await expect(button).to_be_hidden()
    await page.get_by_text("Disable the static admin").click()
    await expect(page.get_by_test_id("admin-disable")).to_contain_text("you are signed out")
    await button.click()
    await expect(page.get_by_test_id("admin")).to_contain_text("Nobody can sign in with a password")
