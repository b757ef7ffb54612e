# SPDX-License-Identifier: Apache-2.0
"""Keeps one piped running, with the desired version and configuration.

A new version is downloaded before the running piped is stopped. A version that ends repeatedly
during its trial is replaced by the last good one, until another version or configuration is set.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from pipecd.launcher.identity import Identity, identity_of
from pipecd.launcher.plan import (
    MAX_TRIAL_FAILURES,
    LaunchHistory,
    LaunchSpec,
    Running,
    relaunch_reason,
)
from pipecd.launcher.release import Releases
from pipecd.launcher.source import Load
from pipecd.model.errors import PipecdError
from pipecd.observe.version import build_version
from pipecd.program import die_with_parent
from pipecd.program.atomic_write import write_atomic, write_private

log = structlog.get_logger()

VersionOf = Callable[[Identity], Awaitable[str]]

_STANDARD_ERROR = 2


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of the launcher; a piped that runs for `trial` seconds counts as good."""

    home: Path
    arguments: Sequence[str] = ()
    check_interval: float = 60.0
    grace_period: float = 30.0
    trial: float = 30.0


@dataclass
class _Started:
    """A running piped and the end of its trial; None once the trial is over."""

    wanted: LaunchSpec
    program: die_with_parent.ChildProcess
    ending: asyncio.Task[int]
    trial_until: float | None

    @property
    def exit_code(self) -> int | None:
        return self.ending.result() if self.ending.done() else None


