# SPDX-License-Identifier: Apache-2.0
"""The console on loopback with real use cases and stores, and objects for view models."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.console.status_badge import Badge, PipedStatus, Tone
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.clock import Now, to_unix
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger, PipelineStage
from servers.console import OpenBrowser, PipedReports, SubmitForm

VIEW_TIME = datetime(2026, 8, 22, 17, 0, 0, tzinfo=UTC)
DEPLOYMENT_START = to_unix(VIEW_TIME) - 600


@pytest.fixture
async def console_url(cases: UseCases, bus: MemoryBus, now: Now) -> AsyncIterator[str]:
    """The URL of a running console."""
    web = WebServer(
        create_console(cases, bus, insecure_cookie=True, api_document=openapi_document(), now=now)
    )
    async with http_server(web, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
        await web.stop()


@pytest.fixture
async def open_browser(console_url: str, cases: UseCases) -> AsyncIterator[OpenBrowser]:
    """Opens HTTP clients with the session of a user, or without a session."""
    async with AsyncExitStack() as opened:

        def open_browser_of(user: User | None = None) -> httpx2.AsyncClient:
            cookies = {"token": cases.sessions.issue(user)} if user else {}
            client = httpx2.AsyncClient(base_url=console_url, cookies=cookies)
            opened.push_async_callback(client.aclose)
            return client

        yield open_browser_of


@pytest.fixture
def admin_browser(open_browser: OpenBrowser, admin: User) -> httpx2.AsyncClient:
    return open_browser(admin)


@pytest.fixture
def submit_form(admin: User) -> SubmitForm:
    """Submits a form with the CSRF token of its page."""
    del admin

    async def submit(
        client: httpx2.AsyncClient, page: str, action: str, **fields: str
    ) -> httpx2.Response:
        html = (await client.get(page)).text
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', html)
        secret = found[1] if found else ""
        return await client.post(action, data={"csrf": secret, **fields})

    return submit


@pytest.fixture
def reports(cases: UseCases, piped: PipedCaller, now: Now) -> PipedReports:
    return PipedReports(cases, piped, now)


@pytest.fixture
def noon() -> datetime:
    """The time at which view models are built."""
    return VIEW_TIME


@pytest.fixture
def start() -> int:
    """Ten minutes before, when the deployment started."""
    return DEPLOYMENT_START


@pytest.fixture
def online_piped() -> PipedStatus:
    return PipedStatus("p1", "tokyo", Badge(Tone.OK, "dot", "Online"), is_unavailable=False)


@pytest.fixture
def offline_piped() -> PipedStatus:
    return PipedStatus("p1", "tokyo", Badge(Tone.BAD, "dot", "Offline"), is_unavailable=True)


@pytest.fixture
def make_stage() -> Callable[..., PipelineStage]:
    """Makes stages that were planned when the deployment began."""

    def make(id: str, name: str, **fields: Any) -> PipelineStage:
        return PipelineStage(
            id=id, name=name, created_at=DEPLOYMENT_START, updated_at=DEPLOYMENT_START, **fields
        )

    return make


@pytest.fixture
def make_deployment() -> Callable[..., Deployment]:
    """Makes deployments that began ten minutes ago."""

    def make(*stages: PipelineStage, **fields: Any) -> Deployment:
        commit = Commit(
            hash="7f3c91ab" * 5,
            message="Retry card tokens once\n\nThe bank asks for it.",
            author="ann",
            branch="main",
            url=f"https://git.example/shop/commit/{'7f3c91ab' * 5}",
            created_at=DEPLOYMENT_START - 60,
        )
        values: dict[str, Any] = {
            "id": "d1",
            "application_id": "a1",
            "application_name": "checkout",
            "trigger": DeploymentTrigger(commit=commit, timestamp=DEPLOYMENT_START),
            "created_at": DEPLOYMENT_START,
            **fields,
        }
        return Deployment(stages=stages, **values)

    return make
