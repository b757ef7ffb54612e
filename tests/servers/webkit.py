# SPDX-License-Identifier: Apache-2.0
"""Debian's WebKitGTK, driven by its WebDriver over HTTP; Playwright's own build cannot be installed.

Its small browser needs a display, which Xvfb provides.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from servers.driver_window import DriverError, DriverWindow
from servers.server import free_ports

_DRIVER, _DISPLAY = shutil.which("WebKitWebDriver"), shutil.which("Xvfb")
_START_SECONDS = 60.0
# The path of each command below that of the session; POST unless it reads.
_PATHS = {
    "Navigate": "url",
    "AddCookie": "cookie",
    "SetWindowRect": "window/rect",
    "ExecuteScript": "execute/sync",
    "FindElement": "element",
    "ElementClick": "element/{id}/click",
    "ElementClear": "element/{id}/clear",
    "ElementSendKeys": "element/{id}/value",
    "GetElementText": "element/{id}/text",
}
_READING = ("GetElementText",)


class WebKit(DriverWindow):
    """A window of a running WebKitGTK browser."""

    def __init__(self, client: httpx2.AsyncClient, session: str) -> None:
        self._client, self._session = client, session

    async def send(self, command: str, **parameters: Any) -> Any:
        path = _PATHS[command].format(id=parameters.pop("id", ""))
        method = "GET" if command in _READING else "POST"
        address = f"/session/{self._session}/{path}"
        body = None if method == "GET" else parameters
        response = await self._client.request(method, address, json=body)
        value = response.json()["value"]
        if response.status_code != 200:
            raise DriverError(f"{command}: {value['error']}: {value['message']}")
        return value

    async def fill(self, selector: str, text: str) -> None:
        # Its command fails below the fold, where others scroll first.
        await self.find(selector)
        await self.run("document.querySelector(arguments[0]).scrollIntoView()", selector)
        await super().fill(selector, text)

    async def text(self, selector: str) -> str:
        # Its command leaves out what is clipped when it overflows, also when it does not.
        await self.find(selector)
        return await self.run("return document.querySelector(arguments[0]).innerText", selector)


@asynccontextmanager
async def webkit(directory: Path) -> AsyncGenerator[WebKit]:
    """Starts the browser; skips the test where there is none, except in CI."""
    if _DRIVER is None or _DISPLAY is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no WebKitWebDriver or Xvfb; tools/test_packages.sh long installs them")
        pytest.skip("no WebKitWebDriver or Xvfb; install webkit2gtk-driver and xvfb")
    await asyncio.to_thread(directory.mkdir)
    async with AsyncExitStack() as started:
        display = await _display(started, _DISPLAY)
        environment = {
            **os.environ,
            "DISPLAY": display,
            "HOME": str(directory),
            # There is neither a user namespace for its sandbox nor a graphics card.
            "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS": "1",
            "WEBKIT_DISABLE_COMPOSITING_MODE": "1",
            "LIBGL_ALWAYS_SOFTWARE": "1",
        }
        (port,) = free_ports(1)
        await _start(started, _DRIVER, f"--port={port}", environment=environment)
        client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=_START_SECONDS)
        await started.enter_async_context(client)
        session = await _new_session(client)
        yield WebKit(client, session)
        with suppress(httpx2.HTTPError):
            await client.delete(f"/session/{session}")


async def _new_session(client: httpx2.AsyncClient) -> str:
    """The id of a new session, as soon as the driver listens."""
    async with asyncio.timeout(_START_SECONDS):
        while True:
            try:
                response = await client.post("/session", json={"capabilities": {"alwaysMatch": {}}})
            except httpx2.ConnectError:
                await asyncio.sleep(0.1)
                continue
            value = response.json()["value"]
            assert response.status_code == 200, value
            return value["sessionId"]


async def _display(started: AsyncExitStack, program: str) -> str:
    """Starts an X server on a display of its own choice; returns its name."""
    readable, writable = os.pipe()
    with os.fdopen(readable) as told:
        arguments = (
            "-displayfd",
            str(writable),
            "-screen",
            "0",
            "1600x1000x24",
            "-nolisten",
            "tcp",
        )
        await _start(started, program, *arguments, pass_fds=(writable,))
        os.close(writable)
        async with asyncio.timeout(_START_SECONDS):
            # To the end of the line: the server is killed if it cannot write all of it.
            return f":{(await asyncio.to_thread(told.readline)).strip()}"


async def _start(
    started: AsyncExitStack,
    *arguments: str,
    environment: dict[str, str] | None = None,
    pass_fds: tuple[int, ...] = (),
) -> None:
    """Starts a program that ends with the stack."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
        pass_fds=pass_fds,
    )

    async def stop() -> None:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()

    started.push_async_callback(stop)
