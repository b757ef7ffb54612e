# SPDX-License-Identifier: Apache-2.0
"""The way to a provider and back: states, cookies, refusals, and where it ends."""

import re
from collections.abc import Awaitable, Callable
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

Way = Callable[..., Any]
SignedIn = Callable[[Any], Awaitable[User]]
Refusal = Callable[[Any], str]
CookieOf = Callable[[Any, str], str]
KEY = b"0123456789abcdef0123456789abcdef\n"


async def test_the_cookies_of_a_whole_way(
    trust: Way, by_oidc: Way, browser: Any, through_oidc: Way, cookie_of: CookieOf
) -> None:
    await trust(by_oidc(hours=12))
    left = await browser.post("/auth/login", data={"project": "shop"})
    state = cookie_of(left, "state")
    assert re.fullmatch(r"state=[0-9a-f]+; Path=/; Max-Age=1800; SameSite=Lax; HttpOnly", state)
    answer = await through_oidc()
    token = cookie_of(answer, "token")
    assert token.endswith("; Path=/; Max-Age=43200; SameSite=Lax; HttpOnly")
    assert cookie_of(answer, "state") == "state=; Path=/; Max-Age=0; SameSite=Strict; HttpOnly"
    assert (await browser.get("/applications")).status_code == 200


@pytest.mark.parametrize(("hours", "lasts"), [(0, 168), (1, 1), (400, 400)])
async def test_a_session_lasts_as_long_as_the_project_says(
    *,
    trust: Way,
    by_oidc: Way,
    through_oidc: Way,
    cookie_of: CookieOf,
    now: Now,
    hours: int,
    lasts: int,
) -> None:
    await trust(by_oidc(hours=hours))
    token = cookie_of(await through_oidc(), "token").split(";")[0].partition("=")[2]
    found = session.verify(token, KEY, now())
    assert found.expires_at - found.issued_at == lasts * 3600


async def test_cookies_are_for_tls_unless_they_may_be_insecure(
    cases: UseCases, bus: MemoryBus, settings: SsoSettings, now: Now, trust: Way, by_oidc: Way
) -> None:
    await trust(by_oidc())
    pages = create_console(cases, bus, insecure_cookie=False, sso=settings, now=now)
    transport = httpx2.ASGITransport(app=pages)
    async with (
        httpx2.AsyncClient(transport=transport, base_url="https://cd.example") as browser,
        httpx2.AsyncClient() as outside,
    ):
        left = await browser.post("/auth/login", data={"project": "shop"})
        away = await outside.get(left.headers["location"])
        back = away.headers["location"].replace("https://pipecd.example", "https://cd.example")
        answer = await browser.get(back)
    cookies = [*left.headers.get_list("set-cookie"), *answer.headers.get_list("set-cookie")]
    assert any(cookie.startswith("token=ey") for cookie in cookies)
    assert all(cookie.endswith("; Secure") for cookie in cookies)


async def test_a_deep_link_survives_the_way(
    trust: Way, by_oidc: Way, browser: Any, come_back: Way, cookie_of: CookieOf
) -> None:
    await trust(by_oidc())
    page = (await browser.get("/login?project=shop&return=/deployments/1%3Fa%3Db")).text
    form = re.search(r'<form method="post" action="/auth/login".*?</form>', page, re.S)
    assert form
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form[0]))
    assert fields == {"project": "shop", "return": "/deployments/1?a=b"}
    # A page leads on, because the policy of our pages holds redirects of forms to this host.
    led = await browser.post("/auth/login", data=fields)
    assert led.status_code == 200
    url = re.search(r'content="0;url=([^"]+)"', led.text)
    assert url
    async with httpx2.AsyncClient() as outside:
        away = await outside.get(url[1].replace("&amp;", "&"))
    answer = await come_back(away.headers["location"])
    assert (answer.status_code, answer.headers["location"]) == (302, "/deployments/1?a=b")
    assert cookie_of(answer, "return").startswith("return=; Path=/; Max-Age=0")


async def test_nobody_is_led_to_another_host(
    trust: Way, by_oidc: Way, browser: Any, leave: Way, come_back: Way
) -> None:
    await trust(by_oidc())
    url, _ = await leave()
    browser.cookies.set("return", "//evil.example")
    async with httpx2.AsyncClient() as outside:
        away = await outside.get(url)
    assert (await come_back(away.headers["location"])).headers["location"] == "/"


async def test_a_shared_sign_in_serves_projects_that_name_it(
    *,
    trust: Way,
    by_oidc: Way,
    shared: dict[str, ProjectSSOConfig],
    through_oidc: Way,
    signed_in: SignedIn,
    browser: Any,
    refusal: Refusal,
) -> None:
    shared["idp"] = by_oidc(hours=3)
    await trust(shared_sso_name="idp")
    assert (await signed_in(await through_oidc())).name == "olga"
    await trust(shared_sso_name="lost")
    told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
    assert told == "Invalid SSO configuration: not found shared sso configuration lost"


async def test_the_secrets_of_github_are_read_with_the_key_they_were_sealed_with(
    trust: Way, by_github: Way, browser: Any, refusal: Refusal, stores: Stores
) -> None:
    await trust(by_github(), allow_stray_as_viewer=True)
    assert (await stores.projects.get("shop")).sso.github.client_id != "client"

    def spoil(project: Any) -> None:
        project.sso.github.client_secret = "c2hvcnQ="

    await stores.projects.update("shop", spoil)
    told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
    assert told == "Failed to decrypt SSO configuration"


