# SPDX-License-Identifier: Apache-2.0
"""The project settings: static admin, single sign-on, roles, groups and the webhook."""

import re
from collections.abc import Callable

import httpx2
import pytest

from pipecd.controlplane.auth.rbac_policy import render_policies
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.controlplane.usecases.webhooks import Push
from pipecd.model.errors import Denied
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.secrets.keyfile import KeyFile
from servers.console import OpenBrowser, SubmitForm, SubmitPageForm

PAGE = "/settings/project"
KEY = KeyFile(b"0123456789abcdef0123456789abcdef\n")


@pytest.fixture
def submit(admin_browser: httpx2.AsyncClient, submit_form: SubmitForm) -> SubmitPageForm:
    """Submits a form of the page and returns the response."""

    async def submit_to_page(form: str, **fields: str) -> httpx2.Response:
        return await submit_form(admin_browser, PAGE, f"{PAGE}/{form}", **fields)

    return submit_to_page


async def page(browser: httpx2.AsyncClient) -> str:
    return (await browser.get(PAGE)).text


GITHUB = {"client_id": "gh-id", "client_secret": "gh-secret", "hours": "12"}


async def test_github_is_set_up_changed_and_removed(
    submit: SubmitPageForm, admin_browser: httpx2.AsyncClient, stores: Stores
) -> None:
    assert "Not set up: only" in await page(admin_browser)
    response = await submit("sso/github", **GITHUB, base_url="https://ghe.example")
    assert (response.status_code, response.headers["location"]) == (303, f"{PAGE}#sso")
    stored = (await stores.projects.get("shop")).sso
    assert (stored.provider, stored.session_ttl) == (ProjectSSOConfig.GITHUB, 12)
    # Encrypted as upstream does, so that either can go on with the other's database.
    sealed = (stored.github.client_id, stored.github.client_secret)
    assert sealed != ("gh-id", "gh-secret")
    assert tuple(map(KEY.decrypt, sealed)) == ("gh-id", "gh-secret")
    shown = await page(admin_browser)
    assert "Users sign in with <b>GitHub</b>; a session lasts 12 hours." in shown
    assert "https://pipecd.example/auth/callback" in shown
    assert "https://ghe.example" in shown
    for secret in ("gh-id", "gh-secret", *sealed, "redacted"):
        assert secret not in shown
    # What is left empty of the client stays.
    await submit("sso/github", hours="", base_url="https://ghe.example", upload_url="https://up")
    stored = (await stores.projects.get("shop")).sso
    assert (stored.github.client_id, stored.github.client_secret) == sealed
    assert (stored.session_ttl, stored.github.upload_url) == (168, "https://up")
    # The secret is not sent to another address without the one who knows it.
    refused = await submit("sso/github", base_url="https://other.example")
    assert refused.status_code == 422
    assert "Enter the client secret again" in refused.text
    await submit("sso/remove")
    assert not (await stores.projects.get("shop")).HasField("sso")
    # The session began at the provider that is gone.
    assert (await admin_browser.get(PAGE)).status_code == 303


async def test_openid_connect_is_set_up(
    submit: SubmitPageForm, admin_browser: httpx2.AsyncClient, stores: Stores
) -> None:
    client = {"client_id": "oi-id", "client_secret": "oi-secret"}
    fields = {"issuer": "https://id.example", "scopes": "openid  profile", "roles_claim_key": "r"}
    assert (await submit("sso/oidc", **client, **fields)).status_code == 303
    oidc = (await stores.projects.get("shop")).sso.oidc
    assert "oi-secret" not in oidc.client_secret
    assert (KEY.unseal(oidc.client_secret), oidc.issuer) == ("oi-secret", "https://id.example")
    assert (list(oidc.scopes), oidc.roles_claim_key) == (["openid", "profile"], "r")
    shown = await page(admin_browser)
    assert "OpenID Connect</b>; a session lasts 7 days." in shown
    assert "oi-secret" not in shown
    # Another provider needs a client of its own.
    refused = await submit("sso/github", client_id="", client_secret="")
    assert refused.status_code == 422
    assert "github needs a client id and a client secret" in refused.text


