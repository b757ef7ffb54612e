# SPDX-License-Identifier: Apache-2.0
"""Sign-in with dex, a third-party OpenID Connect provider."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from html import unescape
from pathlib import Path

import httpx2
import pytest

from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from servers.dex import CLIENT, EMAIL, PASSWORD, SECRET, Dex
from servers.fixtures import running
from servers.server import free_port

CONTROL_PLANE = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: http://127.0.0.1:{port}
  stateKey: secret
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
  sharedSSOConfigs:
    - name: dex
      provider: OIDC
      sessionTtl: 2
      oidc:
        clientId: {client}
        clientSecret: {secret}
        issuer: {issuer}
        redirectUri: http://127.0.0.1:{port}/auth/callback
        scopes: [openid, profile, email, groups]
        usernameClaimKey: name
"""


@pytest.fixture
def port() -> int:
    """The port that the client of dex will have."""
    return free_port()


@pytest.fixture
def dex(port: int) -> Iterator[Dex]:
    yield from running(lambda: Dex(f"http://127.0.0.1:{port}/auth/callback"))


@pytest.fixture
async def plane(dex: Dex, port: int, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    client = {"client": CLIENT, "secret": SECRET, "issuer": dex.issuer}
    text = CONTROL_PLANE.format(port=port, directory=tmp_path, **client)
    spec = read_control_plane(text, file="control-plane.yaml")
    settings = ServerSettings(spec, b"k" * 32, host="127.0.0.1", port=port, insecure_cookie=True)
    async with control_plane(settings) as running:
        yield running


@contextlib.asynccontextmanager
async def back_from_dex(
    plane: ControlPlane, connector: str, password: str = ""
) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """Signs in with a connector of dex; yields the browser and the page after the redirects."""
    site = f"http://127.0.0.1:{plane.port}"
    async with httpx2.AsyncClient(base_url=site, follow_redirects=True, timeout=20) as browser:
        page = await browser.post("/auth/login", data={"project": "demo"})
        page = await browser.get(target(page, rf'href="([^"]+/auth/{connector}[^"]+)"'))
        if password:
            typed = {"login": EMAIL, "password": password}
            page = await browser.post(target(page, r'<form[^>]*action="([^"]+)"'), data=typed)
        if 'value="approve"' in page.text:
            # We ask the provider to ask for consent, as upstream does.
            agreed = re.search(r'name="req" value="([^"]+)"', page.text)
            assert agreed, page.text
            fields = {"req": agreed[1], "approval": "approve"}
            page = await browser.post(page.url, data=fields)
        yield browser, page.text


def target(page: httpx2.Response, pattern: str) -> httpx2.URL:
    """Where a link or a form of a page leads to."""
    found = re.search(pattern, page.text)
    assert found, page.text
    return page.url.join(unescape(found[1]))


async def test_a_user_signs_in_with_dex(plane: ControlPlane) -> None:
    await plane.cases.projects.add("demo", shared_sso="dex", allow_stray_as_viewer=True)
    async with back_from_dex(plane, "local", PASSWORD) as (browser, page):
        person = await plane.cases.sessions.user(browser.cookies["token"])
    assert (person.project, person.name, person.roles) == ("demo", "olga", ("Viewer",))
    assert 'aria-label="Account of olga"' in page


async def test_a_user_whose_groups_name_no_role_gets_an_error(plane: ControlPlane) -> None:
    await plane.cases.projects.add("demo", shared_sso="dex")
    async with back_from_dex(plane, "mock") as (browser, page):
        assert "token" not in browser.cookies
    assert "your claims name none of the roles Admin, Editor and Viewer" in page


async def test_a_user_without_a_role_gets_an_error(plane: ControlPlane) -> None:
    await plane.cases.projects.add("demo", shared_sso="dex")
    async with back_from_dex(plane, "local", PASSWORD) as (browser, page):
        assert "token" not in browser.cookies
    assert "no role found in claims, ask an administrator of project demo" in page


async def test_a_wrong_password_does_not_lead_back(plane: ControlPlane) -> None:
    await plane.cases.projects.add("demo", shared_sso="dex", allow_stray_as_viewer=True)
    async with back_from_dex(plane, "local", "wrong") as (browser, page):
        assert "token" not in browser.cookies
    assert "Account of" not in page
