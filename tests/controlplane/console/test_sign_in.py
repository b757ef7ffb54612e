# SPDX-License-Identifier: Apache-2.0
"""Signing in, being led back, signing out."""

from collections.abc import Callable

import httpx2
import pytest

from pipecd.controlplane.auth.request_origin import parse_networks
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.console.page_context import safe_return
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin

Someone = Callable[..., httpx2.AsyncClient]
ENTER = "/auth/login/static"


def form(admin: StaticAdmin, **changes: str) -> dict[str, str]:
    return {
        "project": "shop",
        "username": admin.username,
        "password": admin.password,
        "return": "",
        **changes,
    }


async def test_the_front_page_of_a_stranger_is_the_sign_in(someone: Someone) -> None:
    answer = await someone().get("/")
    assert answer.status_code == 200
    assert 'data-page="login"' in answer.text


async def test_a_good_password_opens_a_strict_session(
    someone: Someone, static_admin: StaticAdmin
) -> None:
    client = someone()
    answer = await client.post(ENTER, data=form(static_admin))
    assert (answer.status_code, answer.headers["location"]) == (302, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("token=")
    assert "Path=/; Max-Age=604800; SameSite=Strict; HttpOnly" in cookie
    assert "Secure" not in cookie
    home = await client.get("/")
    assert (home.status_code, home.headers["location"]) == (302, "/applications")
    assert (await client.get("/applications")).status_code == 200


async def test_a_session_is_for_tls_unless_cookies_may_be_insecure(
    cases: UseCases, bus: MemoryBus, static_admin: StaticAdmin
) -> None:
    pages = create_console(cases, bus, insecure_cookie=False)
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url="https://cd.example") as client:
        answer = await client.post(ENTER, data=form(static_admin))
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


async def test_a_deep_link_leads_through_the_sign_in_and_back(
    someone: Someone, static_admin: StaticAdmin
) -> None:
    client = someone()
    wanted = "/deployments?status=2&q=a%20b"
    away = await client.get(wanted)
    assert away.status_code == 303
    page = await client.get(away.headers["location"])
    assert 'name="return" value="/deployments?status=2&amp;q=a%20b"' in page.text
    answer = await client.post(ENTER, data=form(static_admin, **{"return": wanted}))
    assert answer.headers["location"] == wanted


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
async def test_nobody_is_sent_to_another_site(
    path: str, someone: Someone, static_admin: StaticAdmin
) -> None:
    assert safe_return(path) == ""
    answer = await someone().post(ENTER, data=form(static_admin, **{"return": path}))
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    ("changes", "text", "field"),
    [
        pytest.param(
            {"password": "wrong"},
            "The username or the password is wrong.",
            "password",
            id="a wrong password",
        ),
        pytest.param(
            {"project": "nowhere"},
            "Unable to find project: nowhere.",
            "project",
            id="an unknown project",
        ),
        pytest.param({"username": ""}, "Enter your username.", "username", id="no username"),
        pytest.param(
            {"project": ""}, "Enter the name of your project.", "project", id="no project"
        ),
    ],
)
async def test_what_is_wrong_is_said_beside_the_field(
    changes: dict[str, str], text: str, field: str, someone: Someone, static_admin: StaticAdmin
) -> None:
    answer = await someone().post(ENTER, data=form(static_admin, **changes))
    assert answer.status_code == 422
    assert text in answer.text
    assert 'role="alert"' in answer.text
    before, _, _ = answer.text.partition('aria-invalid="true"')
    assert before.rfind(f'id="{field}"') > before.rfind("<input") > 0
    if field != "username":
        assert f'value="{static_admin.username}"' in answer.text
    assert "set-cookie" not in answer.headers


async def test_a_disabled_administrator_is_told_so(
    someone: Someone, static_admin: StaticAdmin, cases: UseCases, admin: User
) -> None:
    await cases.projects.disable_static_admin(by=admin)
    answer = await someone().post(ENTER, data=form(static_admin))
    assert "does not allow signing in with a password" in answer.text


async def test_other_clients_are_told_in_a_cookie_as_upstream_does(
    someone: Someone, static_admin: StaticAdmin
) -> None:
    fields = form(static_admin, password="wrong")
    del fields["return"]
    answer = await someone().post(ENTER, data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie == 'error="Unable to login"; Path=/; Max-Age=600; SameSite=Strict'


async def test_the_error_cookie_is_shown_once(someone: Someone) -> None:
    client = someone()
    answer = await client.get("/login", headers={"Cookie": 'error="Unauthorized access"'})
    assert "Unauthorized access" in answer.text
    assert "error=; Path=/; Max-Age=0" in answer.headers["set-cookie"]


async def test_too_many_attempts_have_to_wait(someone: Someone, static_admin: StaticAdmin) -> None:
    client = someone()
    for _ in range(10):
        await client.post(ENTER, data=form(static_admin, password="wrong"))
    answer = await client.post(ENTER, data=form(static_admin))
    assert "Too many attempts. Wait a minute, then try again." in answer.text


async def test_trying_many_names_does_not_help(someone: Someone, static_admin: StaticAdmin) -> None:
    client = someone()
    for n in range(10):
        await client.post(ENTER, data=form(static_admin, username=f"guess-{n}"))
    answer = await client.post(ENTER, data=form(static_admin))
    assert "Too many attempts. Wait a minute, then try again." in answer.text


async def test_behind_a_proxy_one_address_does_not_use_up_the_attempts_of_another(
    cases: UseCases, bus: MemoryBus, static_admin: StaticAdmin
) -> None:
    here = create_console(cases, bus, insecure_cookie=True, proxies=parse_networks(["127.0.0.1"]))
    transport = httpx2.ASGITransport(here, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as browser:

        async def attempt(address: str, name: str) -> str:
            wrong = form(static_admin, username=name, password="wrong")
            answer = await browser.post(ENTER, data=wrong, headers={"X-Forwarded-For": address})
            return answer.text

        for n in range(10):
            assert "password is wrong" in await attempt("1.2.3.4", f"user {n}")
        assert "Too many attempts" in await attempt("1.2.3.4", "user 10")
        assert "password is wrong" in await attempt("5.6.7.8", "user 11")


async def test_a_form_of_another_site_signs_nobody_in(
    someone: Someone, static_admin: StaticAdmin
) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        answer = await someone().post(ENTER, data=form(static_admin), headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_signing_out_ends_the_session(browser_of_admin: httpx2.AsyncClient) -> None:
    answer = await browser_of_admin.post("/auth/logout")
    assert (answer.status_code, answer.headers["location"]) == (302, "/")
    assert answer.headers.get_list("set-cookie")[0].startswith("token=; Path=/; Max-Age=0")
    browser_of_admin.cookies.clear()
    assert (await browser_of_admin.get("/applications")).status_code == 303


async def test_whoever_is_signed_in_does_not_see_the_form(
    browser_of_admin: httpx2.AsyncClient,
) -> None:
    answer = await browser_of_admin.get("/login?return=/deployments")
    assert (answer.status_code, answer.headers["location"]) == (302, "/deployments")


async def test_a_link_from_another_site_bounces_before_anyone_is_called_signed_out(
    someone: Someone,
) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answer = await someone().get("/deployments/1?x=%22%3E", headers=headers)
    assert answer.status_code == 200
    assert 'content="0;url=/deployments/1?x=%22%3E"' in answer.text


async def test_a_forged_token_is_nobody(someone: Someone) -> None:
    answer = await someone().get("/applications", headers={"Cookie": "token=a.b.c"})
    assert answer.status_code == 303
