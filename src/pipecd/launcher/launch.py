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
    LaunchedPiped,
    LaunchHistory,
    LaunchSpec,
    launch_reason,
)
from pipecd.launcher.release import Releases
from pipecd.launcher.source import LoadConfig
from pipecd.model.errors import PipecdError
from pipecd.observe.version import build_version
from pipecd.program import die_with_parent
from pipecd.program.atomic_write import write_atomic, write_private

log = structlog.get_logger()

ReadVersion = Callable[[Identity], Awaitable[str]]

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
class _PipedProcess:
    """A piped and the end of its trial; None once the trial is over."""

    spec: LaunchSpec
    process: die_with_parent.ChildProcess
    exit: asyncio.Task[int]
    trial_until: float | None

    @property
    def exit_code(self) -> int | None:
        return self.exit.result() if self.exit.done() else None


class Launcher:
    """Starts piped, and restarts it when it ends or its version or configuration changes."""

    def __init__(
        self,
        load_config: LoadConfig,
        read_version: ReadVersion,
        releases: Releases,
        settings: LaunchSettings,
    ) -> None:
        self._load_config, self._read_version = load_config, read_version
        self._releases, self._settings = releases, settings
        self._desired: LaunchSpec | None = None
        self._piped: _PipedProcess | None = None
        self._history = LaunchHistory()
        self._last_error = ""
        self._is_loaded = asyncio.Event()
        self._check_requested = asyncio.Event()

    async def run(self) -> None:
        """Checks at once, where a failure ends the launcher, and then at every interval."""
        with suppress(OSError, PipecdError):
            # The version that was good for an earlier launcher, with today's configuration.
            version = await asyncio.to_thread(self._good_file.read_text)
            good = LaunchSpec(version.strip(), await self._load_config())
            self._history = LaunchHistory(good)
        try:
            self._desired = await self._read_desired()
            self._is_loaded.set()
            await self._reconcile(self._desired)
            while True:
                await self._wait_until_due()
                await self._check()
        finally:
            await self._stop()
            await asyncio.to_thread(self._config_file.unlink, missing_ok=True)

    async def identity(self) -> Identity:
        """Returns the identity of the piped, once its configuration is loaded."""
        await self._is_loaded.wait()
        if self._desired is None:
            raise RuntimeError("the configuration is marked as loaded, but there is none")
        return identity_of(self._desired.config)

    def check_soon(self) -> None:
        """Requests a check without waiting for it."""
        self._check_requested.set()

    def status(self) -> bytes:
        """Returns the running and the desired version as JSON, for the admin port."""
        piped, desired, good = self._piped, self._desired, self._history.good
        return json.dumps(
            {
                "launcher": build_version(),
                "desired": desired.version if desired else "",
                "running": piped.spec.version if piped and piped.exit_code is None else "",
                "ready": piped is not None and piped.trial_until is None,
                "lastGood": good.version if good else "",
                "error": self._last_error,
            }
        ).encode()

    async def _wait_until_due(self) -> None:
        """Waits for the interval, a requested check, the end of the trial or that of the piped."""
        piped, timeout = self._piped, self._settings.check_interval
        requested = asyncio.create_task(self._check_requested.wait())
        try:
            if piped is None or piped.exit.done():
                await asyncio.wait({requested}, timeout=timeout)
                return
            if piped.trial_until is not None:
                left = piped.trial_until - asyncio.get_running_loop().time()
                timeout = min(timeout, max(left, 0))
            await asyncio.wait(
                {piped.exit, requested}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            requested.cancel()
            self._check_requested.clear()
        if piped.trial_until is not None:
            await self._evaluate_trial(piped, piped.trial_until)

    async def _evaluate_trial(self, piped: _PipedProcess, trial_until: float) -> None:
        """Records a piped that has passed its trial, or has ended during it."""
        spec = piped.spec
        if asyncio.get_running_loop().time() >= trial_until and piped.exit_code is None:
            await asyncio.to_thread(write_atomic, self._good_file, spec.version.encode())
            piped.trial_until = None
            self._history = self._history.succeeded(spec)
            await self._releases.remove_except({spec.version, build_version()})
        elif piped.exit.done():
            self._history = self._history.failed(spec)
            failures = self._history.failures_of(spec)
            log.warning(
                "piped ended during its trial",
                version=spec.version,
                exit_code=piped.exit_code,
                failures=failures,
            )
            if failures % MAX_TRIAL_FAILURES:
                await asyncio.sleep(self._history.backoff(spec))

    async def _check(self) -> None:
        try:
            self._desired = await self._read_desired()
            self._last_error = ""
        except PipecdError as e:
            log.warning(
                "desired version or configuration cannot be read, keeping the last one",
                error=str(e),
            )
            self._last_error = str(e)
        if self._desired is None:
            return
        try:
            await self._reconcile(self._desired)
        except PipecdError as e:
            log.warning("piped not restarted", error=str(e))
            self._last_error = str(e)

    async def _read_desired(self) -> LaunchSpec:
        config = await self._load_config()
        return LaunchSpec(await self._read_version(identity_of(config)), config)

    async def _reconcile(self, desired: LaunchSpec) -> None:
        """Starts the desired piped, or else the best fallback, unless it runs already."""
        candidates = self._history.ranked(desired, LaunchSpec(build_version(), desired.config))
        launched = None
        if self._piped is not None:
            launched = LaunchedPiped(self._piped.spec, self._piped.exit_code)
            if launched.exit_code is None:
                # A running piped is not replaced by a fallback.
                candidates = candidates[:1]
        for number, candidate in enumerate(candidates, start=1):
            if not (reason := launch_reason(launched, candidate)):
                return
            failures = self._history.failures_of(desired)
            if failures >= MAX_TRIAL_FAILURES and candidate != desired:
                log.error(
                    "desired version failed repeatedly, rolling back",
                    desired=desired.version,
                    version=candidate.version,
                )
            try:
                await self._start(candidate, reason)
            except PipecdError as e:
                if number == len(candidates):
                    raise
                log.warning(
                    "version cannot be started, trying another one",
                    version=candidate.version,
                    error=str(e),
                )
                self._last_error = str(e)
            else:
                return

    async def _start(self, spec: LaunchSpec, reason: str) -> None:
        is_v0 = identity_of(spec.config).is_v0
        program = await self._releases.program(spec.version, is_v0=is_v0)
        log.info("starting piped", reason=reason, version=spec.version)
        await self._stop()
        await asyncio.to_thread(self._config_file.parent.mkdir, parents=True, exist_ok=True)
        # It may contain the key of the piped.
        await asyncio.to_thread(write_private, self._config_file, spec.config)
        argv = (
            *program, f"--config-file={self._config_file}",
            f"--launcher-version={build_version()}", *self._settings.arguments,
        )  # fmt: skip
        # Relative paths in the configuration start at the working directory of the launcher.
        process = await die_with_parent.start(
            argv, cwd=Path.cwd(), env=None, output=_STANDARD_ERROR
        )
        trial_until = asyncio.get_running_loop().time() + self._settings.trial
        exit_ = asyncio.create_task(process.wait())
        self._piped = _PipedProcess(spec, process, exit_, trial_until)

    async def _stop(self) -> None:
        if self._piped is None:
            return
        if not self._piped.exit.done():
            await self._piped.process.end(grace=self._settings.grace_period)
        await asyncio.wait({self._piped.exit})

    @property
    def _config_file(self) -> Path:
        return self._settings.home / "piped" / "config" / "piped-config.yaml"

    @property
    def _good_file(self) -> Path:
        return self._settings.home / "good-version"
