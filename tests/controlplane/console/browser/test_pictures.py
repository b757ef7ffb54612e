# SPDX-License-Identifier: Apache-2.0
"""Every page of the console as a picture, to be looked at: `make pictures` writes build/pictures."""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.clock import utc_now
from servers.browser import OpenPage
from servers.console_pages import page_addresses
from servers.pictured_project import PictureProject

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("PIPECD_PICTURES" not in os.environ, reason="make pictures sets it"),
]

PROJECT = "shop"
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
async def pictured_pages(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    admin: User,
    moment: list[datetime],
) -> tuple[str, ...]:
    """The addresses of every page, of a project with weeks of history until now."""
    project = PictureProject(cases, stores, bus, admin, moment, utc_now())
    shown = await project.fill()
    return page_addresses(create_console(cases, bus, insecure_cookie=True).routes, shown)


async def take(page: Page, address: str, path: Path) -> None:
    """Pictures the whole page when it has settled."""
    await page.goto(address)
    await expect(page.locator("h1").first).to_be_visible()
    # Nothing here is about speed: a busy machine may take its time.
    await page.screenshot(path=path, full_page=True, animations="disabled", timeout=60_000)


@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_every_page_can_be_pictured(
    open_page: OpenPage, console_url: str, pictured_pages: tuple[str, ...], width: int, theme: str
) -> None:
    directory = Path(os.environ["PIPECD_PICTURES"]) / f"{width}-{theme}"
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*.png"):
        stale.unlink()
    page = await open_page(
        pictured_pages[0], color_scheme=theme, viewport={"width": width, "height": 900}
    )
    for number, address in enumerate(pictured_pages):
        plain = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", address)
        name = re.sub(r"[^\w=.-]+", "_", plain).strip("_")
        await take(page, console_url + address, directory / f"{number:02}-{name}.png")
    assert len(list(directory.glob("*.png"))) == len(pictured_pages)