@pytest.mark.parametrize(
    ("form", "told"),
    [
        pytest.param({}, "Missing project id", id="no project"),
        pytest.param(
            {"project": "nowhere"}, "Unable to find project nowhere", id="an unknown project"
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
    browser: Any, refusal: Refusal, form: dict[str, str], told: str
) -> None:
    answer = await browser.post("/auth/login", data=form)
    assert refusal(answer) == told
    assert answer.headers["location"] == "/"


async def test_our_own_form_is_shown_again_with_what_is_wrong(browser: Any) -> None:
    form = {"project": "shop", "return": "/deployments"}
    answer = await browser.post("/auth/login", data=form)
    assert answer.status_code == 303
    page = await browser.get(answer.headers["location"])
    assert "This project has no single sign-on." in page.text
    assert 'name="project" type="text" value="shop"' in page.text
    assert 'name="return" value="/deployments"' in page.text


async def test_a_link_does_not_begin_a_sign_in(browser: Any, refusal: Refusal) -> None:
    assert refusal(await browser.get("/auth/login?project=shop")) == "Method not allowed"


async def test_a_page_of_another_site_does_not_begin_a_sign_in(
    trust: Way, by_oidc: Way, browser: Any
) -> None:
    await trust(by_oidc())
    answer = await browser.post(
        "/auth/login", data={"project": "shop"}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_a_missing_state_key_is_told_in_words(
    cases: UseCases, bus: MemoryBus, trust: Way, by_oidc: Way, refusal: Refusal
) -> None:
    await trust(by_oidc())
    pages = create_console(cases, bus, insecure_cookie=True, sso=SsoSettings("http://x", "", KEY))
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as browser:
        told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
        assert told.startswith("Invalid SSO configuration: ")
        assert "state key" in told
        back = await browser.get("/auth/callback?state=00:shop&code=c")
        assert refusal(back) == "Unauthorized access"


async def test_a_missing_address_is_told_in_words(
    cases: UseCases, bus: MemoryBus, trust: Way, by_oidc: Way, refusal: Refusal
) -> None:
    await trust(by_oidc())
    pages = create_console(cases, bus, insecure_cookie=True, sso=SsoSettings("", "s", KEY))
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as browser:
        told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
        assert told.endswith("spec.address of the control plane is not set")
        await trust(by_oidc(redirect_uri="http://x/auth/callback"))
        answer = await browser.post("/auth/login", data={"project": "shop"})
        assert answer.status_code == 302


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({"state": ""}, "Failed to parse state", id="no state"),
        pytest.param({"state": "STATE"}, "Failed to parse state", id="no project"),
        pytest.param({"state": "ff:shop"}, "Unauthorized access", id="a state that is not ours"),
        pytest.param({"cookie": ""}, "Unauthorized access", id="no cookie"),
        pytest.param({"cookie": "ff"}, "Unauthorized access", id="the cookie of another browser"),
        pytest.param({"code": ""}, "Missing auth code", id="no code"),
        pytest.param(
            {"code": "", "error": "access_denied"},
            "Missing auth code: access_denied",
            id="a refusal of the person",
        ),
        pytest.param(
            {"code": "", "error": "<b>call 555</b>"}, "Missing auth code", id="words of anybody"
        ),
        pytest.param(
            {"state": "STATE:nowhere"}, "Unable to find project nowhere", id="another project"
        ),
        pytest.param(
            {"code": "stale"},
            "Unable to find user: the provider refused the sign-in: unknown code",
            id="a code that the provider does not know",
        ),
    ],
)
async def test_nobody_comes_in_with(
    *,
    trust: Way,
    by_oidc: Way,
    leave: Way,
    browser: Any,
    refusal: Refusal,
    cookie_of: CookieOf,
    change: dict[str, str],
    told: str,
) -> None:
    await trust(by_oidc())
    _, asked = await leave()
    ours = asked["state"].partition(":")[0]
    query = {"state": "STATE:shop", "code": "code", **change}
    query["state"] = query["state"].replace("STATE", ours)
    cookie = query.pop("cookie", ours)
    browser.cookies.clear()
    answer = await browser.get(
        "/auth/callback", params=query, headers={"Cookie": f"state={cookie}"}
    )
    assert refusal(answer) == told
    # The way back began at another site, where a strict cookie would stay behind.
    assert "SameSite=Lax" in cookie_of(answer, "error")
    assert answer.headers["location"] == "/"


async def test_a_state_is_good_for_a_day(
    trust: Way,
    by_oidc: Way,
    leave: Way,
    browser: Any,
    refusal: Refusal,
    advance: Callable[[float], None],
) -> None:
    await trust(by_oidc())
    _, asked = await leave()
    query = {"state": asked["state"], "code": "stale"}
    headers = {"Cookie": f"state={asked['state'].partition(':')[0]}"}
    browser.cookies.clear()
    advance(timedelta(hours=23).total_seconds())
    told = refusal(await browser.get("/auth/callback", params=query, headers=headers))
    assert told.startswith("Unable to find user")
    advance(timedelta(hours=1).total_seconds())
    told = refusal(await browser.get("/auth/callback", params=query, headers=headers))
    assert told == "Unauthorized access"


async def test_what_upstream_has_named_but_never_built_is_refused_in_words(
    shared: dict[str, ProjectSSOConfig], trust: Way, browser: Any, refusal: Refusal
) -> None:
    shared["google"] = ProjectSSOConfig(provider=ProjectSSOConfig.GOOGLE)
    await trust(shared_sso_name="google")
    told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
    assert told == "Invalid SSO configuration: provider GOOGLE is not supported"


async def test_too_many_trips_have_to_wait(
    trust: Way, browser: Any, refusal: Refusal, advance: Callable[[float], None]
) -> None:
    await trust()
    for _ in range(60):
        await browser.post("/auth/login", data={"project": "shop"})
    told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
    assert told == "Too many attempts to login"
    advance(61)
    told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
    assert told.startswith("Invalid SSO configuration")
