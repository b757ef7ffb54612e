# SPDX-License-Identifier: Apache-2.0
"""The redirect to the provider and the callback: state, cookies, errors and return paths."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.model.clock import Now
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.secrets import session

Fixture = Callable[..., Any]
SignedIn = Callable[[Any], Awaitable[User]]
ErrorMessage = Callable[[Any], str]
CookieOf = Callable[[Any, str], str]
KEY = b"0123456789abcdef0123456789abcdef\n"


async def test_the_cookies_of_a_sign_in(
    configure_sso: Fixture,
    oidc_config: Fixture,
    browser: Any,
    sign_in_with_oidc: Fixture,
    cookie_of: CookieOf,
) -> None:
    await configure_sso(oidc_config(hours=12))
    redirect = await browser.post("/auth/login", data={"project": "shop"})
    state = cookie_of(redirect, "state")
    assert re.fullmatch(r"state=[\w-]{43}; Path=/; Max-Age=1800; SameSite=Lax; HttpOnly", state)
    answer = await sign_in_with_oidc()
    token = cookie_of(answer, "token")
    assert token.endswith("; Path=/; Max-Age=43200; SameSite=Lax; HttpOnly")
    assert cookie_of(answer, "state") == "state=; Path=/; Max-Age=0; SameSite=Strict; HttpOnly"
    assert (await browser.get("/applications")).status_code == 200


@pytest.mark.parametrize(("hours", "expected_hours"), [(0, 168), (1, 1), (400, 400)])
async def test_a_session_lasts_as_long_as_configured(
    *,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    cookie_of: CookieOf,
    now: Now,
    hours: int,
    expected_hours: int,
) -> None:
    await configure_sso(oidc_config(hours=hours))
    token = cookie_of(await sign_in_with_oidc(), "token").split(";")[0].partition("=")[2]
    verified = session.verify(token, KEY, now())
    assert verified.expires_at - verified.issued_at == expected_hours * 3600


async def test_cookies_are_secure_without_insecure_cookie(
    cases: UseCases,
    bus: MemoryBus,
    settings: SsoSettings,
    now: Now,
    configure_sso: Fixture,
    oidc_config: Fixture,
) -> None:
    await configure_sso(oidc_config())
    pages = create_console(cases, bus, insecure_cookie=False, sso=settings, now=now)
    transport = httpx2.ASGITransport(app=pages)
    async with (
        httpx2.AsyncClient(transport=transport, base_url="https://cd.example") as browser,
        httpx2.AsyncClient() as client,
    ):
        begin = await browser.post("/auth/login", data={"project": "shop"})
        redirect = await client.get(begin.headers["location"])
        callback = redirect.headers["location"].replace(
            "https://pipecd.example", "https://cd.example"
        )
        answer = await browser.get(callback)
    cookies = [*begin.headers.get_list("set-cookie"), *answer.headers.get_list("set-cookie")]
    assert any(cookie.startswith("token=ey") for cookie in cookies)
    assert all(cookie.endswith("; Secure") for cookie in cookies)


async def test_a_deep_link_is_opened_after_the_sign_in(
    configure_sso: Fixture,
    oidc_config: Fixture,
    browser: Any,
    open_callback: Fixture,
    cookie_of: CookieOf,
) -> None:
    await configure_sso(oidc_config())
    page = (await browser.get("/login?project=shop&return=/deployments/1%3Fa%3Db")).text
    form = re.search(r'<form method="post" action="/auth/login".*?</form>', page, re.S)
    assert form
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form[0]))
    assert fields == {"project": "shop", "return": "/deployments/1?a=b"}
    # A page redirects, because the form-action policy of our pages allows only this host.
    page = await browser.post("/auth/login", data=fields)
    assert page.status_code == 200
    url = re.search(r'content="0;url=([^"]+)"', page.text)
    assert url
    async with httpx2.AsyncClient() as client:
        redirect = await client.get(url[1].replace("&amp;", "&"))
    answer = await open_callback(redirect.headers["location"])
    assert (answer.status_code, answer.headers["location"]) == (302, "/deployments/1?a=b")
    assert cookie_of(answer, "return").startswith("return=; Path=/; Max-Age=0")


async def test_a_return_path_to_another_host_is_ignored(
    configure_sso: Fixture,
    oidc_config: Fixture,
    browser: Any,
    begin_sign_in: Fixture,
    open_callback: Fixture,
) -> None:
    await configure_sso(oidc_config())
    url, _ = await begin_sign_in()
    browser.cookies.set("return", "//evil.example")
    async with httpx2.AsyncClient() as client:
        redirect = await client.get(url)
    assert (await open_callback(redirect.headers["location"])).headers["location"] == "/"


async def test_a_shared_configuration_is_used_by_projects_that_name_it(
    *,
    configure_sso: Fixture,
    oidc_config: Fixture,
    shared: dict[str, ProjectSSOConfig],
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
    browser: Any,
    error_message: ErrorMessage,
) -> None:
    shared["idp"] = oidc_config(hours=3)
    await configure_sso(shared_sso_name="idp")
    assert (await signed_in(await sign_in_with_oidc())).name == "olga"
    await configure_sso(shared_sso_name="lost")
    message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
    assert message == "Invalid SSO configuration: not found shared sso configuration lost"


async def test_secrets_of_github_are_stored_encrypted(
    configure_sso: Fixture,
    github_config: Fixture,
    browser: Any,
    error_message: ErrorMessage,
    stores: Stores,
) -> None:
    await configure_sso(github_config(), allow_stray_as_viewer=True)
    assert (await stores.projects.get("shop")).sso.github.client_id != "client"

    def corrupt(project: Any) -> None:
        project.sso.github.client_secret = "c2hvcnQ="

    await stores.projects.update("shop", corrupt)
    message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
    assert message == "Failed to decrypt SSO configuration"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        pytest.param({}, "Missing project id", id="no project"),
        pytest.param(
            {"project": "nowhere"},
            "Invalid SSO configuration: missing SSO configuration in project data",
            id="an unknown project",
        ),
        pytest.param(
            {"project": "shop"},
            "Invalid SSO configuration: missing SSO configuration in project data",
            id="a project without a provider",
        ),
        pytest.param(
            {"project": "declared"},
            "Invalid SSO configuration: missing SSO configuration in project data",
            id="a project of the configuration file",
        ),
    ],
)
async def test_a_sign_in_does_not_begin_for(
    browser: Any, error_message: ErrorMessage, form: dict[str, str], message: str
) -> None:
    answer = await browser.post("/auth/login", data=form)
    assert error_message(answer) == message
    assert answer.headers["location"] == "/"


async def test_the_sign_in_form_is_shown_again_with_the_error(browser: Any) -> None:
    form = {"project": "shop", "return": "/deployments"}
    answer = await browser.post("/auth/login", data=form)
    assert answer.status_code == 303
    page = await browser.get(answer.headers["location"])
    assert "There is no single sign-on for this project." in page.text
    assert 'name="project" type="text" value="shop"' in page.text
    assert 'name="return" value="/deployments"' in page.text


async def test_a_link_does_not_begin_a_sign_in(browser: Any, error_message: ErrorMessage) -> None:
    assert error_message(await browser.get("/auth/login?project=shop")) == "Method not allowed"


async def test_a_page_of_another_site_does_not_begin_a_sign_in(
    configure_sso: Fixture, oidc_config: Fixture, browser: Any
) -> None:
    await configure_sso(oidc_config())
    answer = await browser.post(
        "/auth/login", data={"project": "shop"}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_a_missing_state_key_is_reported(
    cases: UseCases,
    bus: MemoryBus,
    configure_sso: Fixture,
    oidc_config: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(oidc_config())
    pages = create_console(cases, bus, insecure_cookie=True, sso=SsoSettings("http://x", "", KEY))
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as browser:
        message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
        assert message.startswith("Invalid SSO configuration: ")
        assert "state key" in message
        callback = await browser.get("/auth/callback?state=00:shop&code=c")
        assert error_message(callback) == "Unauthorized access"


async def test_a_missing_address_is_reported(
    *,
    cases: UseCases,
    bus: MemoryBus,
    settings: SsoSettings,
    configure_sso: Fixture,
    oidc_config: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(oidc_config())
    without_address = replace(settings, address="")
    pages = create_console(cases, bus, insecure_cookie=True, sso=without_address)
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as browser:
        message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
        assert message.endswith("spec.address of the control plane is not set")
        await configure_sso(oidc_config(redirect_uri="http://x/auth/callback"))
        answer = await browser.post("/auth/login", data={"project": "shop"})
        assert answer.status_code == 302


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"state": ""}, "Failed to parse state", id="no state"),
        pytest.param({"state": "STATE"}, "Failed to parse state", id="no project"),
        pytest.param({"state": "ff:shop"}, "Unauthorized access", id="a forged state"),
        pytest.param({"cookie": ""}, "Unauthorized access", id="no cookie"),
        pytest.param({"cookie": "ff"}, "Unauthorized access", id="the cookie of another browser"),
        pytest.param({"code": ""}, "Missing auth code", id="no code"),
        pytest.param(
            {"code": "", "error": "access_denied"},
            "Missing auth code: access_denied",
            id="a user who declines",
        ),
        pytest.param(
            {"code": "", "error": "<b>call 555</b>"},
            "Missing auth code",
            id="an unknown error code",
        ),
        pytest.param(
            {"state": "STATE:nowhere"}, "Unauthorized access", id="a project that does not exist"
        ),
        pytest.param(
            {"code": "stale"},
            "Unable to find user: the provider refused the sign-in: unknown code",
            id="an unknown code",
        ),
    ],
)
async def test_a_callback_is_rejected_with(
    *,
    configure_sso: Fixture,
    oidc_config: Fixture,
    begin_sign_in: Fixture,
    browser: Any,
    error_message: ErrorMessage,
    cookie_of: CookieOf,
    change: dict[str, str],
    message: str,
) -> None:
    await configure_sso(oidc_config())
    _, parameters = await begin_sign_in()
    query = {"state": "STATE:shop", "code": "code", **change}
    query["state"] = query["state"].replace("STATE", parameters["state"].partition(":")[0])
    cookie = query.pop("cookie", browser.cookies["state"])
    browser.cookies.clear()
    answer = await browser.get(
        "/auth/callback", params=query, headers={"Cookie": f"state={cookie}"}
    )
    assert error_message(answer) == message
    # The callback comes from another site, for which browsers do not send strict cookies.
    assert "SameSite=Lax" in cookie_of(answer, "error")
    assert answer.headers["location"] == "/"


async def test_a_state_is_valid_for_half_an_hour(
    configure_sso: Fixture,
    oidc_config: Fixture,
    begin_sign_in: Fixture,
    browser: Any,
    error_message: ErrorMessage,
    advance: Callable[[float], None],
) -> None:
    await configure_sso(oidc_config())
    _, parameters = await begin_sign_in()
    query = {"state": parameters["state"], "code": "stale"}
    headers = {"Cookie": f"state={browser.cookies['state']}"}
    browser.cookies.clear()
    advance(timedelta(minutes=29).total_seconds())
    message = error_message(await browser.get("/auth/callback", params=query, headers=headers))
    assert message.startswith("Unable to find user")
    advance(timedelta(minutes=1).total_seconds())
    message = error_message(await browser.get("/auth/callback", params=query, headers=headers))
    assert message == "Unauthorized access"


async def test_the_provider_google_is_not_supported(
    shared: dict[str, ProjectSSOConfig],
    configure_sso: Fixture,
    browser: Any,
    error_message: ErrorMessage,
) -> None:
    shared["google"] = ProjectSSOConfig(provider=ProjectSSOConfig.GOOGLE)
    await configure_sso(shared_sso_name="google")
    message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
    assert message == "Invalid SSO configuration: provider GOOGLE is not supported"


async def test_sign_in_attempts_are_throttled(
    configure_sso: Fixture,
    browser: Any,
    error_message: ErrorMessage,
    advance: Callable[[float], None],
) -> None:
    await configure_sso()
    for _ in range(60):
        await browser.post("/auth/login", data={"project": "shop"})
    message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
    assert message == "Too many attempts to login"
    advance(61)
    message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
    assert message.startswith("Invalid SSO configuration")
