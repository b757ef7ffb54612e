# SPDX-License-Identifier: Apache-2.0
"""Watches one application: reads its live state when it may have changed and reports it."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from pipecd.git.commit import Commit
from pipecd.model.application import SyncStatus
from pipecd.model.backoff import Backoff
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.model.health import only_progress
from pipecd.piped.cache.changes import Watch
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.refresh import OutageLog
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.livestate.desired_state import DesiredState, DesiredStates
from pipecd.piped.livestate.notifications import HealthNotifier
from pipecd.piped.livestate.reader import LiveStateReader, LiveStateResult
from pipecd.piped.livestate.snapshot import create_snapshot, normalize_resources
from pipecd.piped.reporting.sync_states import SyncState, SyncStates
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import ResourceState
from pipecd.proto.service.piped_pb2 import ReportApplicationLiveStateRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True)
class WatchIntervals:
    """The intervals and deadlines of a watcher, in seconds."""

    poll: float = 60.0
    """Between two reads, as upstream has it."""
    poll_if_pushed: float = 300.0
    """The same where plugins push changes by themselves."""
    poll_while_deploying: float = 10.0
    """The same where they do not, while a deployment runs."""
    minimum: float = 0.3
    """Between two reads however often they are requested: changes come in bursts."""
    commit_grace: float = 1.0
    """For a commit to become a deployment, before it is reported as drift."""
    first_backoff: float = 5.0
    """After the first failure; each further one doubles it."""
    stale_after: float = 60.0
    """How long the last result counts although reads fail."""
    full_report: float = 1800.0
    """An unchanged live state is reported again after this."""


@dataclass(frozen=True, kw_only=True)
class WatcherContext:
    """What all watchers share."""

    api: ControlPlaneClient
    deployments: DeploymentCache
    heads: RepositoryHeads
    desired_states: DesiredStates
    reader: LiveStateReader
    states: SyncStates
    health: HealthNotifier
    now: Now = utc_now
    intervals: WatchIntervals = field(default_factory=WatchIntervals)
    outage: OutageLog = field(default_factory=lambda: OutageLog("live states"))
    random: Callable[[float, float], float] = random.uniform


@dataclass(frozen=True)
class _Reported:
    """The last live state that the control plane received, and when."""

    application: Application
    resources: tuple[ResourceState, ...]
    at: float


class ApplicationWatcher:
    """Reads and reports the live state of one application, one read at a time."""

    def __init__(self, application: Application, context: WatcherContext) -> None:
        self.application, self._context = application, context
        self._wakeup = Watch()
        self._is_requested, self._next_poll = True, 0.0
        self._commit = ""
        self._desired: DesiredState | None = None
        self._result: LiveStateResult | None = None
        self._reported: _Reported | None = None
        self._failures, self._failing_since, self._error = 0, 0.0, ""
        self._is_error_logged = False
        self._report_failures = 0

    def refresh_soon(self) -> None:
        """Requests a read as soon as possible."""
        self._is_requested = True
        self._wakeup.mark()

    def update(self, application: Application) -> None:
        """Takes over a changed application; changes that affect its live state request a read.

        The repository stays the same: an application that moves gets another watcher.
        """
        is_changed = _relevant_fields(application) != _relevant_fields(self.application)
        self.application = application
        if is_changed:
            self._commit = ""
            self.refresh_soon()

    async def run(self) -> None:
        self._context.heads.changes_of(self.application.git_path.repo.id).add(self._wakeup)
        while True:
            try:
                is_polled = await self._read_if_due()
            except (PipecdError, OSError) as e:
                self._fail(e)
                is_polled = True
            if is_polled:
                self._next_poll = asyncio.get_running_loop().time() + self._poll_interval()
            await asyncio.sleep(self._context.intervals.minimum)
            remaining = self._next_poll - asyncio.get_running_loop().time()
            if remaining <= 0 or not await self._wakeup.wait(remaining):
                self._is_requested = True

    async def _read_if_due(self) -> bool:
        """Reads if there is a reason to; returns whether the poll interval starts again."""
        head = self._context.heads.of(self.application.git_path.repo.id).commit
        if head is None:
            return True
        if await self._update_desired(head):
            await self._wakeup.wait(self._context.intervals.commit_grace if self._result else 0)
            self._is_requested = True
        if not self._is_requested or self._desired is None:
            return False
        self._is_requested = False
        was_deploying = self._is_deploying
        result = await self._context.reader.read(self.application, self._desired)
        had_resources = self._result is None or self._result.resources is not None
        if result.resources is None and had_resources:
            # No plugin supports live states, so no working copy is needed any more.
            await self._context.desired_states.remove(self.application.id)
        self._result, self._failures = result, 0
        if self._is_error_logged:
            log.info("live state can be read again", **self._log_fields)
        self._error, self._is_error_logged = "", False
        if result.resources is not None:
            await self._report(result.resources)
        # A comparison during a deployment is neither about the old nor about the new state.
        if not was_deploying and not self._is_deploying:
            self._context.states.set_live(self.application, result.sync_state)
        return True

    async def _update_desired(self, head: Commit) -> bool:
        """Updates the desired state to the head; returns whether it changed."""
        if head.hash == self._commit:
            return False
        before, self._desired = self._desired, None
        try:
            desired = await self._context.desired_states.at(self.application, head.hash)
        except NotFound as e:
            # A missing configuration is an invalid one.
            raise UserMistake(str(e)) from e
        self._commit = head.hash
        if before is not None and before.digest == desired.digest:
            # The older commit has the same content, and its working copy can be reused.
            self._desired = before
            return False
        self._desired = desired
        return True

    async def _report(self, resources: tuple[ResourceState, ...]) -> None:
        now, clock = to_unix(self._context.now()), asyncio.get_running_loop().time()
        before = self._reported
        normalized = normalize_resources(resources, before.resources if before else (), now=now)
        if (
            before is not None
            and before.resources == normalized
            and _relevant_fields(before.application) == _relevant_fields(self.application)
            and clock < before.at + self._context.intervals.full_report
        ):
            return
        snapshot = create_snapshot(self.application, normalized, now=now)
        try:
            await self._context.api.report_application_live_state(
                ReportApplicationLiveStateRequest(snapshot=snapshot)
            )
        except PipecdError as e:
            self._context.outage.failed(e)
            self._report_failures += 1
            return
        self._context.outage.succeeded()
        if not only_progress(normalized):
            self._context.health.on_health(self.application, snapshot.health_status)
        self._reported, self._report_failures = _Reported(self.application, normalized, clock), 0

    def _fail(self, error: PipecdError | OSError) -> None:
        """Reports an error: mistakes of the user at once, other errors when they last."""
        now = asyncio.get_running_loop().time()
        if not self._error:
            self._failing_since = now
        self._failures += 1
        # The working copy of the commit may be what is missing.
        self._is_requested, self._commit, self._desired = True, "", None
        is_mistake = isinstance(error, UserMistake)
        if self._error != str(error):
            self._error = str(error)
            # The sync state reports a mistake, as other parts of piped find it too.
            self._is_error_logged |= not is_mistake
            write = log.debug if is_mistake else log.warning
            write("live state cannot be read", error=self._error, **self._log_fields)
        is_stale = now - self._failing_since >= self._context.intervals.stale_after
        if is_mistake or not self._result or is_stale:
            self._result = None
            status = SyncStatus.INVALID_CONFIG if is_mistake else SyncStatus.UNKNOWN
            if not self._is_deploying:
                state = SyncState.because(status, self._error)
                self._context.states.set_live(self.application, state)

    def _poll_interval(self) -> float:
        """The time until the next read, jittered so that applications do not poll at once."""
        intervals = self._context.intervals
        is_pushed = self._result is not None and self._result.is_pushed
        interval = intervals.poll_if_pushed if is_pushed else intervals.poll
        if not is_pushed and self._is_deploying:
            interval = min(interval, intervals.poll_while_deploying)
        if failures := self._failures or self._report_failures:
            interval = Backoff(intervals.first_backoff, interval).after(failures)
        return self._context.random(0.8 * interval, 1.2 * interval)

    @property
    def _is_deploying(self) -> bool:
        return bool(self._context.deployments.not_completed_of(self.application.id))

    @property
    def _log_fields(self) -> dict[str, str]:
        return {"application": self.application.id, "application_name": self.application.name}


def _relevant_fields(application: Application) -> object:
    """The fields that decide how the live state is read and reported."""
    targets = application.deploy_targets_by_plugin
    return (
        application.name,
        application.kind,
        application.git_path.SerializeToString(deterministic=True),
        application.platform_provider or application.cloud_provider,
        {plugin: tuple(each.deploy_targets) for plugin, each in targets.items()},
    )
