# SPDX-License-Identifier: Apache-2.0
"""The page of a deployment whose stage has written a long log: first view, finding, jumping.

Runs the console on a temporary SQLite file and opens the page in Chromium. The first view is the
time from the start of the navigation until lines of the log are painted.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Page, async_playwright

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.log_file import LogFile, format_log
from pipecd.controlplane.datastore.stage_logs import StageRun, log_path
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import build_use_cases
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.ids import new_id
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger, PipelineStage
from pipecd.proto.model.logblock_pb2 import ERROR, INFO, LogBlock

TARGET_SECONDS = 1.0
PROJECT = "bench"
# The entry of a paint may come after the page has loaded.
FIRST_VIEW = """async () => {
    const painted = await new Promise((resolve) => {
        const observer = new PerformanceObserver((list) => {
            const [entry] = list.getEntriesByName("first-contentful-paint");
            if (entry) resolve(entry.startTime);
        });
        observer.observe({ type: "paint", buffered: true });
    });
    const shown = document.querySelectorAll(".lines li[id]").length;
    const [navigation] = performance.getEntriesByType("navigation");
    return [painted / 1000, shown, navigation.responseStart / 1000];
}"""


@dataclass(frozen=True)
class Console:
    """A running console with a deployment that has a long log."""

    url: str
    path: str
    token: str


@asynccontextmanager
async def run_console(lines: int) -> AsyncIterator[Console]:
    with tempfile.TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory) / "files")
        async with open_sqlite(Path(directory) / "pipecd.db") as database:
            stores = create_stores(database, files, MemoryCache(), now=utc_now)
            bus = MemoryBus()
            cases = build_use_cases(
                stores, bus, address="http://127.0.0.1", encryption_key=b"0" * 32, now=utc_now
            )
            await cases.projects.add(PROJECT, "")
            admin = User(PROJECT, "ann", ("Admin",))
            piped = (await cases.pipeds.register("bench", "", by=admin)).id
            now = to_unix(utc_now())
            deployment = Deployment(
                id=new_id(),
                project_id=PROJECT,
                piped_id=piped,
                application_id=new_id(),
                application_name="bench",
                git_path=ApplicationGitPath(repo=ApplicationGitRepository(id="bench"), path="apps"),
                trigger=DeploymentTrigger(
                    commit=Commit(
                        hash="c0ffee", message="x", author="x", branch="main", created_at=now
                    ),
                    timestamp=now,
                ),
                status=pb.DEPLOYMENT_SUCCESS,
                stages=[
                    PipelineStage(
                        id="s1",
                        name="SCRIPT_RUN",
                        status=pb.STAGE_SUCCESS,
                        created_at=now,
                        updated_at=now,
                        completed_at=now,
                    )
                ],
                created_at=now,
                updated_at=now,
                completed_at=now,
            )
            await stores.deployments.add(deployment)
            blocks = [
                LogBlock(
                    index=n,
                    log=f"\x1b[36mstep {n}\x1b[0m of the migration, see https://wiki.example/{n}",
                    severity=ERROR if n % 1000 == 7 else INFO,
                    created_at=now,
                )
                for n in range(1, lines + 1)
            ]
            content = format_log(LogFile(tuple(blocks), completed=True))
            await stores.files.put(log_path(StageRun(deployment.id, "s1")), content)
            web = WebServer(create_console(cases, bus, insecure_cookie=True))
            async with http_server(web, host="127.0.0.1", port=0) as port:
                token = cases.sessions.issue(admin)
                url = f"http://127.0.0.1:{port}"
                yield Console(url, f"/deployments/{deployment.id}", token)
                await web.stop()


async def first_view(page: Page, address: str) -> tuple[float, float]:
    """Seconds until the log is painted, and until the first byte."""
    await page.goto(address)
    painted, shown, first_byte = await page.evaluate(FIRST_VIEW)
    if not shown:
        raise SystemExit("the page shows no line")
    return painted, first_byte


async def seconds_to(page: Page, action: str, shown: str) -> float:
    """Seconds until a click shows what matches the selector."""
    start = time.perf_counter()
    await page.click(action)
    await page.wait_for_selector(shown)
    return time.perf_counter() - start


async def measure(lines: int, repeats: int) -> None:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    async with run_console(lines) as console, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        context = await browser.new_context()
        cookie = {"name": "token", "value": console.token, "url": console.url}
        await context.add_cookies([cookie])  # pyright: ignore[reportArgumentType]
        page = await context.new_page()
        address = console.url + console.path
        await page.goto(address)
        views = [await first_view(page, address) for _ in range(repeats)]
        finds: list[float] = []
        for n in range(repeats):
            await page.goto(address)
            await page.fill("#log-find", f"step {lines // 2 + n} ")
            shown = f"#L{lines // 2 + n}.current"
            finds.append(await seconds_to(page, "[data-find-form] button", shown))
        links = [
            (await first_view(page, f"{address}?at={lines // 3}#L{lines // 3}"))[0]
            for _ in range(repeats)
        ]
        await browser.close()
    rows = {
        "first view": [view for view, _ in views],
        "  of which until the first byte": [first_byte for _, first_byte in views],
        "a text in the middle is found": finds,
        "a permalink is shown": links,
    }
    print(f"log of {lines:,} lines, median of {repeats}")
    for name, values in rows.items():
        target = f"  (target {TARGET_SECONDS:g} s)" if name == "first view" else ""
        print(f"  {name:34} {statistics.median(values):6.2f} s{target}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.lines, arguments.repeats))
