# SPDX-License-Identifier: Apache-2.0
"""Pictures of what follows from an action in the settings, of signing in, and of the operator."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from playwright.async_api import Browser, Page, expect
from starlette.types import ASGIApp

from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.auth.setup_token import new_setup_token
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.operator.pages import create_operator_pages
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.projects import ProjectUseCases, StaticAdmin
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.address import parse_networks
from pipecd.model.clock import Now, utc_now
from pipecd.wire.outbound import OutboundPolicy
from servers.browser import OpenPage
from servers.pictured_project import PictureProject
from servers.pictured_settings import sign_in
from servers.sso import OidcServer, serve_provider

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("PIPECD_PICTURES" not in os.environ, reason="make pictures sets it"),
]

PROJECT = "shop"
KEY = b"0123456789abcdef0123456789abcdef\n"
SSO = SsoSettings(
    "https://pipecd.example", "state", KEY, outbound=OutboundPolicy(parse_networks(["127.0.0.0/8"]))
)
LOOKS = [(width, theme) for width in (1440, 390) for theme in ("light", "dark")]


@pytest.fixture
def moment() -> list[datetime]:
    """The clock of the control plane, which begins before the history of the project does."""
    return [utc_now() - timedelta(days=800)]


@pytest.fixture
def admin(static_admin: StaticAdmin) -> User:
    """Someone who has signed in, as the name of the static admin is random."""
    del static_admin
    return User(PROJECT, "maria", ("Admin",))


@pytest.fixture
async def pictured(
    *, cases: UseCases, stores: Stores, bus: MemoryBus, admin: User, moment: list[datetime]
) -> PictureProject:
    project = PictureProject(cases, stores, bus, admin, moment, utc_now())
    await project.fill()
    return project


@pytest.fixture
async def console_url(cases: UseCases, bus: MemoryBus, now: Now) -> AsyncIterator[str]:
    """The URL of a running console with single sign-on."""
    document = openapi_document()
    console = create_console(
        cases, bus, insecure_cookie=True, sso=SSO, api_document=document, now=now
    )
    async with served(console) as url:
        yield url


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    web = WebServer(app)
    async with http_server(web, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
        await web.stop()


class Album:
    """Takes numbered pictures into a directory that it has emptied."""

    def __init__(self, name: str, width: int, theme: str) -> None:
        self._directory = Path(os.environ["PIPECD_PICTURES"]) / f"{name}-{width}-{theme}"
        self._directory.mkdir(parents=True, exist_ok=True)
        for stale in self._directory.glob("*.png"):
            stale.unlink()
        self._number = 0

    async def take(self, page: Page, name: str, *, whole: bool = True) -> None:
        path = self._directory / f"{self._number:02}-{name}.png"
        self._number += 1
        await expect(page.locator("h1").first).to_be_visible()
        await page.screenshot(path=path, full_page=whole, animations="disabled", timeout=60_000)


def look(width: int, theme: str) -> dict[str, Any]:
    return {"color_scheme": theme, "viewport": {"width": width, "height": 900}}


async def id_of_piped(cases: UseCases, name: str, admin: User) -> str:
    return next(each.id for each in await cases.pipeds.list(by=admin) if each.name == name)


@pytest.mark.parametrize(("width", "theme"), LOOKS)
@pytest.mark.usefixtures("pictured")
async def test_settings_in_use_can_be_pictured(
    *,
    open_page: OpenPage,
    console_url: str,
    cases: UseCases,
    admin: User,
    viewer: User,
    width: int,
    theme: str,
) -> None:
    album = Album("settings", width, theme)
    page = await open_page("/settings/project", **look(width, theme))
    await sign_in(page.context, console_url, cases, admin)
    for name, text in (
        ("sso", "Change OpenID Connect"),
        ("sso", "Remove single sign-on"),
        ("roles", "Change or delete watchers"),
        ("roles", "Add a role"),
        ("groups", "Add a user group"),
        ("webhook", "Rotate the secret"),
        ("admin", "Change username and password"),
        ("admin", "Disable the static admin"),
        ("sessions", "End the sessions of a user"),
    ):
        await page.goto(f"{console_url}/settings/project")
        section = page.get_by_test_id(name)
        await section.locator("summary", has_text=text).click()
        await section.scroll_into_view_if_needed()
        await album.take(page, f"project-{text.lower().replace(' ', '-')}", whole=False)
    await page.goto(f"{console_url}/settings/project")
    await page.get_by_test_id("group").first.locator("summary").click()
    await album.take(page, "project-change-a-group", whole=False)
    await page.goto(f"{console_url}/settings/api-key")
    await page.get_by_test_id("apikey-row").first.locator("summary").click()
    await album.take(page, "key-disable", whole=False)
    await page.keyboard.press("Escape")
    await page.locator("#key-name").fill("nightly tests")
    await page.get_by_role("button", name="Generate and show the key").click()
    await album.take(page, "key-generated")
    await page.goto(f"{console_url}/settings/users?user=maria")
    await page.get_by_test_id("end-user").locator("summary").click()
    await album.take(page, "users-end-sessions", whole=False)
    await page.goto(f"{console_url}/docs/api")
    await page.locator(".endpoint", has_text="Triggers a deployment").locator("summary").click()
    await page.locator(".endpoint[open]").scroll_into_view_if_needed()
    await album.take(page, "api-endpoint", whole=False)
    for name in ("singapore", "old-cluster", "infra", "aws"):
        await page.goto(f"{console_url}/settings/piped/{await id_of_piped(cases, name, admin)}")
        await album.take(page, f"piped-{name}")
    await page.goto(f"{console_url}/settings/piped/{await id_of_piped(cases, 'tokyo', admin)}")
    await page.get_by_test_id("restart").click()
    await album.take(page, "piped-restart", whole=False)
    await page.goto(f"{console_url}/settings/piped")
    await upgrade_pipeds(page, "staging", "tokyo")
    await album.take(page, "pipeds-upgraded")
    await page.goto(f"{console_url}/settings/piped")
    await page.locator("#piped-name").fill("frankfurt")
    await page.get_by_role("button", name="Add and show the key").click()
    await album.take(page, "piped-added")
    await page.goto(f"{console_url}/settings/piped")
    await page.locator("#piped-name").fill("frankfurt")
    await page.get_by_role("button", name="Add and show the key").click()
    await album.take(page, "piped-added-twice")
    page = await open_page("/settings/piped", user=viewer, **look(width, theme))
    for path in ("settings/piped", "settings/api-key", "settings/users", "settings/project"):
        await page.goto(f"{console_url}/{path}")
        await album.take(page, f"viewer-{path.rpartition('/')[2]}")
    nobody = User((await add_empty_project(cases)).project, "maria", ("Admin",))
    page = await open_page("/overview", user=nobody, **look(width, theme))
    for path in ("overview", "settings/piped", "settings/api-key", "settings/project"):
        await page.goto(f"{console_url}/{path}")
        await album.take(page, f"new-{path.rpartition('/')[2]}")


async def upgrade_pipeds(page: Page, *names: str) -> None:
    form = page.get_by_test_id("piped-upgrade")
    for name in names:
        await form.get_by_label(name).check()
    await form.get_by_label("Version").fill("v0.2.0")
    await form.get_by_role("button", name="Request the version").click()
    await expect(page.get_by_test_id("flash")).to_be_visible()


async def add_empty_project(cases: UseCases) -> User:
    added = await cases.projects.add("fresh", "")
    return User("fresh", added.username, ("Admin",))


@pytest.mark.parametrize(("width", "theme"), LOOKS)
@pytest.mark.usefixtures("pictured")
async def test_signing_in_can_be_pictured(
    *,
    open_page: OpenPage,
    console_url: str,
    moment: list[datetime],
    width: int,
    theme: str,
) -> None:
    album = Album("sign-in", width, theme)
    page = await open_page("/login", user=None, **look(width, theme))
    await album.take(page, "no-project-known")
    await page.goto(f"{console_url}/login?project=shop")
    await album.take(page, "single-sign-on")
    await page.get_by_label("Username").fill("root")
    await page.get_by_label("Password").fill("not the password")
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await album.take(page, "wrong-password")
    page = await open_page("/settings/project", **look(width, theme))
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    server = OidcServer(key, moment[0])
    async with serve_provider(server) as url:
        server.issuer = url.replace("127.0.0.1", "localhost")
        await page.get_by_text("Change OpenID Connect").click()
        form = page.get_by_test_id("sso-oidc")
        for name, value in (
            ("Client ID", "client"),
            ("Client secret", "s:ecret%"),
            ("Issuer", server.issuer),
            ("Callback address", f"{console_url}/auth/callback"),
        ):
            await form.get_by_label(name).fill(value)
        for name, claims in (
            ("works", {"preferred_username": "olga", "roles": ["Editor"]}),
            ("no-role", {"preferred_username": "olga"}),
            ("unknown-role", {"preferred_username": "olga", "roles": ["Chief"]}),
        ):
            server.claims = claims
            await take_trial(page, album, f"trial-{name}")
        await form.get_by_label("Client secret").fill("another")
        await take_trial(page, album, "trial-wrong-secret")
    await take_trial(page, album, "trial-unreachable")


async def take_trial(page: Page, album: Album, name: str) -> None:
    """Tries the settings in the form, and pictures the tab that says how it went."""
    async with page.expect_popup() as opened:
        await page.get_by_test_id("try-oidc").click()
    tab = await opened.value
    await tab.set_viewport_size(page.viewport_size or {"width": 1440, "height": 900})
    await tab.wait_for_load_state("load")
    await album.take(tab, name)
    await tab.close()


@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_the_first_project_and_the_operator_can_be_pictured(
    *, chromium: Browser, stores: Stores, bus: MemoryBus, now: Now, width: int, theme: str
) -> None:
    album = Album("operator", width, theme)
    cases = build_use_cases(stores, bus, address="", encryption_key=KEY, now=now)
    page = await chromium.new_page(**look(width, theme))
    async with served(create_console(cases, bus, insecure_cookie=True, sso=SSO, now=now)) as url:
        await page.goto(f"{url}/login")
        await album.take(page, "no-project-yet")
        for name, key in (("old-link", KEY), ("wrong-link", b"x" * 32)):
            token = new_setup_token(key, now() - timedelta(days=2))
            await page.goto(f"{url}/setup?token={quote(token)}")
            await album.take(page, name)
        await page.goto(f"{url}/setup?token={quote(new_setup_token(KEY, now()))}")
        await album.take(page, "first-project")
        await page.get_by_label("Project").fill("the shop")
        await page.get_by_label("Password, at least").fill("a good password")
        await page.keyboard.press("Enter")
        await album.take(page, "first-project-refused")
        await page.get_by_label("Project").fill("shop")
        await page.get_by_label("Password, at least").fill("a good password")
        await page.keyboard.press("Enter")
        await expect(page.get_by_test_id("created")).to_be_visible()
        await album.take(page, "first-project-created")
    endings = SessionEndings(stores.session_endings, bus)
    projects = ProjectUseCases(stores, bus, Access(stores), endings, b"", [])
    async with served(create_operator_pages(projects, shared_sso=["company"])) as url:
        for path in ("", "projects", "projects/add"):
            await page.goto(f"{url}/{path}")
            await album.take(page, path.replace("/", "-") or "home")
        await page.get_by_label("ID", exact=True).fill("payments")
        await page.get_by_label("Description").fill("The payments team")
        await page.get_by_role("button").click()
        await album.take(page, "project-added")
        for name, path in (
            ("projects-two", "projects"),
            ("reset", "projects/reset-password?ID=payments"),
            ("error", "projects/reset-password?ID=nobody"),
        ):
            await page.goto(f"{url}/{path}")
            await album.take(page, name)
    await page.close()
