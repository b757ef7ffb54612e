# SPDX-License-Identifier: Apache-2.0
"""A real browser: that of this machine, else the one that Playwright has brought."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest
from playwright.async_api import Browser, Page, async_playwright

from pipecd.controlplane.auth.subject import User

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


class OpenPage(Protocol):
    """Opens a page of the console, by default as the administrator; `options` are Playwright's."""

    async def __call__(self, path: str, *, user: User | None = ..., **options: Any) -> Page: ...
