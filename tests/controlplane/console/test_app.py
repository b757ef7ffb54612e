# SPDX-License-Identifier: Apache-2.0
"""Shared by all pages: security headers, assets, error pages, fragments, contrast of colours."""

import gzip
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.console.rendering import Assets
from pipecd.controlplane.usecases import UseCases
from pipecd.model.clock import Now
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.console import OpenBrowser

HERE = files("pipecd.controlplane.console")


async def test_every_response_has_security_headers(admin_browser: httpx2.AsyncClient) -> None:
    for path in ("/login", "/applications", "/deployments/none", "/nowhere"):
        headers = (await admin_browser.get(path)).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/login", "/applications", "/deployments", "application", "deployment"]
)
async def test_pages_load_only_our_assets_and_have_nothing_inline(
    path: str,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    deployment: Deployment,
) -> None:
    where = {
        "application": f"/applications/{application.id}",
        "deployment": f"/deployments/{deployment.id}",
    }.get(path, path)
    if path == "/login":
        admin_browser.cookies.clear()
    page = (await admin_browser.get(where)).text
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|<script(?![^>]*src=)", page)
    for address in re.findall(r'(?:src|<link[^>]+href)="([^"]+)"', page):
        assert address.startswith("/assets/")


async def test_assets_are_immutable_under_a_versioned_url(
    admin_browser: httpx2.AsyncClient,
) -> None:
    page = (await admin_browser.get("/applications")).text
    for address in set(re.findall(r'"(/assets/[^"#]+)', page)):
        response = await admin_browser.get(address)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
    old = await admin_browser.get("/assets/000000000000/console.css")
    assert old.headers["cache-control"] == "no-cache"
    for missing in ("/assets/x/none.css", "/assets/x/..%2Fapp.py"):
        assert (await admin_browser.get(missing)).status_code == 404


def test_assets_are_small() -> None:
    files = sorted((Path(str(HERE)) / "assets").iterdir())
    whole = b"".join(path.read_bytes() for path in files)
    assert len(gzip.compress(whole)) < 45_000
    scripts = b"".join(path.read_bytes() for path in files if path.suffix == ".js")
    assert len(gzip.compress(scripts)) < 17_000


def test_a_changed_asset_changes_the_version(tmp_path: Path) -> None:
    for path in (Path(str(HERE)) / "assets").iterdir():
        (tmp_path / path.name).write_text("x")
    before = Assets(tmp_path).version
    (tmp_path / "morph.js").write_text("y")
    assert Assets(tmp_path).version != before


async def test_a_script_gets_only_the_main_element(admin_browser: httpx2.AsyncClient) -> None:
    response = await admin_browser.get("/applications", headers={"HX-Request": "true"})
    assert response.text.lstrip().startswith("<main")
    assert "<html" not in response.text
    assert "HX-Request" in response.headers["vary"]


async def test_a_script_without_a_session_gets_401(
    admin_browser: httpx2.AsyncClient,
) -> None:
    admin_browser.cookies.clear()
    response = await admin_browser.get("/applications", headers={"HX-Request": "true"})
    assert response.status_code == 401


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        pytest.param("/nowhere", 404, "There is no page at this address.", id="no such page"),
        pytest.param("/deployments/none", 404, "Deployment is not found.", id="no such thing"),
        pytest.param("/applications/x/sync", 405, "This address only accepts forms", id="a form"),
    ],
)
async def test_error_pages_have_a_reason_and_one_action(
    path: str, status: int, text: str, admin_browser: httpx2.AsyncClient
) -> None:
    response = await admin_browser.get(path)
    assert response.status_code == status
    assert text in response.text
    assert response.text.count('class="btn primary"') == 1


async def test_a_denied_page_does_not_link_to_itself(
    open_browser: OpenBrowser, application: Application
) -> None:
    browser = open_browser(User("shop", "nobody", ()))
    for path in ("/applications", f"/applications/{application.id}"):
        page = (await browser.get(path)).text
        assert '<a class="btn primary" href="/login?switch=1">Sign in as another user</a>' in page


async def test_an_internal_error_shows_only_its_id(
    bus: MemoryBus, cases: UseCases, admin: User, now: Now
) -> None:
    broken = replace(cases, applications=None)  # pyright: ignore[reportArgumentType]
    pages = create_console(broken, bus, insecure_cookie=False, now=now)
    transport = httpx2.ASGITransport(app=pages, raise_app_exceptions=False)
    cookies = {"token": cases.sessions.issue(admin)}
    async with httpx2.AsyncClient(
        transport=transport, base_url="https://cd.example", cookies=cookies
    ) as client:
        response = await client.get("/applications")
    assert response.status_code == 500
    assert "The error is logged as" in response.text
    assert "NoneType" not in response.text
    assert "content-security-policy" in response.headers


async def test_the_size_of_a_form_is_limited(admin_browser: httpx2.AsyncClient) -> None:
    huge = b"x" * (1024 * 1024 + 1)
    response = await admin_browser.post("/auth/login/static", content=huge)
    assert response.status_code == 413

    async def parts() -> object:
        for _ in range(20):
            yield b"project=" + b"x" * 100_000

    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = await admin_browser.post("/auth/login/static", content=parts(), headers=headers)  # pyright: ignore[reportArgumentType]
    assert response.status_code == 413


def _tokens() -> dict[str, tuple[str, str]]:
    text = HERE.joinpath("assets/tokens.css").read_text()
    found = re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", text)
    return {name: (light, dark) for name, light, dark in found}


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


_TONES = ("ok", "run", "wait", "bad", "off")
_PAIRS = [
    *(
        (ink, ground)
        for ink in ("ink", "muted")
        for ground in ("bg", "surface", "sunken", "off-soft")
    ),
    *((tone, f"{tone}-soft") for tone in _TONES),
    *((tone, ground) for tone in _TONES for ground in ("surface", "bg")),
    *((f"fg{n}", "sunken") for n in range(16)),
    *(("ink", f"{tone}-soft") for tone in _TONES),
    *(("muted", f"{tone}-soft") for tone in ("run", "wait", "bad")),
    ("accent", "bg"),
    ("accent", "surface"),
    ("on-accent", "accent"),
    ("bad", "sunken"),
    ("ok", "sunken"),
]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), _PAIRS, ids=str)
def test_colours_have_enough_contrast(ink: str, ground: str, theme: int) -> None:
    tokens = _tokens()
    assert _contrast(tokens[ink][theme], tokens[ground][theme]) >= 4.5
