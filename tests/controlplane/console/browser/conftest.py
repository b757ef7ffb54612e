# SPDX-License-Identifier: Apache-2.0
"""A real browser whose pages must not cause errors."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.model.clock import Now
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers import browser
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.filled_project import FilledProject, ProjectFiller

# As long as for actions: the browser shares the cores with everything else that is tested.
expect.set_options(timeout=10_000)


@pytest.fixture(scope="module")
async def chromium(anyio_backend: str) -> AsyncIterator[Browser]:
    del anyio_backend
    async with browser.chromium() as opened:
        yield opened


@pytest.fixture
async def open_page(
    chromium: Browser, console_url: str, cases: UseCases, admin: User
) -> AsyncIterator[OpenPage]:
    """Opens a page as the administrator; script and policy errors fail the test."""
    errors: list[str] = []
    async with AsyncExitStack() as opened:

        async def opens(path: str, *, user: User | None = admin, **options: Any) -> Page:
            context = await chromium.new_context(**options)
            opened.push_async_callback(context.close)
            context.set_default_timeout(10_000)
            if user is not None:
                token = cases.sessions.issue(user)
                await context.add_cookies(
                    [{"name": "token", "value": token, "url": console_url, "sameSite": "Strict"}]
                )
            page = await context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on(
                "console",
                lambda said: errors.append(said.text) if "Content Security" in said.text else None,
            )
            page.on(
                "request",
                lambda request: (
                    errors.append(request.url)
                    if not request.url.startswith((console_url, "data:"))
                    else None
                ),
            )
            await page.goto(path if path.startswith("data:") else console_url + path)
            return page

        yield opens
    assert errors == []


@pytest.fixture
async def running(deployment: Deployment, reports: PipedReports) -> Deployment:
    """A deployment whose first stage runs and has written a line."""
    await reports.online()
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s1", StageStatus.RUNNING)
    await reports.lines(deployment, "s1", "line 1")
    return deployment


@pytest.fixture
async def filled(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    admin: User,
    piped: PipedCaller,
    program: ApiKeyCaller,
    application: Application,
    now: Now,
) -> FilledProject:
    """A project with some weeks of history."""
    filler = ProjectFiller(cases, stores, bus, admin, piped, program, application, now)
    return await filler.fill()
