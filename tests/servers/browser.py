# SPDX-License-Identifier: Apache-2.0
"""A real browser: that of this machine, else the one that Playwright has brought."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """Skips the test where there is none, except in CI."""
    if _CHROMIUM is None and os.environ.get("CI") != "true":
        pytest.skip("no chromium on PATH; install it with the package manager of this system")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        await browser.close()
