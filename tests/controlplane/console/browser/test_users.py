# SPDX-License-Identifier: Apache-2.0
"""Who is signed in, and ending sessions, in a real browser."""

from datetime import timedelta

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.errors import Unauthenticated
from servers.browser import OpenPage

pytestmark = pytest.mark.browser

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
OLGA = User("shop", "olga", ("Viewer", "dev"))
HOSTILE = User("shop", "<b>eve</b>\u202e" + "e" * 200, ("Viewer",))


@pytest.mark.parametrize("scripts", [True, False])
async def test_users_are_listed_and_single_sessions_ended(
    *, scripts: bool, open_page: OpenPage, cases: UseCases
) -> None:
    lost, kept = [await cases.sessions.begin(OLGA, timedelta(hours=8)) for _ in range(2)]
    await cases.sessions.user(kept)
    await cases.sessions.begin(User("bank", "rival", ("Admin",)))
    page = await open_page("/settings/project", java_script_enabled=scripts)
    await page.get_by_role("link", name="See who is signed in").click()
    row = page.get_by_test_id("user-row")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("olga")
    await expect(row).to_contain_text("Viewer, dev")
    await expect(row).to_contain_text("Single sign-on")
    await row.locator(".row-link").click()
    sessions = page.get_by_test_id("session-row")
    await expect(sessions).to_have_count(2)
    last = sessions.nth(1)
    await last.locator("summary").click()
    await last.get_by_role("button", name="End this session").click()
    await expect(page.get_by_test_id("flash")).to_contain_text("A session of olga has ended.")
    await expect(sessions).to_have_count(1)
    ended = [token for token in (lost, kept) if not await is_valid(cases, token)]
    assert len(ended) == 1
    await page.get_by_test_id("end-user").locator("summary").click()
    await expect(page.get_by_test_id("end-user")).to_contain_text("signed out in every browser")
    await page.get_by_role("button", name="End all sessions of olga").click()
    await expect(page.get_by_test_id("flash")).to_contain_text("The sessions of olga have ended.")
    await expect(page.get_by_test_id("user-row")).to_have_count(0)
    assert not await is_valid(cases, lost)
    assert not await is_valid(cases, kept)


async def is_valid(cases: UseCases, token: str) -> bool:
    try:
        await cases.sessions.user(token, afresh=True)
    except Unauthenticated:
        return False
    return True


async def test_the_own_session_is_marked_and_not_ended_by_mistake(
    open_page: OpenPage, cases: UseCases, admin: User, console_url: str
) -> None:
    page = await open_page("/settings/users", user=None)
    token = await cases.sessions.begin(admin)
    await page.context.add_cookies(
        [{"name": "token", "value": token, "url": console_url, "sameSite": "Strict"}]
    )
    await page.goto(f"{console_url}/settings/users?user={admin.name}")
    await expect(page.get_by_test_id("user-row")).to_contain_text("(you)")
    session = page.get_by_test_id("session-row")
    await expect(session).to_contain_text("This browser")
    await expect(session.get_by_role("button")).to_have_count(0)
    await expect(page.get_by_test_id("end-user")).to_contain_text("That is you")


async def test_only_who_may_update_the_project_sees_users(
    open_page: OpenPage, cases: UseCases, viewer: User
) -> None:
    await cases.sessions.begin(OLGA)
    page = await open_page("/settings/users", user=viewer)
    await expect(page.get_by_test_id("users-denied")).to_contain_text("Only users who may update")
    assert "olga" not in await page.content()


@pytest.mark.parametrize("width", [1440, 390])
async def test_many_users_are_filtered_by_name_and_hostile_names_fit(
    *, width: int, open_page: OpenPage, cases: UseCases
) -> None:
    for number in range(30):
        await cases.sessions.begin(User("shop", f"user-{number:02}", ("Viewer",)))
    await cases.sessions.begin(HOSTILE)
    viewport = {"width": width, "height": 900}
    page = await open_page("/settings/users", viewport=viewport)
    await expect(page.get_by_test_id("user-row")).to_have_count(31)
    assert await page.evaluate(OVERFLOW) == 0
    row = page.get_by_test_id("user-row").filter(has_text="eve")
    await row.locator(".row-link").click()
    await expect(page.locator("#user-title")).to_contain_text("<b>eve</b>")
    assert await page.evaluate(OVERFLOW) == 0
    await page.get_by_test_id("filter-q").fill("user-07")
    await page.get_by_test_id("filter-q").press("Enter")
    await expect(page.get_by_test_id("user-row")).to_have_count(1)
