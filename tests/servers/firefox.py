# SPDX-License-Identifier: Apache-2.0
"""Debian's Firefox, driven by its own remote protocol: Playwright drives a build of its own only.

The protocol is Marionette: JSON behind its length, on a TCP connection; the commands are those of
WebDriver.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_START_SECONDS = 120.0
_WAIT_SECONDS = 30.0


class FirefoxError(Exception):
    """The browser refused a command."""


class Firefox:
    """A window of a running Firefox."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._number = reader, writer, 0

    async def send(self, command: str, **parameters: Any) -> Any:
        """The result of a command, such as `WebDriver:GetTitle`."""
        self._number += 1
        message = json.dumps([0, self._number, command, parameters]).encode()
        self._writer.write(b"%d:%s" % (len(message), message))
        await self._writer.drain()
        _, number, error, result = await self.receive()
        assert number == self._number
        if error:
            raise FirefoxError(f"{command}: {error['error']}: {error['message']}")
        return result["value"] if isinstance(result, dict) and "value" in result else result

    async def receive(self) -> Any:
        length = await self._reader.readuntil(b":")
        return json.loads(await self._reader.readexactly(int(length[:-1])))

    async def open(self, url: str) -> None:
        await self.send("WebDriver:Navigate", url=url)

    async def sign_in(self, url: str, token: str) -> None:
        """Gives the browser a session; it takes cookies for the site that it shows."""
        await self.open(f"{url}/login?switch=1")
        cookie = {"name": "token", "value": token, "path": "/", "sameSite": "Strict"}
        await self.send("WebDriver:AddCookie", cookie=cookie)

    async def resize(self, width: int, height: int) -> None:
        await self.send("WebDriver:SetWindowRect", width=width, height=height)

    async def run(self, script: str, *args: object) -> Any:
        """What the body of a function returns in the page."""
        return await self.send("WebDriver:ExecuteScript", script=script, args=list(args))

    async def find(self, selector: str) -> str:
        """The first element that matches; waits until there is one."""
        async with asyncio.timeout(_WAIT_SECONDS):
            while True:
                with suppress(FirefoxError):
                    found = await self.send(
                        "WebDriver:FindElement", using="css selector", value=selector
                    )
                    return found[_ELEMENT]
                await asyncio.sleep(0.05)

    async def click(self, selector: str) -> None:
        """Clicks where a user would; fails if something else covers it."""
        await self.send("WebDriver:ElementClick", id=await self.find(selector))

    async def fill(self, selector: str, text: str) -> None:
        element = await self.find(selector)
        await self.send("WebDriver:ElementClear", id=element)
        await self.send("WebDriver:ElementSendKeys", id=element, text=text)

    async def text(self, selector: str) -> str:
        return await self.send("WebDriver:GetElementText", id=await self.find(selector))

    async def wait_for_text(self, selector: str, text: str) -> None:
        """Waits until the element contains the text."""
        shown = ""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while text not in shown:
                    # The element may be replaced by a new one meanwhile.
                    with suppress(FirefoxError):
                        shown = await self.text(selector)
                    await asyncio.sleep(0.05)
        except TimeoutError as e:
            raise AssertionError(f"{selector} shows {shown!r}, not {text!r}") from e


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _write_profile(profile: Path, *, scripts: bool) -> Path:
    """Writes a new profile and returns the file in which Firefox will write its port."""
    profile.mkdir()
    settings: Sequence[tuple[str, object]] = (
        ("marionette.port", 0),
        ("javascript.enabled", scripts),
        # It talks to nobody but the console.
        ("network.proxy.type", 1),
        ("network.proxy.http", "127.0.0.1"),
        ("network.proxy.http_port", 9),
        ("network.proxy.ssl", "127.0.0.1"),
        ("network.proxy.ssl_port", 9),
        ("network.proxy.allow_hijacking_localhost", False),
        ("datareporting.policy.dataSubmissionEnabled", False),
        ("app.update.enabled", False),
        ("browser.startup.page", 0),
    )
    (profile / "user.js").write_text(
        "".join(f'user_pref("{name}", {json.dumps(value)});\n' for name, value in settings)
    )
    return profile / "MarionetteActivePort"


@asynccontextmanager
async def firefox(profile: Path, *, scripts: bool = True) -> AsyncGenerator[Firefox]:
    """Starts Firefox with a new profile; skips the test where there is none, except in CI."""
    if _FIREFOX is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no firefox-esr on PATH; tools/test_packages.sh long installs it")
        pytest.skip("no firefox-esr on PATH; install it with the package manager of this system")
    port_file = _write_profile(profile, scripts=scripts)
    arguments = ["--headless", "--marionette", "--no-remote", "--profile", str(profile)]
    process = await asyncio.create_subprocess_exec(
        _FIREFOX,
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile), "MOZ_CRASHREPORTER_DISABLE": "1"},
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not (port := await asyncio.to_thread(_read, port_file)):
                assert process.returncode is None, "firefox ended while starting"
                await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            window = Firefox(reader, writer)
            await window.receive()
            await window.send("WebDriver:NewSession")
        yield window
        writer.close()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