class Launcher:
    """Starts piped, and restarts it when it ends or its version or configuration changes."""

    def __init__(
        self, load: Load, version_of: VersionOf, releases: Releases, settings: LaunchSettings
    ) -> None:
        self._load, self._version_of, self._releases = load, version_of, releases
        self._settings = settings
        self._wanted: LaunchSpec | None = None
        self._started: _Started | None = None
        self._record = LaunchHistory()
        self._trouble = ""
        self._is_known = asyncio.Event()
        self._soon = asyncio.Event()

    async def run(self) -> None:
        """Checks at once, where a failure ends the launcher, and then at every interval."""
        self._record = LaunchHistory(await self._last_good())
        try:
            self._wanted = await self._ask()
            self._is_known.set()
            await self._follow(self._wanted)
            while True:
                await self._until_due()
                await self._check()
        finally:
            await self._stop()
            await asyncio.to_thread(self._config_file.unlink, missing_ok=True)

    async def identity(self) -> Identity:
        """Returns the identity of the piped, once its configuration is loaded."""
        await self._is_known.wait()
        if self._wanted is None:
            raise RuntimeError("the configuration is known and is not there")
        return identity_of(self._wanted.config)

    def check_soon(self) -> None:
        """Requests a check without waiting for it."""
        self._soon.set()

    def status(self) -> bytes:
        """What runs and what should, for the admin port."""
        started, wanted = self._started, self._wanted
        return json.dumps(
            {
                "launcher": build_version(),
                "wanted": wanted.version if wanted else "",
                "running": started.wanted.version if started and not started.ending.done() else "",
                "hasComeUp": started is not None and started.trial_until is None,
                "lastGood": self._record.good.version if self._record.good else "",
                "trouble": self._trouble,
            }
        ).encode()

    async def _until_due(self) -> None:
        """Waits for the interval, the end of the trial, that of the piped, or to be told."""
        started, at_most = self._started, self._settings.check_interval
        told = asyncio.create_task(self._soon.wait())
        try:
            if started is None or started.ending.done():
                await asyncio.wait({told}, timeout=at_most)
                return
            if started.trial_until is not None:
                left = started.trial_until - asyncio.get_running_loop().time()
                at_most = min(at_most, max(left, 0))
            either = {started.ending, told}
            await asyncio.wait(either, timeout=at_most, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
            self._soon.clear()
        await self._judge(started)

    async def _judge(self, started: _Started) -> None:
        """Takes note of one that ended during its trial, or has passed it."""
        if started.trial_until is None:
            return
        is_over = asyncio.get_running_loop().time() >= started.trial_until
        if is_over and started.exit_code is None:
            await asyncio.to_thread(self._remember_good, started.wanted.version)
            started.trial_until = None
            self._record = self._record.lived(started.wanted)
            await self._releases.keep({started.wanted.version, build_version()})
        elif started.ending.done():
            self._record = self._record.failed(started.wanted)
            times, version = self._record.times(started.wanted), started.wanted.version
            log.warning(
                "piped ended during its trial", version=version, code=started.exit_code, times=times
            )
            if times % MAX_TRIAL_FAILURES:
                await asyncio.sleep(self._record.pause_before(started.wanted))

    async def _check(self) -> None:
        try:
            self._wanted = await self._ask()
            self._trouble = ""
        except PipecdError as e:
            log.warning(
                "desired version or configuration cannot be read, keeping the last one",
                error=str(e),
            )
            self._trouble = str(e)
        if self._wanted is None:
            return
        try:
            await self._follow(self._wanted)
        except PipecdError as e:
            log.warning("piped not restarted", error=str(e))
            self._trouble = str(e)

    async def _ask(self) -> LaunchSpec:
        config = await self._load()
        return LaunchSpec(await self._version_of(identity_of(config)), config)

    async def _follow(self, wanted: LaunchSpec) -> None:
        """Starts what is wanted, or the next best, unless it runs already."""
        ranked = self._record.ranked(wanted, LaunchSpec(build_version(), wanted.config))
        running = self._running()
        if running is not None and running.exit_code is None:
            # A running piped is not replaced by a fallback.
            ranked = ranked[:1]
        for number, choice in enumerate(ranked, start=1):
            if not (reason := relaunch_reason(running, choice)):
                return
            if self._record.times(wanted) >= MAX_TRIAL_FAILURES and choice != wanted:
                log.error(
                    "version failed repeatedly, rolling back to the last good one",
                    wanted=wanted.version,
                )
            try:
                await self._start(choice, reason)
            except PipecdError as e:
                if number == len(ranked):
                    raise
                log.warning(
                    "version cannot be started, trying another one",
                    version=choice.version,
                    error=str(e),
                )
                self._trouble = str(e)
            else:
                return

    def _running(self) -> Running | None:
        return Running(self._started.wanted, self._started.exit_code) if self._started else None

    async def _start(self, wanted: LaunchSpec, reason: str) -> None:
        is_v0 = identity_of(wanted.config).is_v0
        program = await self._releases.program(wanted.version, is_v0=is_v0)
        log.info("starting piped", reason=reason, version=wanted.version)
        await self._stop()
        await asyncio.to_thread(self._write_config, wanted.config)
        argv = (
            *program, f"--config-file={self._config_file}",
            f"--launcher-version={build_version()}", *self._settings.arguments,
        )  # fmt: skip
        # Relative paths in the configuration start at the working directory of the launcher.
        process = await die_with_parent.start(
            argv, cwd=Path.cwd(), env=None, output=_STANDARD_ERROR
        )
        until = asyncio.get_running_loop().time() + self._settings.trial
        self._started = _Started(wanted, process, asyncio.create_task(process.wait()), until)

    async def _stop(self) -> None:
        if self._started is None:
            return
        if not self._started.ending.done():
            await self._started.program.end(grace=self._settings.grace_period)
        await asyncio.wait({self._started.ending})

    @property
    def _config_file(self) -> Path:
        return self._settings.home / "piped" / "config" / "piped-config.yaml"

    @property
    def _good_file(self) -> Path:
        return self._settings.home / "good-version"

    def _write_config(self, config: bytes) -> None:
        self._config_file.parent.mkdir(parents=True, exist_ok=True)
        # It may hold the key of the piped.
        write_private(self._config_file, config)

    def _remember_good(self, version: str) -> None:
        write_atomic(self._good_file, version.encode())

    async def _last_good(self) -> LaunchSpec | None:
        """The version that an earlier launcher saw come up; its configuration is asked for."""
        with suppress(OSError, PipecdError):
            version = await asyncio.to_thread(self._good_file.read_text)
            return LaunchSpec(version.strip(), await self._load())
        return None
