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

from servers.driver_window import DriverError, DriverWindow

_FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
_START_SECONDS = 120.0


class Firefox(DriverWindow):
    """A window of a running Firefox."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._number = reader, writer, 0

    async def send(self, command: str, **parameters: Any) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, f"WebDriver:{command}", parameters]).encode()
        self._writer.write(b"%d:%s" % (len(message), message))
        await self._writer.drain()
        _, number, error, result = await self.receive()
        assert number == self._number
        if error:
            raise DriverError(f"{command}: {error['error']}: {error['message']}")
        return result["value"] if isinstance(result, dict) and "value" in result else result

    async def receive(self) -> Any:
        length = await self._reader.readuntil(b":")
        return json.loads(await self._reader.readexactly(int(length[:-1])))


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
            await window.send("NewSession")
        yield window
        writer.close()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
