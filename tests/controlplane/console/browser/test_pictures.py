# SPDX-License-Identifier: Apache-2.0
"""Every page of the console as a picture, to be looked at: `make pictures` writes build/pictures."""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, ViewportSize, expect

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.clock import utc_now
from servers.browser import OpenPage
from servers.console_pages import ShownObjects, page_addresses
from servers.pictured_project import PictureProject
from servers.pictured_settings import sign_in
from servers.pictured_states import add_long_log, add_long_pipeline, add_running_log, write_line

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("PIPECD_PICTURES" not in os.environ, reason="make pictures sets it"),
]

PROJECT = "shop"
LOOKS = [(width, theme) for width in (1440, 390) for theme in ("light", "dark")]
# Where the layout changes.
MORE_LOOKS = [(width, "light") for width in (1024, 768)]


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
def project(
    cases: UseCases, stores: Stores, bus: MemoryBus, admin: User, moment: list[datetime]
) -> PictureProject:
    return PictureProject(cases, stores, bus, admin, moment, utc_now())


@pytest.fixture
async def pictured(project: PictureProject) -> ShownObjects:
    """A project with weeks of history until now."""
    return await project.fill()


@pytest.fixture
def pictured_pages(cases: UseCases, bus: MemoryBus, pictured: ShownObjects) -> tuple[str, ...]:
    """The addresses of every page."""
    return page_addresses(create_console(cases, bus, insecure_cookie=True).routes, pictured)


async def take(page: Page, address: str, path: Path) -> None:
    """Pictures the whole page when it has settled."""
    await page.goto(address)
    await expect(page.locator("h1").first).to_be_visible()
    # Nothing here is about speed: a busy machine may take its time.
    await page.screenshot(path=path, full_page=True, animations="disabled", timeout=60_000)


@pytest.mark.parametrize(("width", "theme"), [*LOOKS, *MORE_LOOKS])
async def test_every_page_can_be_pictured(
    *,
    open_page: OpenPage,
    console_url: str,
    cases: UseCases,
    admin: User,
    pictured_pages: tuple[str, ...],
    width: int,
    theme: str,
) -> None:
    directory = Path(os.environ["PIPECD_PICTURES"]) / f"{width}-{theme}"
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*.png"):
        stale.unlink()
    page = await open_page(
        pictured_pages[0], color_scheme=theme, viewport={"width": width, "height": 900}
    )
    await sign_in(page.context, console_url, cases, admin)
    for number, address in enumerate(pictured_pages):
        plain = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", address)
        name = re.sub(r"[^\w=.-]+", "_", plain).strip("_")
        await take(page, console_url + address, directory / f"{number:02}-{name}.png")
    assert len(list(directory.glob("*.png"))) == len(pictured_pages)


# Notifications as the browser has them before it has asked, without its own question.
ANSWERS = """
    globalThis.Notification = class {
        static permission = "default";
        static requestPermission = async () => (this.permission = localStorage.getItem("answer"));
        close() {}
    };
"""


async def take_opened(page: Page, path: Path, shown: Locator) -> None:
    """Pictures the window, as what opens lies over the page."""
    await expect(shown).to_be_visible()
    await page.screenshot(path=path, animations="disabled", timeout=60_000)


async def picture_palette(page: Page, directory: Path) -> None:
    results = page.get_by_test_id("palette").get_by_test_id("result")
    for name, text, found in (
        ("empty", "", "Overview"),
        ("results", "checkout", "Sync checkout"),
        ("nothing", "xyzzy", None),
    ):
        await page.keyboard.press("Control+k")
        await page.keyboard.type(text)
        shown = page.get_by_test_id("no-results")
        if found:
            shown = results.filter(has_text=found).first
        await take_opened(page, directory / f"palette-{name}.png", shown)
        await page.keyboard.press("Escape")


async def picture_bell(page: Page, directory: Path) -> None:
    """Before it is asked for, switched on, switched off again, and blocked."""
    bell, toast = page.get_by_test_id("notify-me"), page.get_by_test_id("toast")
    for name, answer, said in (
        ("blocked", "denied", "blocks"),
        ("on", "granted", "You are notified when"),
        ("off", "granted", "not notified any more"),
    ):
        await page.evaluate("answer => localStorage.setItem('answer', answer)", answer)
        await bell.click()
        await take_opened(page, directory / f"bell-{name}.png", toast.filter(has_text=said))


