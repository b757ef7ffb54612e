# SPDX-License-Identifier: Apache-2.0
"""The page of users over HTTP: what it lists, ends and refuses."""

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.secrets.session import session_id
from servers.console import OpenBrowser, SubmitForm

PAGE = "/settings/users"
OLGA = User("shop", "olga", ("Viewer", "dev"))


async def sessions_of_olga(cases: UseCases, admin: User) -> list[str]:
    return [each.id for each in (await cases.sessions.list(user="olga", by=admin)).sessions]


async def test_users_and_their_sessions_are_listed(
    cases: UseCases, admin_browser: httpx2.AsyncClient
) -> None:
    await cases.sessions.begin(OLGA)
    page = await admin_browser.get(PAGE)
    assert page.status_code == 200
    assert 'data-testid="user-row"' in page.text
    page = await admin_browser.get(f"{PAGE}?user=olga&q=ol")
    assert page.text.count('data-testid="session-row"') == 1
    assert "Viewer, dev" in page.text
    assert "data-until>7d 00h</time>" in page.text
    page = await admin_browser.get(f"{PAGE}?user=nobody&q=nobody")
    assert "No session of <bdi>nobody</bdi> is left." in page.text
    assert "No user has this name" in page.text


@pytest.mark.parametrize(
    ("sso", "link", "others"),
    [
        pytest.param(None, ">single sign-on</a>", "user groups", id="none yet"),
        pytest.param(
            ProjectSSOConfig(
                provider=ProjectSSOConfig.OIDC,
                oidc=ProjectSSOConfig.Oidc(
                    client_id="id", client_secret="s", issuer="https://idp.example"
                ),
            ),
            ">OpenID Connect</a>",
            "user groups",
            id="roles by a claim",
        ),
        pytest.param(
            ProjectSSOConfig(
                provider=ProjectSSOConfig.GITHUB,
                github=ProjectSSOConfig.GitHub(client_id="id", client_secret="s"),
            ),
            ">user groups</a>",
            "that the provider names",
            id="roles by groups",
        ),
    ],
)
async def test_the_page_says_how_users_get_in(
    *,
    cases: UseCases,
    admin: User,
    open_browser: OpenBrowser,
    sso: ProjectSSOConfig | None,
    link: str,
    others: str,
) -> None:
    if sso:
        await cases.projects.set_sso(sso, by=admin)
    page = (await open_browser(admin).get(PAGE)).text.partition('data-testid="way-in"')[2]
    assert link in page
    assert others not in page


async def test_one_session_is_ended_then_all(
    cases: UseCases, admin: User, admin_browser: httpx2.AsyncClient, submit_form: SubmitForm
) -> None:
    ids = [session_id(await cases.sessions.begin(OLGA)) for _ in range(3)]
    url = f"{PAGE}?user=olga"
    fields = {"session": ids[0], "username": "olga"}
    answer = await submit_form(admin_browser, url, f"{PAGE}/end", **fields)
    assert (answer.status_code, answer.headers["location"]) == (303, url)
    assert set(await sessions_of_olga(cases, admin)) == set(ids[1:])
    answer = await submit_form(admin_browser, url, f"{PAGE}/end-user", username="olga")
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
    assert await sessions_of_olga(cases, admin) == []


async def test_what_cannot_be_ended_is_said_on_the_page(
    cases: UseCases, admin_browser: httpx2.AsyncClient, submit_form: SubmitForm
) -> None:
    await cases.sessions.begin(OLGA)
    rival = session_id(await cases.sessions.begin(User("bank", "rival", ("Admin",))))
    url = f"{PAGE}?user=olga"
    answer = await submit_form(admin_browser, url, f"{PAGE}/end", session=rival, username="rival")
    assert answer.status_code == 422
    assert "Session is not found" in answer.text
    answer = await submit_form(admin_browser, url, f"{PAGE}/end-user", username=" ")
    assert answer.status_code == 422
    assert "Fill in the username." in answer.text


async def test_a_viewer_neither_sees_nor_ends_sessions(
    *,
    cases: UseCases,
    admin: User,
    viewer: User,
    open_browser: OpenBrowser,
    submit_form: SubmitForm,
) -> None:
    id = session_id(await cases.sessions.begin(OLGA))
    browser = open_browser(viewer)
    page = await browser.get(f"{PAGE}?user=olga")
    assert page.status_code == 200
    assert "Only users who may update the project" in page.text
    assert 'data-testid="session-row"' not in page.text
    for action, fields in (("end", {"session": id}), ("end-user", {"username": "olga"})):
        answer = await submit_form(browser, "/overview", f"{PAGE}/{action}", **fields)
        assert answer.status_code == 403
    assert await sessions_of_olga(cases, admin) == [id]
