# SPDX-License-Identifier: Apache-2.0
"""The console in a real browser, with 5,000 applications and 50,000 deployments.

Measures the first load, every page, a search, the time from a report of a piped to the change on
the screen, and what an idle page requests. The server runs in this process. With `--data` the
database is seeded once and used again, so that `--seed-only` can prepare a measurement.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.jobs.insight_days import DayTotalsWriter
from pipecd.controlplane.jobs.insights import (
    ChunkWriter,
    MonthWriter,
    collect_applications,
    collect_deployments,
)
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.clock import to_unix, utc_now
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import (
    ChainApplicationRef,
    ChainBlock,
    ChainNode,
    DeploymentChain,
)
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveState,
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
    ResourceState,
)
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from rig.history import LARGE, Scale, id_of, write_history

KEY = b"0123456789abcdef0123456789abcdef\n"
IDLE_SECONDS = 5.0
RESOURCES = 1000
EVENTS, CHAINS, KEYS = 1000, 200, 20
TIMING = """() => {
  const page = performance.getEntriesByType("navigation")[0];
  const loaded = performance.getEntriesByType("resource");
  const all = [page, ...loaded.filter((r) => !r.name.includes("/_/stream"))];
  return {ttfb: page.responseStart - page.requestStart, usable: page.domContentLoadedEventEnd,
          bytes: all.reduce((sum, r) => sum + r.encodedBodySize, 0), requests: all.length};
}"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--applications", type=int, default=5000)
    parser.add_argument("--deployments", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, help="directory of the database; else a temporary one")
    parser.add_argument("--seed-only", action="store_true", help="fill --data and measure nothing")
    flags = parser.parse_args()
    if flags.data:
        await measure(flags, flags.data)
        return
    with tempfile.TemporaryDirectory() as directory:
        await measure(flags, Path(directory))