@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_what_opens_over_a_page_can_be_pictured(
    open_page: OpenPage, console_url: str, pictured_pages: tuple[str, ...], width: int, theme: str
) -> None:
    directory = Path(os.environ["PIPECD_PICTURES"]) / f"{width}-{theme}" / "opened"
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*.png"):
        stale.unlink()
    application = next(p for p in pictured_pages if p.endswith("/settings") and "/applic" in p)
    page = await open_page(
        "/settings/piped", color_scheme=theme, viewport={"width": width, "height": 900}
    )
    await page.add_init_script(ANSWERS)
    await page.goto(f"{console_url}/overview")
    await picture_bell(page, directory)
    await page.goto(f"{console_url}/applications")
    await picture_palette(page, directory)
    await page.keyboard.press("?")
    await take_opened(page, directory / "help.png", page.get_by_test_id("help"))
    await page.keyboard.press("Escape")
    await page.locator(".account > summary").click()
    await take_opened(page, directory / "account.png", page.locator(".account > div"))
    await page.keyboard.press("Escape")
    for name in ("cart", "checkout", "newsletter"):
        await page.get_by_label(f"Select {name}", exact=True).check()
    await page.get_by_test_id("bulk-sync").click()
    await take_opened(page, directory / "bulk-actions.png", page.locator("#bulk-form"))
    await page.goto(f"{console_url}{application}")
    await page.locator("#delete summary").click()
    await take_opened(page, directory / "delete.png", page.get_by_test_id("delete-form"))
    await page.goto(f"{console_url}{application.removesuffix('/settings')}")
    await page.get_by_test_id("sync-menu").click()
    await take_opened(page, directory / "sync.png", page.locator("#sync-menu > div"))


@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_states_that_follow_from_actions_can_be_pictured(
    *,
    open_page: OpenPage,
    console_url: str,
    project: PictureProject,
    pictured: ShownObjects,
    width: int,
    theme: str,
) -> None:
    directory = Path(os.environ["PIPECD_PICTURES"]) / f"states-{width}-{theme}"
    directory.mkdir(parents=True, exist_ok=True)
    long_log, long_pipeline = await add_long_log(project), await add_long_pipeline(project)
    running = await add_running_log(project)
    size = ViewportSize(width=width, height=900)
    page = await open_page("/overview", color_scheme=theme, viewport=size)

    async def shot(name: str, *, whole: bool = True) -> None:
        path = directory / f"{name}.png"
        await page.screenshot(path=path, full_page=whole, animations="disabled", timeout=60_000)

    await page.goto(f"{console_url}/deployments/{pictured.waiting}")
    await shot("approval")
    await page.get_by_test_id("reject-button").click()
    await page.get_by_label("Why do you reject?").fill("Not before the sale is over.")
    await shot("reject", whole=False)
    await page.goto(f"{console_url}/deployments/{pictured.failed}")
    await expect(page.get_by_test_id("first-error")).to_be_visible()
    await shot("failed")
    for name, wide in (("twelve-stages", width), ("twelve-stages-1024", 1024)):
        await page.set_viewport_size({"width": wide, "height": 900})
        await page.goto(f"{console_url}/deployments/{long_pipeline}")
        await shot(name)
    await page.set_viewport_size(size)
    await page.goto(f"{console_url}/deployments/{running}")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    for number in range(40):
        await write_line(project, running, number)
    await expect(page.locator("#lines")).to_contain_text("batch 40 of 400")
    await page.locator("#log").scroll_into_view_if_needed()
    await shot("running-log", whole=False)
    await page.goto(f"{console_url}/deployments/{long_log}")
    await shot("long-log")
    await page.get_by_test_id("log-find").fill("batch 50017 ")
    await page.get_by_test_id("log-find").press("Enter")
    await expect(page.locator("#L50017.current")).to_be_visible(timeout=60_000)
    await page.locator("#log").scroll_into_view_if_needed()
    await shot("long-log-find", whole=False)
    await page.get_by_test_id("log-find").fill("took too long")
    await page.get_by_test_id("log-find").press("Enter")
    await expect(page.get_by_test_id("log-matches")).to_contain_text("of 100", timeout=60_000)
    await page.get_by_test_id("log-only-matches").click()
    await expect(page.get_by_test_id("log-only-matches")).to_have_attribute("aria-current", "true")
    await shot("long-log-only-matches", whole=False)
