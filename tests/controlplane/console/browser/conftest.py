# SPDX-License-Identifier: Apache-2.0
"""A real browser, and a page of it that tolerates no complaint."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from servers import browser

Open = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="module")
async def chromium(anyio_backend: str) -> AsyncIterator[Browser]:
    del anyio_backend
    async with browser.chromium() as opened:
        yield opened


@pytest.fixture
async def open_page(
    chromium: Browser, site: str, cases: UseCases, admin: User
) -> AsyncIterator[Open]:
    """Opens a page as the administrator; what the browser complains about fails the test."""
    complaints: list[str] = []
    async with AsyncExitStack() as opened:

        async def opens(path: str, *, person: User | None = admin, **options: Any) -> Page:
            context = await chromium.new_context(**options)
            opened.push_async_callback(context.close)
            context.set_default_timeout(10_000)
            if person is not None:
                token = cases.sessions.issue(person)
                await context.add_cookies(
                    [{"name": "token", "value": token, "url": site, "sameSite": "Strict"}]
                )
            page = await context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on(
                "console",
                lambda said: (
                    complaints.append(said.text) if "Content Security" in said.text else None
                ),
            )
            page.on(
                "request",
                lambda asked: (
                    complaints.append(asked.url)
                    if not asked.url.startswith((site, "data:"))
                    else None
                ),
            )
            await page.goto(path if path.startswith("data:") else site + path)
            return page

        yield opens
    assert complaints == []


@pytest.fixture
async def running(deployment: Deployment, reports: Any) -> Deployment:
    """A deployment whose first stage runs and has written a line."""
    await reports.online()
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s1", StageStatus.RUNNING)
    await reports.lines(deployment, "s1", "line 1")
    return deployment
