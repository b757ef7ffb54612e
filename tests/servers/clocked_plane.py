# SPDX-License-Identifier: Apache-2.0
"""A control plane in the process of the test whose clock the test sets, with two projects in it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
from starlette.types import ASGIApp

from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.console.page_context import BrowserSession
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.controlplane.web import PathPrefixRouter
from pipecd.controlplane.webhooks.routes import PREFIX as WEBHOOKS
from pipecd.controlplane.webhooks.routes import create_webhooks
from servers.tenants import Tenant, add_tenant

PASSWORD = "a password of the project"


@dataclass
class ClockedPlane:
    """A control plane with the projects `demo` and `rival`; `http` is a browser without cookies."""

    cases: UseCases
    stores: Stores
    bus: MemoryBus
    own: Tenant
    rival: Tenant
    http: httpx2.AsyncClient
    moment: list[datetime]

    def advance(self, by: timedelta) -> None:
        self.moment[0] += by

    @property
    def unix(self) -> int:
        return int(self.moment[0].timestamp())

    def session(self, *roles: str) -> str:
        return self.cases.sessions.issue(self.own.user(*roles))

    async def submit(self, path: str, token: str, **fields: str) -> httpx2.Response:
        """Submits a form of the console with the CSRF token of the session, unless it is given."""
        csrf = BrowserSession(self.own.user("Admin"), token).csrf
        headers = {"cookie": f"token={token}"}
        return await self.http.post(path, headers=headers, data={"csrf": csrf, **fields})


@asynccontextmanager
async def open_clocked_plane(directory: Path) -> AsyncGenerator[ClockedPlane, None]:
    moment = [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)]

    def now() -> datetime:
        return moment[0]

    files, bus = await LocalFiles.open(directory / "files"), MemoryBus()
    async with open_sqlite(directory / "pipecd.db") as database:
        stores = create_stores(database, files, MemoryCache(), now=now)
        cases = build_use_cases(
            stores, bus, address="http://plane", encryption_key=b"k" * 32, now=now
        )
        for project in ("demo", "rival"):
            await cases.projects.add(project, "", StaticAdmin("root", PASSWORD))
        own, rival = [await add_tenant(cases, project) for project in ("demo", "rival")]
        console = create_console(cases, bus, insecure_cookie=True, now=now)
        app: ASGIApp = PathPrefixRouter(
            {WEBHOOKS: create_webhooks(cases.webhooks, now=now)}, console
        )
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://plane") as http:
            yield ClockedPlane(cases, stores, bus, own, rival, http, moment)
