# SPDX-License-Identifier: Apache-2.0
"""Signing in with dex, a provider of OpenID Connect that others wrote."""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import bcrypt
import httpx2
import pytest
import yaml

from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane

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
        clientId: pipecd
        clientSecret: the secret of pipecd
        issuer: {issuer}
        redirectUri: http://127.0.0.1:{port}/auth/callback
        scopes: [openid, profile, email, groups]
        usernameClaimKey: name
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def dex_configuration(issuer: str, callback: str) -> dict[str, Any]:
    secret = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(10)).decode()
    client = {
        "id": "pipecd",
        "name": "PipeCD",
        "secret": "the secret of pipecd",
        "redirectURIs": [callback],
    }
    person = {"email": "olga@example.com", "hash": secret, "username": "olga", "userID": "1"}
    return {
        "issuer": issuer,
        "storage": {"type": "memory"},
        "web": {"http": issuer.removeprefix("http://").removesuffix("/dex")},
        "oauth2": {"skipApprovalScreen": True},
        "staticClients": [client],
        "enablePasswordDB": True,
        "staticPasswords": [person],
    }


@pytest.fixture
async def dex(tmp_path: Path) -> AsyncIterator[tuple[str, int]]:
    """The address of a running dex, and the port that its client will have."""
    program = os.environ.get("PIPECD_DEX", "")
    if not program:
        pytest.skip("set PIPECD_DEX to the path of dex to run this test")
    issuer, port = f"http://127.0.0.1:{free_port()}/dex", free_port()
    file = tmp_path / "dex.yaml"
    config = dex_configuration(issuer, f"http://127.0.0.1:{port}/auth/callback")
    file.write_text(yaml.safe_dump(config))
    # Dex looks for its templates beside itself.
    home = os.environ.get("PIPECD_DEX_HOME", str(Path(program).parent))
    process = await asyncio.create_subprocess_exec(program, "serve", str(file), cwd=home)
    try:
        async with asyncio.timeout(30), httpx2.AsyncClient() as http:
            while True:
                assert process.returncode is None, "dex has ended; its words are above"
                with contextlib.suppress(httpx2.HTTPError):
                    await http.get(f"{issuer}/.well-known/openid-configuration")
                    break
                await asyncio.sleep(0.05)
        yield issuer, port
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@pytest.fixture
async def plane(dex: tuple[str, int], tmp_path: Path) -> AsyncIterator[ControlPlane]:
    issuer, port = dex
    text = CONTROL_PLANE.format(port=port, directory=tmp_path, issuer=issuer)
    spec = read_control_plane(text, file="control-plane.yaml")
    settings = ServerSettings(spec, b"k" * 32, host="127.0.0.1", port=port, insecure_cookie=True)
    async with control_plane(settings) as running:
        yield running


@contextlib.asynccontextmanager
async def back_from_dex(
    plane: ControlPlane, password: str
) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """A browser that typed a password at dex, and the page it was led to."""
    site = f"http://127.0.0.1:{plane.port}"
    async with httpx2.AsyncClient(base_url=site, follow_redirects=True, timeout=20) as browser:
        form = await browser.post("/auth/login", data={"project": "demo"})
        action = re.search(r'<form[^>]*action="([^"]+)"', form.text)
        assert action, form.text
        url = form.url.join(unescape(action[1]))
        typed = {"login": "olga@example.com", "password": password}
        page = await browser.post(url, data=typed)
        if 'value="approve"' in page.text:
            # We ask the provider to ask for consent, as upstream does.
            agreed = re.search(r'name="req" value="([^"]+)"', page.text)
            assert agreed, page.text
            fields = {"req": agreed[1], "approval": "approve"}
            page = await browser.post(page.url, data=fields)
        yield browser, page.text


async def test_somebody_signs_in_with_dex(plane: ControlPlane) -> None:
    await plane.cases.projects.add("demo", shared_sso="dex", allow_stray_as_viewer=True)
    async with back_from_dex(plane, "open sesame") as (browser, page):
        person = await plane.cases.sessions.person(browser.cookies["token"])
    assert (person.project, person.name, person.roles) == ("demo", "olga", ("Viewer",))
    assert 'aria-label="Account of olga"' in page


async def test_somebody_without_a_role_is_told_so(plane: ControlPlane) -> None:
    await plane.cases.projects.add("demo", shared_sso="dex")
    async with back_from_dex(plane, "open sesame") as (browser, page):
        assert "token" not in browser.cookies
    assert "no role found in claims, ask an administrator of project demo" in page


async def test_a_wrong_password_does_not_lead_back(plane: ControlPlane) -> None:
    await plane.cases.projects.add("demo", shared_sso="dex", allow_stray_as_viewer=True)
    async with back_from_dex(plane, "wrong") as (browser, page):
        assert "token" not in browser.cookies
    assert "Account of" not in page
