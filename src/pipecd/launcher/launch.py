# SPDX-License-Identifier: Apache-2.0
"""Keeps one piped running, with the desired version and configuration.

A new version or configuration is started beside the running piped, which continues until the new
one is ready and takes over. A version that cannot stand by is started when the running one has
stopped. Either way, a piped that fails during its trial is replaced by the last good one at once,
and tried again after a growing backoff.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from pipecd.launcher.identity import Identity, identity_of
from pipecd.launcher.metrics import LauncherMetrics
from pipecd.launcher.plan import (
    LaunchedPiped,
    LaunchHistory,
    LaunchSpec,
    PlannedLaunch,
    lost_plugins,
    plan_launches,
)
from pipecd.launcher.process import LaunchFailed, PipedProcess, can_stand_by
from pipecd.launcher.release import Releases
from pipecd.launcher.source import LoadConfig
from pipecd.model.errors import PipecdError
from pipecd.observe.version import build_version
from pipecd.program.atomic_write import write_atomic
from pipecd.program.handover import Phase, PipedReport, StartOrder

log = structlog.get_logger()

ReadVersion = Callable[[Identity], Awaitable[str]]

_CONFIG_FILES = ("piped-config.yaml", "piped-config-2.yaml")
# What a takeover may take beyond the grace period for running stages: a running piped that does not
# react is fenced, and the new one opens repositories and starts plugins.
_TAKEOVER_SECONDS = 90.0


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of the launcher; a piped that runs for `trial` seconds counts as good."""

    home: Path
    arguments: Sequence[str] = ()
    check_interval: float = 60.0
    grace_period: float = 30.0
    start_timeout: float = 300.0
    trial: float = 30.0


@dataclass
class _ActivePiped:
    """The piped that works, and the end of its trial."""

    process: PipedProcess
    trial_until: float
    """Infinite while a piped that reports that it runs has not done so yet."""
    is_on_trial: bool = True
    replaced: PipedReport | None = None
    """What the piped before it could use."""

    @property
    def spec(self) -> LaunchSpec:
        return self.process.spec


@dataclass(kw_only=True)
class _Launch:
    """A launch in progress; it cannot be abandoned any more once the takeover has begun."""

    spec: LaunchSpec
    desired: LaunchSpec
    """What was desired when it began."""
    program: Sequence[str]
    stands_by: bool
    is_committed: bool = False
    task: asyncio.Task[None] = field(init=False)


