# SPDX-License-Identifier: Apache-2.0
"""Whether what runs is what Git says, application by application, told by one writer.

Several parts of piped know a piece: the trigger whether the configuration can be read, the list of
deployments whether one is under way, and whoever looks at the platform how it compares. The state
that follows from all of it is reported when it is another than what the control plane has.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.mirror.applications import ApplicationMirror
from pipecd.piped.mirror.changes import Changes, Watch, watch_any
from pipecd.piped.mirror.deployments import DeploymentMirror
from pipecd.proto.model import application_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.service.piped_pb2 import ReportApplicationSyncStateRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_EVERY = 60.0
_LONGEST_LINE = 200


@dataclass(frozen=True)
class Verdict:
    """How an application stands; the short reason is one line of what the reason tells."""

    status: SyncStatus
    short_reason: str = ""
    reason: str = ""

    @classmethod
    def because(cls, status: SyncStatus, reason: str) -> "Verdict":
        """One whose short reason is the first line of the reason."""
        return cls(status, reason.strip().split("\n", 1)[0][:_LONGEST_LINE], reason)

    @classmethod
    def of(cls, state: ApplicationSyncState) -> "Verdict":
        """The verdict in a message; a status of a later version is not known here."""
        try:
            status = SyncStatus(state.status)
        except ValueError:
            status = SyncStatus.UNKNOWN
        return cls(status, state.short_reason, state.reason)


@dataclass(frozen=True)
class Known:
    """What the parts of piped know of an application.

    `mistake` is what is wrong with the configuration: empty when nothing is, None when nobody has
    read it. `seen` is how the platform compares with Git, None when nobody has looked since the
    last deployment.
    """

    mistake: str | None = None
    is_deploying: bool = False
    seen: Verdict | None = None


def wanted(known: Known, told: Verdict) -> Verdict:
    """What the control plane should tell of an application, of which it tells `told`."""
    if known.mistake:
        return _wrong(known.mistake)
    if known.is_deploying:
        return Verdict(SyncStatus.DEPLOYING)
    return known.seen or told


def _wrong(mistake: str) -> Verdict:
    return Verdict.because(SyncStatus.INVALID_CONFIG, mistake)


@dataclass(frozen=True)
class _Told:
    """What was reported, and how often the applications had been read by then.

    `older` are the states before it that a copy under way at that time may still show.
    """

    verdict: Verdict
    reads: int
    older: frozenset[Verdict]


Listener = Callable[[Application, Verdict, Verdict], None]


class SyncStates:
    """Reports the state of each application when it changes, or when somebody else changed it."""

    def __init__(
        self,
        api: ControlPlaneClient,
        applications: ApplicationMirror,
        deployments: DeploymentMirror,
        *,
        on_change: Listener | None = None,
        now: Now = utc_now,
    ) -> None:
        """`on_change` hears of an application with its state before and after."""
        self._api, self._now, self._on_change = api, now, on_change
        self._applications, self._deployments = applications, deployments
        self._mistakes: dict[str, str] = {}
        self._seen: dict[str, Verdict] = {}
        self._told: dict[str, _Told] = {}
        # What the log was told to be wrong with the configurations.
        self._logged: dict[str, str] = {}
        # The applications of which something else is known now.
        self._news: set[str] = set()
        self._woken, self._mirrored = Watch(), watch_any(applications.changes, deployments.changes)
        # Tells when an application was found to differ from Git.
        self.drift = Changes()

    def of(self, application: Application) -> Verdict:
        """What the control plane tells of an application, as far as it is known here."""
        shown, told = self._shown(application), self._told.get(application.id)
        if told is None:
            return shown
        newer = self._applications.reads - told.reads
        is_older = newer <= 0 or (newer == 1 and shown in told.older)
        return told.verdict if is_older else shown

    def _shown(self, application: Application) -> Verdict:
        """The state in the last copy of the applications."""
        return Verdict.of((self._applications.get(application.id) or application).sync_state)

    def is_invalid(self, application: Application) -> bool:
        """Whether the configuration is known to be wrong, or said to be without having been read.

        What a look at the platform finds wrong is for the next look to clear.
        """
        mistake = self._mistakes.get(application.id)
        if mistake is None and application.id not in self._seen:
            return self.of(application).status is SyncStatus.INVALID_CONFIG
        return bool(mistake)

    def invalid(self, application: Application, reason: str) -> None:
        """The configuration is wrong."""
        if self._mistakes.get(application.id) != reason:
            self._mistakes[application.id] = reason
            self._learned(application)

    def valid(self, application: Application) -> None:
        """The configuration is right."""
        before = self._mistakes.get(application.id)
        if before == "":
            return
        self._mistakes[application.id] = ""
        if before and self._seen.get(application.id) == _wrong(before):
            # The same mistake was found by whoever looked at the platform.
            del self._seen[application.id]
        self._learned(application)

    def seen(self, application: Application, verdict: Verdict) -> None:
        """Somebody looked at the platform while no deployment was under way."""
        if self._seen.get(application.id) != verdict:
            self._seen[application.id] = verdict
            self._learned(application)

    async def run(self) -> None:
        """Reports what parts of piped get to know, and follows deployments and other writers."""
        for mirror in (self._applications, self._deployments):
            await mirror.read()
            mirror.changes.add(self._woken)
        is_told = False
        while True:
            if await self._mirrored.wait(0) or not is_told:
                self._news |= self._forget()
            news, self._news = self._news, set()
            for id_ in news:
                if (application := self._applications.get(id_)) is not None:
                    await self._settle(application)
            is_told = await self._woken.wait(_EVERY)

    def _learned(self, application: Application) -> None:
        """Something else is known; a mistake is logged once, whoever finds it, and its end too."""
        self._news.add(application.id)
        self._woken.mark()
        mistake, seen = self._mistakes.get(application.id), self._seen.get(application.id)
        if not mistake and seen is not None and seen.status is SyncStatus.INVALID_CONFIG:
            mistake = seen.reason
        if (mistake or "") == self._logged.get(application.id, ""):
            return
        self._logged[application.id] = mistake or ""
        if mistake:
            log.warning("configuration is invalid", application=application.id, error=mistake)
        else:
            log.info("configuration is valid again", application=application.id)

    def _forget(self) -> set[str]:
        """Forgets applications that are gone and returns those that are there."""
        there = {application.id for application in self._applications.all}
        for known in (self._mistakes, self._seen, self._told, self._logged):
            for gone in known.keys() - there:
                del known[gone]
        return there

    def _known(self, application: Application) -> Known:
        is_deploying = bool(self._deployments.open_of(application.id))
        if is_deploying:
            # What was seen before or amid a deployment says nothing about what it leaves.
            self._seen.pop(application.id, None)
        return Known(
            self._mistakes.get(application.id), is_deploying, self._seen.get(application.id)
        )

    async def _settle(self, application: Application) -> None:
        told = self.of(application)
        verdict = wanted(self._known(application), told)
        if verdict == told:
            return
        try:
            await self._api.report_application_sync_state(self._request(application, verdict))
        except PipecdError as e:
            log.warning("state not reported", application=application.id, error=str(e))
            return
        self._told[application.id] = _Told(
            verdict, self._applications.reads, self._older(application) | {told}
        )
        if self._on_change is not None:
            self._on_change(application, told, verdict)
        if verdict.status is SyncStatus.OUT_OF_SYNC:
            self.drift.notify()

    def _older(self, application: Application) -> frozenset[Verdict]:
        """The states that a copy which is under way now may show."""
        before = self._told.get(application.id)
        is_recent = before is not None and self._applications.reads < before.reads + 2
        earlier = before.older if before is not None and is_recent else frozenset[Verdict]()
        return earlier | {self._shown(application)}

    def _request(
        self, application: Application, verdict: Verdict
    ) -> ReportApplicationSyncStateRequest:
        state = ApplicationSyncState(
            status=application_pb2.ApplicationSyncStatus.ValueType(verdict.status),
            short_reason=verdict.short_reason,
            reason=verdict.reason,
            timestamp=to_unix(self._now()),
        )
        return ReportApplicationSyncStateRequest(application_id=application.id, state=state)
