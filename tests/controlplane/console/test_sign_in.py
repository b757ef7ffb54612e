# SPDX-License-Identifier: Apache-2.0
"""Signing in with a password, redirects, and signing out."""

import httpx2
import pytest

from pipecd.controlplane.auth.request_origin import parse_trusted_proxies
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.console.page_context import safe_return
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from servers.console import OpenBrowser

PASSWORD_ENDPOINT = "/auth/login/static"


def form(admin: StaticAdmin, **changes: str) -> dict[str, str]:
    return {
        "project": "shop",
        "username": admin.username,
        "password": admin.password,
        "return": "",
        **changes,
    }


async def test_the_front_page_without_a_session_is_the_sign_in_page(
    open_browser: OpenBrowser,
) -> None:
    response = await open_browser().get("/")
    assert response.status_code == 200
    assert 'data-page="login"' in response.text


async def test_a_correct_password_sets_a_strict_session_cookie(
    open_browser: OpenBrowser, static_admin: StaticAdmin
) -> None:
    client = open_browser()
    response = await client.post(PASSWORD_ENDPOINT, data=form(static_admin))
    assert (response.status_code, response.headers["location"]) == (302, "/")
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("token=")
    assert "Path=/; Max-Age=604800; SameSite=Strict; HttpOnly" in cookie
    assert "Secure" not in cookie
    home = await client.get("/")
    assert (home.status_code, home.headers["location"]) == (302, "/overview")
    assert (await client.get("/applications")).status_code == 200


async def test_the_session_cookie_is_secure_by_default(
    cases: UseCases, bus: MemoryBus, static_admin: StaticAdmin
) -> None:
    pages = create_console(cases, bus, insecure_cookie=False)
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url="https://cd.example") as client:
        response = await client.post(PASSWORD_ENDPOINT, data=form(static_admin))
    assert "Secure" in response.headers["set-cookie"]
    assert response.headers["strict-transport-security"] == "max-age=31536000"


async def test_a_deep_link_survives_signing_in(
    open_browser: OpenBrowser, static_admin: StaticAdmin
) -> None:
    client = open_browser()
    deep_link = "/deployments?status=2&q=a%20b"
    redirect = await client.get(deep_link)
    assert redirect.status_code == 303
    page = await client.get(redirect.headers["location"])
    assert 'name="return" value="/deployments?status=2&amp;q=a%20b"' in page.text
    response = await client.post(
        PASSWORD_ENDPOINT, data=form(static_admin, **{"return": deep_link})
    )
    assert response.headers["location"] == deep_link


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("//evil.example", id="another host"),
        pytest.param("/\\evil.example", id="another host with a backslash"),
        pytest.param("https://evil.example/", id="a whole address"),
        pytest.param("applications", id="no path"),
        pytest.param("/a\r\nSet-Cookie: x=y", id="a line end"),
        pytest.param("/" + "a" * 3000, id="too long"),
        pytest.param("", id="nothing"),
    ],
)
async def test_there_are_no_open_redirects(
    path: str, open_browser: OpenBrowser, static_admin: StaticAdmin
) -> None:
    assert safe_return(path) == ""
    response = await open_browser().post(
        PASSWORD_ENDPOINT, data=form(static_admin, **{"return": path})
    )
    assert response.headers["location"] == "/"


@pytest.mark.parametrize(
    ("changes", "text", "field"),
    [
        pytest.param(
            {"password": "wrong"},
            "The project, the username or the password is wrong.",
            "password",
            id="a wrong password",
        ),
        pytest.param(
            {"project": "nowhere"},
            "The project, the username or the password is wrong.",
            "password",
            id="an unknown project",
        ),
        pytest.param({"username": ""}, "Enter your username.", "username", id="no username"),
        pytest.param(
            {"project": ""}, "Enter the name of your project.", "project", id="no project"
        ),
    ],
)
async def test_errors_are_shown_beside_the_field(
    changes: dict[str, str],
    text: str,
    field: str,
    open_browser: OpenBrowser,
    static_admin: StaticAdmin,
) -> None:
    response = await open_browser().post(PASSWORD_ENDPOINT, data=form(static_admin, **changes))
    assert response.status_code == 422
    assert text in response.text
    assert 'role="alert"' in response.text
    before, _, _ = response.text.partition('aria-invalid="true"')
    assert before.rfind(f'id="{field}"') > before.rfind("<input") > 0
    if field != "username":
        assert f'value="{static_admin.username}"' in response.text
    assert "set-cookie" not in response.headers