class Launcher:
    """Starts piped, and replaces it when it ends or its version or configuration changes."""

    def __init__(
        self,
        load_config: LoadConfig,
        read_version: ReadVersion,
        releases: Releases,
        settings: LaunchSettings,
        metrics: LauncherMetrics | None = None,
    ) -> None:
        self._load_config, self._read_version = load_config, read_version
        self._releases, self._settings = releases, settings
        self._metrics = metrics or LauncherMetrics()
        self._desired: LaunchSpec | None = None
        self._active: _ActivePiped | None = None
        self._launch: _Launch | None = None
        self._next_launch_at = math.inf
        self._history = LaunchHistory()
        self._stands_by: dict[str, bool] = {}
        self._check_error = ""
        self._is_loaded = asyncio.Event()
        self._check_requested = asyncio.Event()

    async def run(self) -> None:
        """Checks at once, where a failure ends the launcher, and then at every interval."""
        with suppress(OSError, PipecdError):
            # The version that was good for an earlier launcher, with today's configuration.
            version = await asyncio.to_thread(self._good_file.read_text)
            good = LaunchSpec(version.strip(), await self._load_config())
            self._history = LaunchHistory(good)
        for name in _CONFIG_FILES:
            # A launcher that was killed leaves them, and they may contain the key of the piped.
            await asyncio.to_thread((self._config_directory / name).unlink, missing_ok=True)
        try:
            self._desired = await self._read_desired()
            self._is_loaded.set()
            await self._reconcile(self._desired)
            while True:
                await self._wait_until_due()
                await self._check()
        finally:
            await self._stop()

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
        running, desired, good = self._running, self._desired, self._history.good
        launch_error = self._history.failures_of(desired).error if desired else ""
        return json.dumps(
            {
                "launcher": build_version(),
                "desired": desired.version if desired else "",
                "running": running.spec.version if running else "",
                "starting": self._launch.spec.version if self._launch else "",
                "ready": running is not None and not running.is_on_trial,
                "lastGood": good.version if good else "",
                "error": self._check_error or launch_error,
            }
        ).encode()

    @property
    def _running(self) -> _ActivePiped | None:
        return self._active if self._active and self._active.process.is_running else None

    async def _wait_until_due(self) -> None:
        """Waits for the interval, a requested check, or news of a launch, a trial or the piped."""
        loop = asyncio.get_running_loop()
        timeout = min(self._settings.check_interval, self._next_launch_at - loop.time())
        requested = asyncio.create_task(self._check_requested.wait())
        temporary: list[asyncio.Task[object]] = [requested]
        events = set[asyncio.Task[object]]()
        if self._launch is not None:
            events.add(self._launch.task)
        elif (running := self._running) is not None:
            events.add(running.process.exit)
            if running.is_on_trial:
                timeout = min(timeout, running.trial_until - loop.time())
                if running.process.report(Phase.RUNNING) is None:
                    reached = asyncio.create_task(running.process.reached(Phase.RUNNING))
                    temporary.append(reached)
        try:
            await asyncio.wait(
                {*temporary, *events}, timeout=max(timeout, 0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in temporary:
                task.cancel()
            self._check_requested.clear()

    async def _settle(self) -> None:
        """Records the outcome of a launch or of a trial, if there is one."""
        if (launch := self._launch) is not None:
            if not launch.task.done():
                return
            self._launch = None
            if (error := launch.task.exception()) is not None:
                if not isinstance(error, PipecdError):
                    raise error
                self._launch_failed(launch.spec, str(error))
        if self._active is not None and self._active.is_on_trial:
            await self._evaluate_trial(self._active)

    async def _evaluate_trial(self, active: _ActivePiped) -> None:
        """Records a piped that has passed its trial, or has failed it."""
        spec, process, now = active.spec, active.process, asyncio.get_running_loop().time()
        has_better = self._history.good not in (None, spec)
        running = process.report(Phase.RUNNING)
        if running is not None and active.trial_until == math.inf:
            active.trial_until = now + self._settings.trial
        if not process.is_running:
            active.is_on_trial = False
            reason = await process.reason_of_exit()
            self._launch_failed(spec, f"piped {spec.version} {reason}")
        elif running and has_better and (lost := lost_plugins(active.replaced, running)):
            active.is_on_trial = False
            await process.end(grace=self._settings.grace_period)
            self._launch_failed(spec, _text_of_lost(spec, lost))
        elif now >= active.trial_until:
            await asyncio.to_thread(write_atomic, self._good_file, spec.version.encode())
            active.is_on_trial = False
            self._history = self._history.succeeded(spec)
            self._metrics.starts.labels("succeeded").inc()
            await self._releases.remove_except({spec.version, build_version()})

    def _launch_failed(self, spec: LaunchSpec, error: str) -> None:
        """Records a launch that failed, and whether a piped still runs."""
        running, now = self._running, asyncio.get_running_loop().time()
        self._history = self._history.failed(spec, error, at=now, interrupted=running is None)
        self._metrics.starts.labels("failed").inc()
        log.error(
            "piped not started, the running one continues" if running else "piped failed to start",
            version=spec.version,
            running=running.spec.version if running else "",
            failures=self._history.failures_of(spec).count,
            error=error,
        )

    async def _check(self) -> None:
        try:
            self._desired = await self._read_desired()
            self._check_error = ""
        except PipecdError as e:
            log.warning(
                "desired version or configuration cannot be read, keeping the last one",
                error=str(e),
            )
            self._check_error = str(e)
        # After the calls above, since what ends meanwhile is planned for below.
        await self._settle()
        if self._desired is None:
            return
        try:
            await self._reconcile(self._desired)
        except PipecdError as e:
            log.warning("piped not restarted", error=str(e))
            self._check_error = str(e)
        running = self._running
        self._metrics.up_to_date.set(running is not None and running.spec == self._desired)

    async def _read_desired(self) -> LaunchSpec:
        config = await self._load_config()
        return LaunchSpec(await self._read_version(identity_of(config)), config)

    async def _reconcile(self, desired: LaunchSpec) -> None:
        """Starts the desired piped, or else the best fallback, unless it runs already."""
        if self._launch is not None:
            if self._launch.is_committed or self._launch.desired == desired:
                return
            log.info(
                "another piped is desired, abandoning this one", version=self._launch.spec.version
            )
            await self._abandon_launch()
        active = self._active
        launches = plan_launches(
            desired,
            LaunchSpec(build_version(), desired.config),
            launched=LaunchedPiped(active.spec, active.process.exit_code) if active else None,
            history=self._history,
        )
        self._next_launch_at = math.inf
        for number, planned in enumerate(launches, start=1):
            if planned.at > asyncio.get_running_loop().time():
                self._next_launch_at = planned.at
                return
            try:
                await self._begin(planned, desired)
            except PipecdError as e:
                if number == len(launches):
                    raise
                log.warning(
                    "version cannot be fetched, trying another one",
                    version=planned.spec.version,
                    error=str(e),
                )
                self._check_error = str(e)
            else:
                return

    async def _begin(self, planned: PlannedLaunch, desired: LaunchSpec) -> None:
        """Fetches a version and begins to start it."""
        spec = planned.spec
        program = await self._releases.program(spec.version, is_v0=identity_of(spec.config).is_v0)
        if spec.version not in self._stands_by:
            is_installed = spec.version == build_version()
            self._stands_by[spec.version] = is_installed or await can_stand_by(program)
        launch = _Launch(
            spec=spec,
            desired=desired,
            program=program,
            stands_by=self._stands_by[spec.version],
        )
        if spec != desired and self._history.failures_of(desired).count:
            log.error(
                "desired version failed, going back to another one",
                desired=desired.version,
                version=spec.version,
            )
        log.info("starting piped", reason=planned.reason, version=spec.version)
        launch.task = asyncio.create_task(self._run_launch(launch), name=f"launch {spec.version}")
        self._launch = launch

    async def _run_launch(self, launch: _Launch) -> None:
        """Starts a piped and makes it the active one; raises LaunchFailed if it does not work."""
        spec, running = launch.spec, self._running
        start = partial(
            PipedProcess.start,
            spec,
            launch.program,
            f"--launcher-version={build_version()}",
            *self._settings.arguments,
            stands_by=launch.stands_by,
        )
        if running is None or not launch.stands_by:
            launch.is_committed = True
            await self._end_active()
            process = await start(config_file=self._config_file())
            process.send_order(StartOrder.START)
            self._activate(process)
            return
        successor = await start(config_file=self._config_file(beside=running.process))
        try:
            ready = await successor.wait_for(Phase.READY, within=self._settings.start_timeout)
            before = running.process.report(Phase.RUNNING)
            _refuse_lost_plugins(spec, before, ready)
            launch.is_committed = True
            if self._running is running and _can_hand_over(running.process, successor, ready):
                successor.send_order(StartOrder.TAKE_OVER)
                within = self._settings.grace_period + _TAKEOVER_SECONDS
                await successor.wait_for(Phase.RUNNING, within=within)
                await self._end_active()
            else:
                await self._end_active()
                successor.send_order(StartOrder.START)
        except BaseException:
            await successor.end(grace=self._settings.grace_period)
            raise
        self._activate(successor, replaced=before)

    def _activate(self, process: PipedProcess, replaced: PipedReport | None = None) -> None:
        trial_until = math.inf
        if not process.reports:
            trial_until = asyncio.get_running_loop().time() + self._settings.trial
        self._active = _ActivePiped(process, trial_until, replaced=replaced)
        log.info("piped started", version=process.spec.version)

    async def _abandon_launch(self) -> None:
        if self._launch is not None:
            self._launch.task.cancel()
            await asyncio.wait({self._launch.task})
            self._launch = None

    async def _end_active(self) -> None:
        if self._active is not None:
            await self._active.process.end(grace=self._settings.grace_period)

    async def _stop(self) -> None:
        """Ends the active piped, and one that is being started, at the same time."""
        await asyncio.gather(self._abandon_launch(), self._end_active())
        # A launch that was being activated meanwhile.
        await self._end_active()

    def _config_file(self, *, beside: PipedProcess | None = None) -> Path:
        """Returns a file for the configuration of a piped that no other one reads."""
        first, second = (self._config_directory / name for name in _CONFIG_FILES)
        return second if beside is not None and beside.config_file == first else first

    @property
    def _config_directory(self) -> Path:
        return self._settings.home / "piped" / "config"

    @property
    def _good_file(self) -> Path:
        return self._settings.home / "good-version"


def _can_hand_over(running: PipedProcess, successor: PipedProcess, ready: PipedReport) -> bool:
    """Whether the running piped hands over its lease to the successor.

    It does if it has one, and both have the same id at the same control plane.
    """
    report = running.report(Phase.RUNNING)
    if report is None or not report.has_lease or not ready.has_lease:
        return False
    one, other = identity_of(running.spec.config), identity_of(successor.spec.config)
    return (one.project, one.piped, one.address) == (other.project, other.piped, other.address)


def _refuse_lost_plugins(spec: LaunchSpec, before: PipedReport | None, after: PipedReport) -> None:
    """Raises LaunchFailed if a new piped cannot use what the one before it could use."""
    if lost := lost_plugins(before, after):
        raise LaunchFailed(_text_of_lost(spec, lost))


def _text_of_lost(spec: LaunchSpec, lost: Mapping[str, str]) -> str:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in lost.items())
    return f"piped {spec.version} cannot use what the running one uses: {reasons}"
