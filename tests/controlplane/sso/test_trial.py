# SPDX-License-Identifier: Apache-2.0
"""Settings of single sign-on are tried before they are saved."""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.sso.provider import answer_hint, refusal_hint
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases, sso
from pipecd.controlplane.web import WebServer, http_server
from servers.certificates import self_signed
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


def shown(answer: httpx2.Response, name: str) -> str:
    """The text of an element of the page; empty without it."""
    found = re.search(rf'data-testid="{name}">(.*?)</p>', answer.text, re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", "", found[1])) if found else ""


@pytest.fixture
async def issuer_of(tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Starts an identity provider with a fault, and returns the issuer to enter."""
    async with AsyncExitStack() as started:

        async def start(fault: str) -> str:
            if fault == "unknown host":
                return "https://idp.invalid"
            if fault in ("refused", "silent", "untrusted"):
                tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if fault == "untrusted" else None
                if tls:
                    tls.load_cert_chain(*self_signed(tmp_path))
                port = await started.enter_async_context(_listening(tls))
                if fault == "refused":
                    await started.aclose()
                return f"{'https' if tls else 'http'}://127.0.0.1:{port}"
            pages = [Route("/{path:path}", _welcome)] if fault == "no JSON" else []
            web = WebServer(Starlette(routes=pages))
            port = await started.enter_async_context(http_server(web, host="127.0.0.1", port=0))
            started.push_async_callback(web.stop)
            return f"{'https' if fault == 'plain' else 'http'}://127.0.0.1:{port}"

        yield start


@asynccontextmanager
async def _listening(tls: ssl.SSLContext | None) -> AsyncGenerator[int, None]:
    """A server that accepts connections and never answers; yields its port."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(
        lambda _, writer: writers.append(writer), "127.0.0.1", 0, ssl=tls
    )
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in writers:
        writer.close()
    await server.wait_closed()


async def _welcome(_request: Request) -> Response:
    return PlainTextResponse("<h1>Welcome</h1>")


@pytest.mark.parametrize(
    ("fault", "reason", "hint"),
    [
        ("refused", "Cannot reach 127.0.0.1:", "check the host and the port of the URL"),
        ("unknown host", "does not resolve to a public address", "check the host name"),
        ("silent", "", "a firewall between them may drop the requests"),
        ("untrusted", "certificate verify failed", "let SSL_CERT_FILE name its certificate"),
        ("plain", "SSL", "whether it must begin with http:// or https://"),
        ("no document", "answered with status 404", "/.well-known/openid-configuration"),
        ("no JSON", "did not answer with JSON (status 200)", "check the addresses in the settings"),
    ],
)
async def test_a_provider_that_cannot_be_used_says_what_to_change(
    fault: str,
    reason: str,
    hint: str,
    *,
    try_it: Fixture,
    issuer_of: Callable[[str], Awaitable[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How long a provider may be silent is no part of what the page says.
    monkeypatch.setattr(sso, "_TIMEOUT_SECONDS", 1.0 if fault == "silent" else 10.0)
    answer = await try_it(issuer=await issuer_of(fault))
    assert answer.status_code == 422
    assert reason in shown(answer, "trial-reason")
    assert "Internal error" not in answer.text
    assert shown(answer, "trial-hint").startswith("What to change: ")
    assert hint in shown(answer, "trial-hint")


async def test_a_wrong_client_secret_says_what_to_change(try_it: Fixture, follow: Fixture) -> None:
    answer = await follow(await try_it(client_secret="wrong"))
    assert "refused the sign-in" in shown(answer, "trial-reason")
    assert "check the client ID and the client secret" in shown(answer, "trial-hint")


async def test_the_hint_of_the_issuer_is_shown(try_it: Fixture, oidc: OidcServer) -> None:
    oidc.discovery = {"issuer": "https://other.example"}
    assert "exactly as the provider calls itself" in shown(await try_it(), "trial-hint")


@pytest.mark.parametrize(
    ("status", "error", "hint"),
    [
        (401, "", "client secret"),
        (200, "incorrect_client_credentials", "client secret"),
        (400, "invalid_grant", "callback address"),
        (400, "", "the log of the provider"),
    ],
)
def test_a_refused_code_has_a_hint(status: int, error: str, hint: str) -> None:
    assert hint in refusal_hint(status, error)


@pytest.mark.parametrize(
    ("status", "hint"),
    [(503, "try again later"), (403, "what the client may read"), (302, "the issuer first")],
)
def test_an_unexpected_answer_names_the_request_without_its_credentials(
    status: int, hint: str
) -> None:
    text = answer_hint(status, "https://me:secret@idp.example/keys?token=secret")
    assert hint in text
    assert "https://idp.example/keys" in text
    assert "secret@" not in text
    assert "token=" not in text


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