@pytest.mark.usefixtures("single_sign_on")
async def test_a_disabled_static_admin_cannot_sign_in(
    open_browser: OpenBrowser, static_admin: StaticAdmin, cases: UseCases, admin: User
) -> None:
    await cases.projects.disable_static_admin(by=admin)
    response = await open_browser().post(PASSWORD_ENDPOINT, data=form(static_admin))
    assert "does not allow signing in with a password" in response.text


async def test_other_clients_get_errors_in_a_cookie_as_upstream(
    open_browser: OpenBrowser, static_admin: StaticAdmin
) -> None:
    fields = form(static_admin, password="wrong")
    del fields["return"]
    response = await open_browser().post(PASSWORD_ENDPOINT, data=fields)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"]
    assert cookie == 'error="Unable to login"; Path=/; Max-Age=600; SameSite=Strict'


async def test_the_error_cookie_is_shown_once(open_browser: OpenBrowser) -> None:
    client = open_browser()
    response = await client.get("/login", headers={"Cookie": 'error="Missing auth code"'})
    assert "Missing auth code" in response.text
    assert "error=; Path=/; Max-Age=0" in response.headers["set-cookie"]


async def test_attempts_are_throttled(open_browser: OpenBrowser, static_admin: StaticAdmin) -> None:
    client = open_browser()
    for _ in range(10):
        await client.post(PASSWORD_ENDPOINT, data=form(static_admin, password="wrong"))
    response = await client.post(PASSWORD_ENDPOINT, data=form(static_admin))
    assert "Too many attempts. Wait a minute, then try again." in response.text


async def test_attempts_are_throttled_across_usernames(
    open_browser: OpenBrowser, static_admin: StaticAdmin
) -> None:
    client = open_browser()
    for n in range(10):
        await client.post(PASSWORD_ENDPOINT, data=form(static_admin, username=f"guess-{n}"))
    response = await client.post(PASSWORD_ENDPOINT, data=form(static_admin))
    assert "Too many attempts. Wait a minute, then try again." in response.text


async def test_behind_a_proxy_clients_are_throttled_separately(
    cases: UseCases, bus: MemoryBus, static_admin: StaticAdmin
) -> None:
    here = create_console(
        cases, bus, insecure_cookie=True, proxies=parse_trusted_proxies(["127.0.0.1"])
    )
    transport = httpx2.ASGITransport(here, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as browser:

        async def attempt(address: str, name: str) -> str:
            wrong = form(static_admin, username=name, password="wrong")
            response = await browser.post(
                PASSWORD_ENDPOINT, data=wrong, headers={"X-Forwarded-For": address}
            )
            return response.text

        for n in range(10):
            assert "password is wrong" in await attempt("1.2.3.4", f"user {n}")
        assert "Too many attempts" in await attempt("1.2.3.4", "user 10")
        assert "password is wrong" in await attempt("5.6.7.8", "user 11")


async def test_a_form_of_another_site_is_rejected(
    open_browser: OpenBrowser, static_admin: StaticAdmin
) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        response = await open_browser().post(
            PASSWORD_ENDPOINT, data=form(static_admin), headers=headers
        )
        assert response.status_code == 403
        assert "set-cookie" not in response.headers


async def test_signing_out_ends_the_session(admin_browser: httpx2.AsyncClient) -> None:
    response = await admin_browser.post("/auth/logout")
    assert (response.status_code, response.headers["location"]) == (302, "/")
    assert response.headers.get_list("set-cookie")[0].startswith("token=; Path=/; Max-Age=0")
    assert (await admin_browser.get("/applications")).status_code == 303


async def test_a_signed_in_user_is_redirected(
    admin_browser: httpx2.AsyncClient,
) -> None:
    response = await admin_browser.get("/login?return=/deployments")
    assert (response.status_code, response.headers["location"]) == (302, "/deployments")


async def test_a_link_from_another_site_redirects_once_to_get_the_cookie(
    open_browser: OpenBrowser,
) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    response = await open_browser().get("/deployments/1?x=%22%3E", headers=headers)
    assert response.status_code == 200
    assert 'content="0;url=/deployments/1?x=%22%3E"' in response.text


async def test_a_forged_token_is_rejected(open_browser: OpenBrowser) -> None:
    response = await open_browser().get("/applications", headers={"Cookie": "token=a.b.c"})
    assert response.status_code == 303