async def test_a_refused_form_of_a_provider_keeps_the_client_id_and_not_the_secret(
    submit: SubmitPageForm,
) -> None:
    refused = await submit("sso/github", **{**GITHUB, "base_url": "javascript:1"})
    assert refused.status_code == 422
    assert 'value="gh-id"' in refused.text
    assert "gh-secret" not in refused.text


@pytest.mark.parametrize(
    ("form", "fields", "expected"),
    [
        pytest.param("sso/github", {**GITHUB, "hours": "a week"}, "whole number of hours", id="no number of hours"),
        pytest.param("sso/github", {**GITHUB, "hours": "99999"}, "a year at most", id="too many hours"),
        pytest.param("sso/github", {**GITHUB, "base_url": "javascript:1"}, "must begin with https", id="an invalid address"),
        pytest.param("sso/oidc", {"client_id": "a", "client_secret": "b"}, "issuer of oidc is not a URL", id="no issuer"),
        pytest.param("roles", {"name": "dev", "policies": "resources=aps;actions=*"}, "line 1, column 11: &#39;aps&#39; is not a resource", id="a misspelt resource"),
        pytest.param("roles", {"name": "Admin", "policies": "resources=*;actions=*"}, "role Admin exists already", id="the name of a built-in role"),
        pytest.param("roles", {"policies": "resources=*;actions=*"}, "Fill in the name.", id="a role without a name"),
        pytest.param("roles/update", {"name": "gone", "policies": "resources=*;actions=*"}, "", id="a deleted role"),
        pytest.param("roles/delete", {"name": "Viewer"}, "role Viewer is built in", id="deleting a built-in role"),
        pytest.param("groups", {"group": "org/x", "role": "gone"}, "role gone does not exist", id="a group with an unknown role"),
        pytest.param("groups/delete", {"group": "org/x"}, "group org/x has no role", id="a group without a role"),
        pytest.param("admin", {"username": "boss"}, "Fill in the password.", id="no password"),
    ],
)  # fmt: skip
async def test_a_rejected_form_is_shown_again_with(
    submit: SubmitPageForm, form: str, fields: dict[str, str], expected: str
) -> None:
    response = await submit(form, **fields)
    assert response.status_code == 422
    assert expected in response.text
    if "name" in fields and form == "roles":
        assert fields["policies"] in response.text


async def test_a_role_is_added_used_changed_and_deleted(
    submit: SubmitPageForm, admin_browser: httpx2.AsyncClient, cases: UseCases
) -> None:
    await submit("roles", name="watchers", policies="resources=piped;actions=list")
    await submit("groups", group="org/night", role="watchers")
    shown = await page(admin_browser)
    assert "resources=piped;actions=list" in shown
    assert "org/night</span></td>" in shown
    assert "Members of org/night have the role watchers now." in shown
    watcher = User("shop", "wendy", ("watchers",))
    assert await cases.pipeds.list(by=watcher) == ()
    await submit("roles/update", name="watchers", policies="resources=piped{env:dev};actions=get")
    with pytest.raises(Denied):
        await cases.pipeds.list(by=watcher)
    await submit("groups/delete", group="org/night")
    await submit("roles/delete", name="watchers")
    shown = await page(admin_browser)
    assert "The role watchers is deleted." in shown
    assert "org/night" not in shown
    assert 'data-role="watchers"' not in shown


