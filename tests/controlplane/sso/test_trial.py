# SPDX-License-Identifier: Apache-2.0
"""Settings of single sign-on are tried before they are saved."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from servers.sso import OidcServer

Fixture = Callable[..., Any]
SETTINGS = "/settings/project"


@pytest.fixture
def try_it(browser: httpx2.AsyncClient, cases: UseCases, admin: User, oidc: OidcServer) -> Fixture:
    """Submits the form with *Try it* and returns the response."""

    async def submit(user: User = admin, **fields: str) -> httpx2.Response:
        browser.cookies.set("token", cases.sessions.issue(user))
        page = (await browser.get(SETTINGS)).text
        secret = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
        form = {
            "csrf": secret[1] if secret else "",
            "client_id": "client",
            "client_secret": "s:ecret%",
            "issuer": oidc.issuer,
            **fields,
        }
        return await browser.post(f"{SETTINGS}/sso/oidc/try", data=form)

    return submit


@pytest.fixture
def follow(open_callback: Fixture) -> Fixture:
    """Signs in at the provider that a response redirects to; returns that of the callback."""

    async def follow_redirect(answer: httpx2.Response) -> httpx2.Response:
        found = re.search(r'content="0;url=([^"]+)"', answer.text)
        assert found, answer.text
        async with httpx2.AsyncClient() as client:
            redirect = await client.get(unescape(found[1]))
        return await open_callback(redirect.headers["location"])

    return follow_redirect


async def test_a_trial_shows_who_would_be_signed_in(
    try_it: Fixture, follow: Fixture, browser: httpx2.AsyncClient, stores: Stores
) -> None:
    token = browser.cookies.get("token")
    answer = await follow(await try_it())
    assert answer.status_code == 200
    assert "<b>olga</b>" in answer.text
    assert "<b>Editor</b>" in answer.text
    # Nothing is saved, and the session stays that of the administrator.
    assert not (await stores.projects.get("shop")).HasField("sso")
    assert "token=" not in answer.headers.get("set-cookie", "")
    assert browser.cookies.get("token") != "" != token


async def test_a_trial_shows_why_it_fails(
    try_it: Fixture, follow: Fixture, oidc: OidcServer
) -> None:
    oidc.claims = {"preferred_username": "olga"}
    answer = await follow(await try_it())
    assert "It does not work yet" in answer.text
    assert "no role found in claims" in answer.text.lower()
    assert "ask for the scope that adds it, such as groups" in answer.text
    # Which claims there are tells what to enter.
    assert "it sent the claims" in answer.text
    assert "preferred_username" in answer.text
    # That is who reads it.
    assert "ask an administrator" not in answer.text


async def test_a_trial_says_what_to_change_for_a_name(
    try_it: Fixture, follow: Fixture, oidc: OidcServer
) -> None:
    oidc.claims = {"sub": "1", "roles": ["Editor"]}
    text = (await follow(await try_it())).text
    # What upstream's clients know the reason by says nothing here.
    assert "Unable to find user" not in text
    assert "None of the claims" in text
    assert "ask for a scope that adds one, such as profile" in text


async def test_a_trial_names_the_roles_that_were_sent(
    try_it: Fixture, follow: Fixture, oidc: OidcServer
) -> None:
    oidc.claims = {"preferred_username": "olga", "groups": ["cooks", "<b>Admin</b>"]}
    text = (await follow(await try_it())).text
    assert "it sent cooks, &lt;b&gt;Admin&lt;/b&gt;" in text


async def test_a_trial_asks_the_provider_anew(
    try_it: Fixture, follow: Fixture, oidc: OidcServer
) -> None:
    assert "It works" in (await follow(await try_it())).text
    oidc.discovery = {"issuer": "https://other.example"}
    answer = await try_it()
    assert answer.status_code == 422
    assert "calls itself" in answer.text


@pytest.mark.parametrize("issuer", ["http://127.0.0.1:1", "nonsense"])
async def test_settings_that_cannot_work_keep_the_form_of_the_other_tab(
    issuer: str, try_it: Fixture
) -> None:
    answer = await try_it(issuer=issuer)
    assert answer.status_code == 422
    assert "It does not work yet" in answer.text
    # A second form would have lost the secret.
    assert '<form method="post" action="/settings/project/sso' not in answer.text


async def test_the_stored_secret_is_used_but_not_sent_elsewhere(
    try_it: Fixture, follow: Fixture, configure_sso: Fixture, oidc_config: Fixture
) -> None:
    await configure_sso(oidc_config())
    answer = await follow(await try_it(client_id="", client_secret=""))
    assert "It works" in answer.text
    moved = await try_it(client_id="", client_secret="", issuer="https://other.example")
    assert moved.status_code == 422
    assert "Enter the client secret again" in moved.text


async def test_the_state_of_a_trial_signs_nobody_in(
    try_it: Fixture,
    browser: httpx2.AsyncClient,
    open_callback: Fixture,
    configure_sso: Fixture,
    oidc_config: Fixture,
) -> None:
    # The same settings are saved, so that only the purpose differs.
    await configure_sso(oidc_config())
    answer = await try_it()
    found = re.search(r'content="0;url=([^"]+)"', answer.text)
    assert found
    async with httpx2.AsyncClient() as client:
        redirect = await client.get(unescape(found[1]))
    del browser.cookies["sso_trial"]
    callback = await open_callback(redirect.headers["location"])
    assert callback.status_code == 303
    assert "token=" not in callback.headers["set-cookie"]


async def test_a_sign_in_beside_a_trial_is_a_sign_in(
    try_it: Fixture, sign_in_with_oidc: Fixture, configure_sso: Fixture, oidc_config: Fixture
) -> None:
    await configure_sso(oidc_config())
    await try_it()
    answer = await sign_in_with_oidc()
    assert answer.status_code == 302
    assert "token=" in answer.headers["set-cookie"]


async def test_changed_settings_of_a_trial_are_refused(
    try_it: Fixture, browser: httpx2.AsyncClient, follow: Fixture
) -> None:
    answer = await try_it()
    del browser.cookies["sso_trial"]
    browser.cookies.set("sso_trial", "bm9uc2Vuc2U=")
    assert (await follow(answer)).status_code == 303


async def test_only_those_who_may_change_the_settings_can_try_them(
    try_it: Fixture, viewer: User
) -> None:
    assert (await try_it(viewer)).status_code == 403
