# SPDX-License-Identifier: Apache-2.0
"""Reports the sync state of each application: SYNCED, OUT_OF_SYNC, DEPLOYING, INVALID_CONFIG.

Three components contribute: the trigger knows whether the configuration is valid, the cached
deployments whether one is in progress, and the live state watcher how the live state compares with
Git. This is the only component that reports the result, and only when it changes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import Changes, Watch
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model import application_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.service.piped_pb2 import ReportApplicationSyncStateRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_RESYNC = 60.0
_LONGEST_SHORT_REASON = 200


@dataclass(frozen=True)
class SyncState:
    """A sync status with its reason, and a short reason of one line."""

    status: SyncStatus
    short_reason: str = ""
    reason: str = ""

    @classmethod
    def because(cls, status: SyncStatus, reason: str) -> "SyncState":
        """Returns a state whose short reason is the first line of the reason."""
        return cls(status, reason.strip().split("\n", 1)[0][:_LONGEST_SHORT_REASON], reason)

    @classmethod
    def of(cls, message: ApplicationSyncState) -> "SyncState":
        """Returns the state in a message; a status of a later version becomes UNKNOWN."""
        try:
            status = SyncStatus(message.status)
        except ValueError:
            status = SyncStatus.UNKNOWN
        return cls(status, message.short_reason, message.reason)


@dataclass(frozen=True)
class SyncFacts:
    """What decides the sync state of an application.

    `config_error` is empty if the configuration is valid and None if it has not been read yet.
    `live` is how the live state compares with Git, None if they were not compared since the last
    deployment.
    """

    config_error: str | None = None
    is_deploying: bool = False
    live: SyncState | None = None


def decide_sync_state(facts: SyncFacts, reported: SyncState) -> SyncState:
    """Returns the state to report for an application whose last reported state is `reported`."""
    if facts.config_error:
        return SyncState.because(SyncStatus.INVALID_CONFIG, facts.config_error)
    if facts.is_deploying:
        return SyncState(SyncStatus.DEPLOYING)
    return facts.live or reported


@dataclass(frozen=True)
class _Report:
    """A reported state, and how many polls of the applications had succeeded by then.

    `older` are earlier states that a poll in progress at that time may still return.
    """

    state: SyncState
    polls: int
    older: frozenset[SyncState]


OnSyncStateChange = Callable[[Application, SyncState, SyncState], None]


class SyncStates:
    """The sync state of each application, reported when it changes."""

    def __init__(
        self,
        api: ControlPlaneClient,
        applications: ApplicationCache,
        deployments: DeploymentCache,
        *,
        on_change: OnSyncStateChange | None = None,
        now: Now = utc_now,
    ) -> None:
        """`on_change` is called with an application and its state before and after."""
        self._api, self._now, self._on_change = api, now, on_change
        self._applications, self._deployments = applications, deployments
        self._config_errors: dict[str, str] = {}
        self._live: dict[str, SyncState] = {}
        self._reports: dict[str, _Report] = {}
        self._logged_errors: dict[str, str] = {}
        self._timestamps: dict[str, int] = {}
        # Applications whose facts have changed since they were last checked.
        self._changed: set[str] = set()
        self._woken, self._polled = Watch(), applications.changes.watch()
        self._deployed = deployments.changed_applications.watch(self._woken)
        # Notifies when an application became OUT_OF_SYNC.
        self.drift = Changes()

    def of(self, application: Application) -> SyncState:
        """Returns the state that the control plane has, as far as this piped can tell."""
        cached, report = self._cached(application), self._reports.get(application.id)
        if report is None:
            return cached
        polls_since = self._applications.poll_count - report.polls
        is_stale = polls_since <= 0 or (polls_since == 1 and cached in report.older)
        return report.state if is_stale else cached

    def has_invalid_config(self, application: Application) -> bool:
        """Whether the configuration is invalid, or was reported so and has not been read since.

        An INVALID_CONFIG of the live state is for the next comparison to clear.
        """
        error = self._config_errors.get(application.id)
        if error is None and application.id not in self._live:
            return self.of(application).status is SyncStatus.INVALID_CONFIG
        return bool(error)

    def set_config_error(self, application: Application, error: str) -> None:
        """The configuration is invalid; an empty error means that it is valid."""
        before = self._config_errors.get(application.id)
        if before == error:
            return
        self._config_errors[application.id] = error
        if not error and before:
            same = SyncState.because(SyncStatus.INVALID_CONFIG, before)
            if self._live.get(application.id) == same:
                # The live state watcher ran into the same error.
                del self._live[application.id]
        self._facts_changed(application)

    def set_live(self, application: Application, state: SyncState) -> None:
        """The live state was compared with Git while no deployment was in progress."""
        if self._live.get(application.id) != state:
            self._live[application.id] = state
            self._facts_changed(application)

    async def run(self) -> None:
        for cache in (self._applications, self._deployments):
            await cache.wait_until_loaded()
        self._applications.changes.add(self._woken)
        is_woken = False
        while True:
            if self._polled.taken() or not is_woken:
                self._changed |= self._forget_deleted()
            self._changed |= self._deployed.taken()
            changed, self._changed = self._changed, set()
            async with asyncio.TaskGroup() as tasks:
                for id_ in changed:
                    if (application := self._applications.get(id_)) is not None:
                        tasks.create_task(self._report(application))
            is_woken = await self._woken.wait(_RESYNC)

    def _cached(self, application: Application) -> SyncState:
        """Returns the state in the cached copy of the application."""
        return SyncState.of((self._applications.get(application.id) or application).sync_state)

    def _facts_changed(self, application: Application) -> None:
        """Wakes the loop; logs an invalid configuration once, and once that it is valid again."""
        self._changed.add(application.id)
        self._woken.mark()
        error, live = self._config_errors.get(application.id), self._live.get(application.id)
        if not error and live is not None and live.status is SyncStatus.INVALID_CONFIG:
            error = live.reason
        if (error or "") == self._logged_errors.get(application.id, ""):
            return
        self._logged_errors[application.id] = error or ""
        about = log.bind(application=application.id, application_name=application.name)
        if error:
            about.warning("application configuration is invalid", error=error)
        else:
            about.info("application configuration is valid again")

    def _forget_deleted(self) -> set[str]:
        """Forgets applications that no longer exist and returns the ids of those that do."""
        existing = {application.id for application in self._applications.all}
        for facts in (
            self._config_errors,
            self._live,
            self._reports,
            self._logged_errors,
            self._timestamps,
        ):
            for deleted in facts.keys() - existing:
                del facts[deleted]
        return existing

    def _next_timestamp(self, application: Application) -> int:
        """Returns the current time, or a later one: of two reports the later one has to count.

        The clock may have been set back, also since an earlier process reported.
        """
        last = max(
            self._timestamps.get(application.id, 0),
            (self._applications.get(application.id) or application).sync_state.timestamp,
        )
        timestamp = self._timestamps[application.id] = max(to_unix(self._now()), last + 1)
        return timestamp

    async def _report(self, application: Application) -> None:
        id_ = application.id
        is_deploying = bool(self._deployments.not_completed_of(id_))
        if is_deploying:
            # A comparison from before or during a deployment says nothing about its result.
            self._live.pop(id_, None)
        facts = SyncFacts(self._config_errors.get(id_), is_deploying, self._live.get(id_))
        reported = self.of(application)
        state = decide_sync_state(facts, reported)
        if state == reported:
            return
        message = ApplicationSyncState(
            status=application_pb2.ApplicationSyncStatus.ValueType(state.status),
            short_reason=state.short_reason,
            reason=state.reason,
            timestamp=self._next_timestamp(application),
        )
        try:
            await self._api.report_application_sync_state(
                ReportApplicationSyncStateRequest(application_id=id_, state=message)
            )
        except PipecdError as e:
            log.warning(
                "sync state not reported",
                application=id_,
                application_name=application.name,
                error=str(e),
            )
            return
        polls, last = self._applications.poll_count, self._reports.get(id_)
        is_recent = last is not None and polls < last.polls + 2
        older = last.older if last is not None and is_recent else frozenset[SyncState]()
        older |= {self._cached(application), reported}
        self._reports[id_] = _Report(state, polls, older)
        if self._on_change is not None:
            self._on_change(application, reported, state)
        if state.status is SyncStatus.OUT_OF_SYNC:
            self.drift.notify()