async def test_a_role_is_added_and_changed_in_the_grid(
    submit: SubmitPageForm, admin_browser: httpx2.AsyncClient, stores: Stores
) -> None:
    ticks = {"application.get": "on", "application.list": "on", "application.labels": "env:dev"}
    response = await submit("roles/grid", name="devs", **ticks)
    assert (response.status_code, response.headers["location"]) == (303, f"{PAGE}#roles")
    (role,) = (await stores.projects.get("shop")).rbac_roles
    assert render_policies(role.policies) == "resources=application{env:dev};actions=get,list"
    shown = await page(admin_browser)
    assert re.search(r'name="application.get"[^>]* checked', shown)
    assert not re.search(r'name="application.delete"[^>]* checked', shown)
    ticks = {f"piped.{action}": "on" for action in ("get", "list", "create", "update", "delete")}
    await submit("roles/update/grid", name="devs", **ticks)
    (role,) = (await stores.projects.get("shop")).rbac_roles
    assert render_policies(role.policies) == "resources=piped;actions=*"
    # What is wrong is said beside the ticks, which stay.
    refused = await submit(
        "roles/update/grid", name="devs", **{"event.get": "on", "event.labels": "x"}
    )
    assert refused.status_code == 422
    assert "Write the labels of events as key:value" in refused.text
    assert re.search(r'name="event.get"[^>]* checked', refused.text)
    empty = await submit("roles/grid", name="nothing")
    assert "Tick what the role allows" in empty.text


async def test_a_group_gets_another_role(submit: SubmitPageForm, stores: Stores) -> None:
    await submit("groups", group="org/night", role="Viewer")
    assert (await submit("groups/update", group="org/night", role="Editor")).status_code == 303
    (group,) = (await stores.projects.get("shop")).user_groups
    assert (group.sso_group, group.role) == ("org/night", "Editor")
    for fields in ({"group": "org/night", "role": "gone"}, {"group": "x", "role": "Viewer"}):
        assert (await submit("groups/update", **fields)).status_code == 422
    (group,) = (await stores.projects.get("shop")).user_groups
    assert group.role == "Editor"


async def test_the_only_way_to_sign_in_cannot_be_disabled(
    submit: SubmitPageForm,
    cases: UseCases,
    static_admin: StaticAdmin,
    admin_browser: httpx2.AsyncClient,
) -> None:
    assert "Set up single sign-on first" in await page(admin_browser)
    refused = await submit("admin/disable")
    assert refused.status_code == 422
    assert "Nobody could sign in any more" in refused.text
    assert await cases.sessions.sign_in("shop", *static_admin)
    # With GitHub, roles come only from groups.
    await submit("sso/github", **GITHUB)
    assert (await submit("admin/disable")).status_code == 422
    await submit("groups", group="org/devs", role="Editor")
    assert (await submit("admin/disable")).status_code == 303
    assert "Nobody can sign in with a password." in await page(admin_browser)
    for form, fields in (("groups/delete", {"group": "org/devs"}), ("sso/remove", {})):
        assert (await submit(form, **fields)).status_code == 422
    await submit("admin/enable")
    await submit("admin", username="boss", password="a better password")
    assert await cases.sessions.sign_in("shop", "boss", "a better password")


async def test_a_password_is_long_enough_and_its_change_is_confirmed(
    submit: SubmitPageForm, admin_browser: httpx2.AsyncClient
) -> None:
    refused = await submit("admin", username="boss", password="short")
    assert refused.status_code == 422
    assert "The password needs at least 8 characters." in refused.text
    await submit("admin", username="boss", password="a better password")
    assert "The password of boss is changed." in await page(admin_browser)


async def test_the_sessions_of_a_user_and_all_sessions_are_ended(
    submit: SubmitPageForm, open_browser: OpenBrowser, viewer: User, admin: User
) -> None:
    vera, other = open_browser(viewer), open_browser(admin)
    assert (await submit("sessions/user", username=viewer.name)).status_code == 303
    assert (await vera.get("/applications")).status_code == 303
    assert (await other.get("/applications")).status_code == 200
    assert (await open_browser(viewer).get("/applications")).status_code == 200
    assert (await submit("sessions/user", username=" ")).status_code == 422
    assert (await submit("sessions/all")).status_code == 303
    assert (await other.get("/applications")).status_code == 303


async def test_a_viewer_sees_the_settings_but_changes_nothing(
    open_browser: OpenBrowser, viewer: User, submit_form: SubmitForm
) -> None:
    browser = open_browser(viewer)
    shown = await page(browser)
    assert "Only users who may update the project can change its settings" in shown
    assert 'data-testid="role-add"' not in shown
    assert '<th scope="col">Editor</th>' in shown
    # The page has no form of its own, so the secret of the session comes from another page.
    csrf = await submit_form(browser, "/deployments", f"{PAGE}/roles/delete", name="x")
    assert csrf.status_code == 403


