# SPDX-License-Identifier: Apache-2.0
"""A piped is added in the console, started by a real launcher, and steered from its page."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from pipecd.model.clock import to_unix, utc_now
from pipecd.observe.version import build_version
from servers.control_plane import StartControlPlane
from servers.programs import OUR_LAUNCHER

PAGE = "/settings/piped"


async def shows(browser: httpx2.AsyncClient, page: str, text: str) -> None:
    """Looks until the page shows the text."""
    async with asyncio.timeout(60):
        while text not in (await browser.get(page)).text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def started(plane: Any, id: str) -> int:
    return (await plane.running.cases.pipeds.get(id, by=plane.admin)).started_at


async def send(browser: httpx2.AsyncClient, page: str, form: str, **fields: str) -> httpx2.Response:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', (await browser.get(page)).text)
    assert found
    return await browser.post(form, data={"csrf": found[1], **fields})


@asynccontextmanager
async def launcher(config: Path, home: Path) -> AsyncGenerator[None]:
    """A launcher with a piped in it; both end with the context."""
    process = await asyncio.create_subprocess_exec(
        OUR_LAUNCHER, "launcher", "--config-file", str(config), "--insecure", f"--home-dir={home}",
        f"--workspace-dir={home / 'workspace'}", "--admin-port=0",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def test_a_piped_is_added_started_and_restarted_from_its_page(
    start_plane: StartControlPlane, tmp_path: Path
) -> None:
    async with start_plane() as plane:
        token = plane.running.cases.sessions.issue(plane.admin)
        async with httpx2.AsyncClient(
            base_url=f"http://{plane.address}", cookies={"token": token}
        ) as browser:
            added = (await send(browser, PAGE, PAGE, name="dev")).text
            sample = added.partition('data-testid="snippet">')[2].partition("</div>")[0]
            config = "\n".join(re.findall(r"<span>([^<]*)</span>", sample))
            # The control plane of these tests does not know its port.
            config = re.sub(r"apiAddress: .*", f"apiAddress: {plane.address}", config)
            (tmp_path / "piped.yaml").write_text(config)
            (id,) = re.findall(r'data-testid="piped-id">([^<]*)<', added)
            async with launcher(tmp_path / "piped.yaml", tmp_path / "home"):
                page = f"{PAGE}/{id}"
                await shows(browser, page, "Online · dev")
                assert build_version() in (await browser.get(page)).text
                first = await started(plane, id)
                # Times are told in whole seconds, and the restart must be seen to be a later one.
                while to_unix(utc_now()) <= first:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                asked = await send(browser, page, f"{page}/restart")
                told = f"Piped dev has restarted and runs {build_version()}."
                await shows(browser, asked.headers["location"], told)
                assert await started(plane, id) > first
