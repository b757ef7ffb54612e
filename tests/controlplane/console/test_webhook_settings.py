# SPDX-License-Identifier: Apache-2.0
"""An administrator sets up the webhook of a project on its settings page."""

import re
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.webhooks import Push

PAGE = "/settings/project"


def secret_in(html: str) -> str:
    found = re.search(r'data-testid="webhook-secret">([^<]+)<', html)
    return found[1] if found else ""


async def test_the_settings_lead_to_what_one_may_see(
    browser_of_admin: httpx2.AsyncClient, someone: Any
) -> None:
    assert 'href="/settings"' in (await browser_of_admin.get("/applications")).text
    answer = await browser_of_admin.get("/settings")
    assert (answer.status_code, answer.headers["location"]) == (303, "/settings/piped")
    assert f'href="{PAGE}"' in (await browser_of_admin.get("/settings/piped")).text
    answer = await someone(User("shop", "nobody", ())).get("/settings")
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)


async def test_a_webhook_is_made_renewed_and_turned_off(
    browser_of_admin: httpx2.AsyncClient, send: Any, cases: UseCases, advance: Any
) -> None:
    page = (await browser_of_admin.get(PAGE)).text
    assert "webhook-create" in page
    assert secret_in(page) == ""
    assert (await send(browser_of_admin, PAGE, f"{PAGE}/webhook")).status_code == 303
    page = (await browser_of_admin.get(PAGE)).text
    first = secret_in(page)
    assert (first,) == await cases.webhooks.secrets_of("shop")
    assert "https://pipecd.example/webhooks/shop" in page
    # A double click does not end the first one.
    await send(browser_of_admin, PAGE, f"{PAGE}/webhook")
    assert (first,) == await cases.webhooks.secrets_of("shop")
    advance(60)
    await send(browser_of_admin, PAGE, f"{PAGE}/webhook")
    page = (await browser_of_admin.get(PAGE)).text
    assert (secret_in(page), first) == await cases.webhooks.secrets_of("shop")
    assert "the one before it is valid until" in page
    await send(browser_of_admin, PAGE, f"{PAGE}/webhook/remove")
    assert await cases.webhooks.secrets_of("shop") == ()
    assert "webhook-create" in (await browser_of_admin.get(PAGE)).text


@pytest.mark.parametrize(
    ("remote", "told"),
    [
        pytest.param("git@github.com:shop/site.git", "1 watched repository was", id="watched"),
        pytest.param("git@github.com:shop/other.git", "no piped of this project", id="not watched"),
    ],
)
async def test_what_the_last_push_led_to_is_shown(
    browser_of_admin: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    registered: Any,
    remote: str,
    told: str,
) -> None:
    del registered
    await cases.webhooks.rotate(by=admin)
    assert "None yet" in (await browser_of_admin.get(PAGE)).text
    await cases.webhooks.pushed("shop", Push((remote,)), host="GitHub")
    page = (await browser_of_admin.get(PAGE)).text
    assert remote in page
    assert told in page


async def test_who_may_not_change_the_project_sees_no_secret(
    someone: Any, send: Any, cases: UseCases, admin: User, viewer: User
) -> None:
    await cases.webhooks.rotate(by=admin)
    (secret,) = await cases.webhooks.secrets_of("shop")
    client = someone(viewer)
    page = await client.get(PAGE)
    assert page.status_code == 200
    assert secret not in page.text
    assert "ask an administrator" in page.text
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', (await client.get("/applications")).text)
    assert csrf is None
    refused = await send(client, PAGE, f"{PAGE}/webhook")
    assert refused.status_code == 403
    assert await cases.webhooks.secrets_of("shop") == (secret,)


async def test_a_page_with_a_secret_is_not_kept_by_anyone(
    browser_of_admin: httpx2.AsyncClient, cases: UseCases, admin: User
) -> None:
    await cases.webhooks.rotate(by=admin)
    assert (await browser_of_admin.get(PAGE)).headers["cache-control"] == "no-store"
