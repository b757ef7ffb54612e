# SPDX-License-Identifier: Apache-2.0
"""Keeps one piped running with the configuration that is wanted now."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from pipecd.launcher.plan import Running, Wanted, why_relaunch
from pipecd.launcher.source import Load
from pipecd.model.errors import PipecdError
from pipecd.observe.version import build_version
from pipecd.program import group

log = structlog.get_logger()


@dataclass(frozen=True)
class LaunchSettings:
    """How the piped is kept."""

    home: Path
    arguments: Sequence[str]
    check_interval: float
    grace_period: float


class Launcher:
    """Starts the piped, and starts it anew when it ends or something else is wanted."""

    def __init__(
        self, load: Load, version_of: Callable[[bytes], Awaitable[str]], settings: LaunchSettings
    ) -> None:
        self._load, self._version_of, self._settings = load, version_of, settings
        self._process: asyncio.subprocess.Process | None = None
        self._wanted: Wanted | None = None

    async def run(self) -> None:
        """Checks at once, where a failure ends the launcher, and then at every interval."""
        try:
            await self._check()
            while True:
                await self._until_due()
                try:
                    await self._check()
                except PipecdError as e:
                    log.warning("check failed, keeping what runs", error=str(e))
        finally:
            await self._stop()

    async def _until_due(self) -> None:
        """Waits for the interval, or for the piped to end."""
        if self._process is None or self._process.returncode is not None:
            await asyncio.sleep(self._settings.check_interval)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.check_interval):
                await self._process.wait()

    async def _check(self) -> None:
        config = await asyncio.to_thread(self._load)
        wanted = Wanted(await self._version_of(config), config)
        reason = why_relaunch(self._running(), wanted)
        if not reason:
            return
        log.info("starting piped", reason=reason, version=wanted.version)
        await self._stop()
        self._process = await self._start(wanted)
        self._wanted = wanted

    def _running(self) -> Running | None:
        if self._process is None or self._wanted is None:
            return None
        return Running(self._wanted, self._process.returncode)

    async def _start(self, wanted: Wanted) -> asyncio.subprocess.Process:
        path = await asyncio.to_thread(_write_config, self._settings.home, wanted.config)
        argv = [
            sys.executable, "-m", "pipecd", "piped", f"--config-file={path}",
            f"--launcher-version={build_version()}", *self._settings.arguments,
        ]  # fmt: skip
        out, err = sys.stdout.fileno(), sys.stderr.fileno()
        return await group.start(
            argv,
            cwd=path.parent,
            env=None,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )

    async def _stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            await group.end(self._process, grace=self._settings.grace_period)


def _write_config(home: Path, config: bytes) -> Path:
    path = home / "piped" / "config" / "piped-config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(config)
    return path
