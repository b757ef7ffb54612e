# SPDX-License-Identifier: Apache-2.0
"""A piped is registered in the console, run by the launcher, and restarted from its page."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from pipecd.model.clock import to_unix, utc_now
from pipecd.observe.version import build_version
from servers.control_plane import ServedControlPlane, StartControlPlane
from servers.polling import eventually
from servers.programs import OUR_LAUNCHER

PAGE = "/settings/piped"


async def wait_for_text(browser: httpx2.AsyncClient, page: str, text: str) -> None:
    async def is_shown() -> bool:
        return text in (await browser.get(page)).text

    await eventually(is_shown, 60)


async def started_at(plane: ServedControlPlane, id_: str) -> int:
    return (await plane.cases.pipeds.get(id_, by=plane.admin)).started_at


async def submit(
    browser: httpx2.AsyncClient, page: str, form: str, **fields: str
) -> httpx2.Response:
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', (await browser.get(page)).text)
    assert csrf
    return await browser.post(form, data={"csrf": csrf[1], **fields})


@asynccontextmanager
async def running_launcher(config: Path, home: Path) -> AsyncGenerator[None]:
    """Runs a launcher and its piped until the end of the block."""
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


async def test_a_piped_is_registered_started_and_restarted_from_its_page(
    start_plane: StartControlPlane, tmp_path: Path
) -> None:
    async with start_plane() as plane:
        token = plane.cases.sessions.issue(plane.admin)
        async with httpx2.AsyncClient(
            base_url=f"http://{plane.address}", cookies={"token": token}
        ) as browser:
            registered = (await submit(browser, PAGE, PAGE, name="dev")).text
            snippet = registered.partition('data-testid="snippet">')[2].partition("</div>")[0]
            config = "\n".join(re.findall(r"<span>([^<]*)</span>", snippet))
            # The control plane of these tests does not know its port.
            config = re.sub(r"apiAddress: .*", f"apiAddress: {plane.address}", config)
            (tmp_path / "piped.yaml").write_text(config)
            (id_,) = re.findall(r'data-testid="piped-id">([^<]*)<', registered)
            async with running_launcher(tmp_path / "piped.yaml", tmp_path / "home"):
                page = f"{PAGE}/{id_}"
                await wait_for_text(browser, page, "Online · dev")
                assert build_version() in (await browser.get(page)).text
                first = await started_at(plane, id_)
                # Timestamps are whole seconds, and the restart must have a later one.
                await eventually(lambda: to_unix(utc_now()) > first)
                restart = await submit(browser, page, f"{page}/restart")
                notice = f"Piped dev has restarted and runs {build_version()}."
                await wait_for_text(browser, restart.headers["location"], notice)
                assert await started_at(plane, id_) > first
