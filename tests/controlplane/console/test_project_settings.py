# SPDX-License-Identifier: Apache-2.0
"""An administrator decides on the settings page who may enter and what they may do."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import Denied, Unauthenticated
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.secrets.keyfile import KeyFile

PAGE = "/settings/project"
KEY = KeyFile(b"0123456789abcdef0123456789abcdef\n")
Send = Callable[..., Awaitable[httpx2.Response]]
Someone = Callable[..., httpx2.AsyncClient]


@pytest.fixture
def fill(browser_of_admin: httpx2.AsyncClient, send: Send) -> Send:
    """Sends a form of the page and answers what the browser gets."""

    async def filled(form: str, **fields: str) -> httpx2.Response:
        return await send(browser_of_admin, PAGE, f"{PAGE}/{form}", **fields)

    return filled


async def page(browser: httpx2.AsyncClient) -> str:
    return (await browser.get(PAGE)).text


GITHUB = {"client_id": "gh-id", "client_secret": "gh-secret", "hours": "12"}


async def test_github_is_set_up_seen_changed_and_removed(
    fill: Send, browser_of_admin: httpx2.AsyncClient, stores: Stores
) -> None:
    assert "Not set up." in await page(browser_of_admin)
    answer = await fill("sso/github", **GITHUB, base_url="https://ghe.example")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}#sso")
    stored = (await stores.projects.get("shop")).sso
    assert (stored.provider, stored.session_ttl) == (ProjectSSOConfig.GITHUB, 12)
    # Encrypted as upstream does, so that either can go on with the other's database.
    sealed = (stored.github.client_id, stored.github.client_secret)
    assert sealed != ("gh-id", "gh-secret")
    assert tuple(map(KEY.decrypt, sealed)) == ("gh-id", "gh-secret")
    shown = await page(browser_of_admin)
    assert "People sign in with <b>GitHub</b>; a session lasts 12 hours." in shown
    assert "https://pipecd.example/auth/callback" in shown
    assert "https://ghe.example" in shown
    for secret in ("gh-id", "gh-secret", *sealed, "redacted"):
        assert secret not in shown
    # What is left empty of the client stays.
    await fill("sso/github", client_id="", client_secret="", hours="", base_url="")
    stored = (await stores.projects.get("shop")).sso
    assert (stored.github.client_id, stored.github.client_secret) == sealed
    assert (stored.session_ttl, stored.github.base_url) == (168, "")
    await fill("sso/remove")
    assert not (await stores.projects.get("shop")).HasField("sso")
    assert "Not set up." in await page(browser_of_admin)


async def test_openid_connect_is_set_up(
    fill: Send, browser_of_admin: httpx2.AsyncClient, stores: Stores
) -> None:
    client = {"client_id": "oi-id", "client_secret": "oi-secret"}
    fields = {"issuer": "https://id.example", "scopes": "openid  profile", "roles_claim_key": "r"}
    assert (await fill("sso/oidc", **client, **fields)).status_code == 303
    oidc = (await stores.projects.get("shop")).sso.oidc
    assert (oidc.client_secret, oidc.issuer) == ("oi-secret", "https://id.example")
    assert (list(oidc.scopes), oidc.roles_claim_key) == (["openid", "profile"], "r")
    shown = await page(browser_of_admin)
    assert "OpenID Connect</b>; a session lasts 168 hours." in shown
    assert "oi-secret" not in shown
    # Another provider needs a client of its own.
    refused = await fill("sso/github", client_id="", client_secret="")
    assert refused.status_code == 422
    assert "github needs a client id and a client secret" in refused.text


@pytest.mark.parametrize(
    ("form", "fields", "told"),
    [
        pytest.param("sso/github", {**GITHUB, "hours": "a week"}, "whole number of hours", id="no number of hours"),
        pytest.param("sso/github", {**GITHUB, "hours": "99999"}, "a year at most", id="too many hours"),
        pytest.param("sso/github", {**GITHUB, "base_url": "javascript:1"}, "must begin with https", id="an odd address"),
        pytest.param("sso/oidc", {"client_id": "a", "client_secret": "b"}, "issuer of oidc is not a URL", id="no issuer"),
        pytest.param("roles", {"name": "dev", "policies": "resources=aps;actions=*"}, "line 1, column 11: &#39;aps&#39; is not a resource", id="a misspelt resource"),
        pytest.param("roles", {"name": "Admin", "policies": "resources=*;actions=*"}, "role Admin exists already", id="the name of a built-in role"),
        pytest.param("roles", {"policies": "resources=*;actions=*"}, "Fill in the name.", id="a role without a name"),
        pytest.param("roles/update", {"name": "gone", "policies": "resources=*;actions=*"}, "", id="a role that is gone"),
        pytest.param("roles/delete", {"name": "Viewer"}, "role Viewer is built in", id="deleting a built-in role"),
        pytest.param("groups", {"group": "org/x", "role": "gone"}, "role gone does not exist", id="a group with an unknown role"),
        pytest.param("groups/delete", {"group": "org/x"}, "group org/x has no role", id="a group that is gone"),
        pytest.param("admin", {"username": "boss"}, "Fill in the password.", id="no password"),
    ],
)  # fmt: skip
async def test_a_form_is_shown_again_with(
    fill: Send, form: str, fields: dict[str, str], told: str
) -> None:
    answer = await fill(form, **fields)
    assert answer.status_code == 422
    assert told in answer.text
    if "name" in fields and form == "roles":
        assert fields["policies"] in answer.text


async def test_a_role_is_added_used_changed_and_deleted(
    fill: Send, browser_of_admin: httpx2.AsyncClient, cases: UseCases
) -> None:
    await fill("roles", name="watchers", policies="resources=piped;actions=list")
    await fill("groups", group="org/night", role="watchers")
    shown = await page(browser_of_admin)
    assert "resources=piped;actions=list" in shown
    assert "Held by org/night." in shown
    watcher = User("shop", "wendy", ("watchers",))
    assert await cases.pipeds.listed(by=watcher) == ()
    await fill("roles/update", name="watchers", policies="resources=piped{env:dev};actions=get")
    with pytest.raises(Denied):
        await cases.pipeds.listed(by=watcher)
    await fill("groups/delete", group="org/night")
    await fill("roles/delete", name="watchers")
    shown = await page(browser_of_admin)
    assert "org/night" not in shown
    assert "watchers" not in shown


async def test_the_administrator_is_disabled_only_on_purpose(
    fill: Send, cases: UseCases, static_admin: StaticAdmin, browser_of_admin: httpx2.AsyncClient
) -> None:
    refused = await fill("admin/disable")
    assert refused.status_code == 422
    assert "Nobody could sign in any more" in refused.text
    token = (await cases.sessions.sign_in("shop", *static_admin)).token
    assert (await fill("admin/disable", confirm="shop")).status_code == 303
    with pytest.raises(Unauthenticated):
        await cases.sessions.person(token)
    assert "Nobody can sign in with a password." in await page(browser_of_admin)
    await fill("admin/enable")
    await fill("admin", username="boss", password="a better password")
    assert await cases.sessions.sign_in("shop", "boss", "a better password")


async def test_with_single_sign_on_the_administrator_can_go(fill: Send, stores: Stores) -> None:
    await fill("sso/github", **GITHUB)
    assert (await fill("admin/disable")).status_code == 303
    assert (await stores.projects.get("shop")).static_admin_disabled


async def test_a_viewer_sees_but_changes_nothing(
    someone: Someone, viewer: User, send: Send
) -> None:
    browser = someone(viewer)
    shown = await page(browser)
    assert "Only people who may change the project can do this" in shown
    assert 'data-testid="role-add"' not in shown
    assert "resources=" in shown
    # The page has no form of its own, so the secret of the session comes from another page.
    csrf: Any = await send(browser, "/deployments", f"{PAGE}/roles/delete", name="x")
    assert csrf.status_code == 403


async def test_a_project_of_the_configuration_file_is_read_only(
    someone: Someone, stranger: User
) -> None:
    shown = await page(someone(stranger))
    assert "This project is declared in the configuration file" in shown
    assert 'data-testid="admin-disable"' not in shown