async def measure(flags: argparse.Namespace, directory: Path) -> None:
    """Seeds the directory unless it is, and measures."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no chromium on PATH; install it with the package manager of this system")
    path, files = directory / "pipecd.db", await LocalFiles.open(directory / "files")
    is_new = not path.exists()
    if is_new:
        # The small project of the history has one application in twenty.
        scale = Scale(flags.applications * 20 // 19, flags.deployments * 20 // 19)
        spec = DatastoreSpec(type="SQLITE", config=DatastoreConfig(path=str(path)))
        await write_history(spec, scale)
    async with open_sqlite(path) as database:
        stores = create_stores(database, files, MemoryCache(), now=utc_now)
        bus = MemoryBus()
        cases = build_use_cases(
            stores, bus, address="http://127.0.0.1", encryption_key=KEY, now=utc_now
        )
        user = User(LARGE, "admin", ("Admin",))
        if is_new:
            await cases.projects.add(LARGE)
            await fill(cases, stores, user)
        if flags.seed_only:
            return
        document = openapi_document()
        web = WebServer(create_console(cases, bus, insecure_cookie=True, api_document=document))
        async with (
            http_server(web, host="127.0.0.1", port=0) as port,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            bench = Bench(browser, f"http://127.0.0.1:{port}", cases, stores, user)
            await bench.run(flags.repeats)
            await browser.close()
            await web.stop()


class Bench:
    """The measurements of one running console."""

    def __init__(
        self, browser: Browser, url: str, cases: UseCases, stores: Stores, user: User
    ) -> None:
        self._browser, self._url = browser, url
        self._cases, self._stores, self._user = cases, stores, user

    async def run(self, repeats: int) -> None:
        """Prints every measurement beside its target."""
        application = await self._stores.applications.get(id_of("application", 7))
        piped = PipedCaller(application.project_id, application.piped_id)
        await self._cases.livestate.report(live_state(application, healthy=True), by=piped)
        registered = (await self._cases.pipeds.list(by=self._user))[0].id
        events = await self._cases.events.list(EventFilter(LARGE), PageRequest(1), by=self._user)
        event = events.items[0].id
        await self._first_load()
        for name, path in (
            ("overview", "/overview"),
            ("applications", "/applications"),
            ("applications, by health", "/applications?sort=health"),
            ("application", f"/applications/{application.id}"),
            ("live state of 1,000", f"/applications/{application.id}/live"),
            ("graph of 1,000", f"/applications/{application.id}/live?view=graph"),
            ("deployments", "/deployments"),
            ("deployment", f"/deployments/{id_of('deployment', 7)}"),
            ("deployment, changes", f"/deployments/{id_of('deployment', 7)}?tab=changes"),
            ("deployment, timeline", f"/deployments/{id_of('deployment', 7)}?tab=timeline"),
            ("differences of all", "/applications/drift"),
            ("add an application", "/applications/add"),
            ("application settings", f"/applications/{application.id}/settings"),
            ("plan previews", "/plan-previews"),
            ("chains", "/chains"),
            ("chain", f"/chains/{id_of('chain', 7)}"),
            ("traces", "/deployment-traces"),
            ("events", "/events"),
            ("event", f"/events/{event}"),
            ("insights", "/insights?range=1y&res=monthly"),
            ("insights, part of a name", "/insights?app=app-4"),
            ("pipeds", "/settings/piped"),
            ("piped", f"/settings/piped/{registered}"),
            ("API keys", "/settings/api-key"),
            ("users", "/settings/users"),
            ("project settings", "/settings/project"),
            ("documentation", "/help"),
            ("document", "/help/console"),
            ("what is new", "/help/whats-new"),
            ("API browser", "/docs/api"),
            ("no such page", "/nowhere"),
        ):
            await self._page(name, path, repeats)
        await self._page("search applications", "/applications?q=app-4", repeats)
        await self._page("search deployments", "/deployments?q=app-4", repeats)
        await self._page("search events", "/events?q=app:42", repeats)
        await self._page("search traces", "/deployment-traces?q=Change+4", repeats)
        await self._page("search anything", "/search?q=app-4", repeats)
        await self._change(application, piped, repeats)

    async def _context(self) -> BrowserContext:
        context = await self._browser.new_context(viewport={"width": 1440, "height": 900})
        token = self._cases.sessions.issue(self._user)
        await context.add_cookies(
            [{"name": "token", "value": token, "url": self._url, "sameSite": "Strict"}]
        )
        return context

    async def _first_load(self) -> None:
        context = await self._context()
        page = await context.new_page()
        await page.goto(f"{self._url}/applications")
        await page.wait_for_load_state("load")
        timing = await page.evaluate(TIMING)
        show("first load", "size", timing["bytes"] / 1024, "KB", 60)
        show("first load", "requests", timing["requests"], "", 8)
        await context.close()

    async def _page(self, name: str, path: str, repeats: int) -> None:
        context = await self._context()
        page = await context.new_page()
        await page.goto(self._url + path)
        timings: list[dict[str, float]] = []
        for _ in range(repeats):
            await page.goto(self._url + path)
            timings.append(await page.evaluate(TIMING))
        await context.close()
        show(name, "first byte", statistics.median(t["ttfb"] for t in timings), "ms", 150)
        show(name, "usable", statistics.median(t["usable"] for t in timings), "ms", 500)

    async def _change(self, application: Application, piped: PipedCaller, repeats: int) -> None:
        context = await self._context()
        page = await context.new_page()
        await page.goto(f"{self._url}/applications/{application.id}")
        await page.wait_for_selector("[data-testid=conn-dot][data-state=live]")
        durations: list[float] = []
        for number in range(repeats * 2):
            # A page fetches itself at most twice a second.
            await asyncio.sleep(1)
            healthy = bool(number % 2)
            text = "Healthy" if healthy else "Unhealthy"
            seen = asyncio.ensure_future(_wait_for_health(page, text))
            await asyncio.sleep(0.1)
            start = time.monotonic()
            state = live_state(application, healthy=healthy)
            await self._cases.livestate.report(state, by=piped)
            await seen
            durations.append(1000 * (time.monotonic() - start))
        show("report to screen", "median", statistics.median(durations), "ms", 100)
        await asyncio.sleep(2)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        await asyncio.sleep(IDLE_SECONDS)
        show("idle page", "requests", len(requests), "", 0)
        await context.close()


async def fill(cases: UseCases, stores: Stores, user: User) -> None:
    """Fills the pages besides the two lists."""
    application = await stores.applications.get(id_of("application", 7))
    program = ApiKeyCaller(LARGE, "key", "ci", may_write=True)
    for number in range(EVENTS):
        commit = f"{number:040x}" if number % 4 == 0 else ""
        event = RegisterEventRequest(
            name="image-pushed",
            data=f"registry.example/app:{number}",
            labels={"app": f"app-{number % 100}"},
            commit_hash=commit,
            commit_url=f"https://git.example/{commit}" if commit else "",
            commit_title=f"Change {number}",
            commit_author="ann",
        )
        await cases.events.register(event, by=program)
    for number in range(CHAINS):
        await stores.chains.add(chain(application, number))
    for number in range(KEYS):
        await cases.api_keys.generate(f"key {number}", APIKey.READ_ONLY, by=user)
    chunks, months = (
        ChunkWriter(stores.files, chunk_size=1000),
        MonthWriter(stores.files),
    )
    await collect_deployments(stores, "chunks", chunks)
    await collect_deployments(stores, "months", months)
    await collect_applications(stores)
    await DayTotalsWriter(stores.files).update()
    await cases.pipeds.register("tokyo", "the first", by=user)


async def _wait_for_health(page: Page, text: str) -> None:
    await page.wait_for_function(
        "text => document.querySelector('[data-testid=app-health]')?.textContent.trim() === text",
        arg=text,
    )


def chain(application: Application, number: int) -> DeploymentChain:
    """A chain of two blocks."""
    node = ChainNode(
        application_ref=ChainApplicationRef(
            application_id=application.id, application_name=application.name
        )
    )
    return DeploymentChain(
        id=id_of("chain", number),
        project_id=LARGE,
        blocks=[ChainBlock(nodes=[node]), ChainBlock(nodes=[node, node])],
        created_at=to_unix(utc_now()) - number * 60,
        updated_at=to_unix(utc_now()) - number * 60,
    )


def live_state(application: Application, *, healthy: bool) -> ApplicationLiveStateSnapshot:
    """A live state of deployments with pods, one of which may crash."""
    resources: list[ResourceState] = []
    for number in range(RESOURCES):
        owner = number - number % 20
        is_bad = not healthy and number == 21
        resources.append(
            ResourceState(
                id=f"r{number}",
                name=f"service-{owner // 20}-{number % 20}",
                resource_type="Pod" if number % 20 else "Deployment",
                parent_ids=[f"r{owner}"] if number % 20 else [],
                health_status=ResourceState.UNHEALTHY if is_bad else ResourceState.HEALTHY,
                health_description="CrashLoopBackOff" if is_bad else "",
                created_at=1,
                updated_at=1,
            )
        )
    return ApplicationLiveStateSnapshot(
        application_id=application.id,
        kind=application.kind,
        health_status=ApplicationLiveStateSnapshot.HEALTHY
        if healthy
        else ApplicationLiveStateSnapshot.UNHEALTHY,
        application_live_state=ApplicationLiveState(resources=resources),
        version=ApplicationLiveStateVersion(timestamp=1),
    )


def show(name: str, what: str, value: float, unit: str, target: float) -> None:
    """Prints a measurement and whether it meets its target."""
    verdict = "ok" if value <= target else "MISSED"
    print(f"{name:<26} {what:<12} {value:8.0f} {unit:<3} target {target:g} {unit:<3} {verdict}")


if __name__ == "__main__":
    asyncio.run(main())