async def test_a_project_of_the_configuration_file_is_read_only(
    open_browser: OpenBrowser, stranger: User
) -> None:
    shown = await page(open_browser(stranger))
    assert "This project is declared in the configuration file" in shown
    assert 'data-testid="admin-disable"' not in shown


def secret_in(html: str) -> str:
    found = re.search(r'data-testid="webhook-secret">([^<]+)<', html)
    return found[1] if found else ""


async def test_settings_redirect_to_the_first_visible_page(
    admin_browser: httpx2.AsyncClient, open_browser: OpenBrowser
) -> None:
    assert 'href="/settings"' in (await admin_browser.get("/applications")).text
    response = await admin_browser.get("/settings")
    assert (response.status_code, response.headers["location"]) == (303, "/settings/piped")
    assert f'href="{PAGE}"' in (await admin_browser.get("/settings/piped")).text
    response = await open_browser(User("shop", "nobody", ())).get("/settings")
    assert (response.status_code, response.headers["location"]) == (303, PAGE)


async def test_a_webhook_is_created_rotated_and_removed(
    admin_browser: httpx2.AsyncClient,
    submit_form: SubmitForm,
    cases: UseCases,
    advance: Callable[[float], None],
) -> None:
    page = (await admin_browser.get(PAGE)).text
    assert "webhook-create" in page
    assert secret_in(page) == ""
    assert (await submit_form(admin_browser, PAGE, f"{PAGE}/webhook")).status_code == 303
    page = (await admin_browser.get(PAGE)).text
    first = secret_in(page)
    assert (first,) == await cases.webhooks.secrets_of("shop")
    assert "https://pipecd.example/webhooks/shop" in page
    # A double click does not end the first one.
    await submit_form(admin_browser, PAGE, f"{PAGE}/webhook")
    assert (first,) == await cases.webhooks.secrets_of("shop")
    advance(60)
    await submit_form(admin_browser, PAGE, f"{PAGE}/webhook")
    page = (await admin_browser.get(PAGE)).text
    assert (secret_in(page), first) == await cases.webhooks.secrets_of("shop")
    assert "the previous one is valid until" in page
    await submit_form(admin_browser, PAGE, f"{PAGE}/webhook/remove")
    assert await cases.webhooks.secrets_of("shop") == ()
    assert "webhook-create" in (await admin_browser.get(PAGE)).text


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        pytest.param("git@github.com:shop/site.git", "1 watched repository was", id="watched"),
        pytest.param("git@github.com:shop/other.git", "no piped of this project", id="not watched"),
    ],
)
async def test_the_last_push_is_shown(
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    registered: RegisteredPiped,
    remote: str,
    expected: str,
) -> None:
    del registered
    await cases.webhooks.rotate(by=admin)
    assert "None yet" in (await admin_browser.get(PAGE)).text
    await cases.webhooks.pushed("shop", Push((remote,)), host="GitHub")
    page = (await admin_browser.get(PAGE)).text
    assert remote in page
    assert expected in page


async def test_the_webhook_secret_needs_permission_to_update(
    open_browser: OpenBrowser, submit_form: SubmitForm, cases: UseCases, admin: User, viewer: User
) -> None:
    await cases.webhooks.rotate(by=admin)
    (secret,) = await cases.webhooks.secrets_of("shop")
    client = open_browser(viewer)
    page = await client.get(PAGE)
    assert page.status_code == 200
    assert secret not in page.text
    assert "ask an administrator" in page.text
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', (await client.get("/applications")).text)
    assert csrf is None
    refused = await submit_form(client, PAGE, f"{PAGE}/webhook")
    assert refused.status_code == 403
    assert await cases.webhooks.secrets_of("shop") == (secret,)


async def test_a_page_with_a_secret_is_not_cached(
    admin_browser: httpx2.AsyncClient, cases: UseCases, admin: User
) -> None:
    await cases.webhooks.rotate(by=admin)
    assert (await admin_browser.get(PAGE)).headers["cache-control"] == "no-store"
