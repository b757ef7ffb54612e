# SPDX-License-Identifier: Apache-2.0
"""Every page of the console as a picture, to be looked at: `make pictures` writes build/pictures."""

import os
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from servers.browser import OpenPage

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PIPECD_PICTURES" not in os.environ, reason="make pictures sets it"),
]

LOOKS = [(width, theme) for width in (1440, 390) for theme in ("light", "dark")]


async def take(page: Page, address: str, path: Path) -> None:
    """Pictures the whole page when it has settled."""
    await page.goto(address)
    await expect(page.locator("h1").first).to_be_visible()
    await page.screenshot(path=path, full_page=True, animations="disabled")


@pytest.mark.parametrize(("width", "theme"), LOOKS)
async def test_every_page_can_be_pictured(
    open_page: OpenPage, console_url: str, all_pages: tuple[str, ...], width: int, theme: str
) -> None:
    directory = Path(os.environ["PIPECD_PICTURES"]) / f"{width}-{theme}"
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*.png"):
        stale.unlink()
    page = await open_page(
        all_pages[0], color_scheme=theme, viewport={"width": width, "height": 900}
    )
    for number, address in enumerate(all_pages):
        plain = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", address)
        name = re.sub(r"[^\w=.-]+", "_", plain).strip("_")
        await take(page, console_url + address, directory / f"{number:02}-{name}.png")
    assert len(list(directory.glob("*.png"))) == len(all_pages)
