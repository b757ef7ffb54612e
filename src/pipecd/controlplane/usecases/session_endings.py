# SPDX-License-Identifier: Apache-2.0
"""Ends sessions, and knows in every replica which ones have ended.

Each replica keeps the endings in memory. A signal makes the others read what is new; they also poll
every second, for installations whose replicas do not share a bus.
"""

import asyncio
from contextlib import suppress

import structlog

from pipecd.controlplane.auth.ended_sessions import EndedSessions, EndingScope, EndingTarget
from pipecd.controlplane.auth.sessions import MAX_TTL, VerifiedSession
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.sign_ins import SessionEnding
from pipecd.controlplane.datastore.sign_ins import SessionEndings as StoredEndings
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError

log = structlog.get_logger()

POLL_SECONDS = 1.0
# A transaction may be committed this long after the time of its ending.
OVERLAP_MILLIS = 60_000
CLEANUP_SECONDS = 3600


class SessionEndings:
    """Ends sessions of users; `run` receives the endings of other replicas."""

    def __init__(self, stored: StoredEndings, bus: Bus, now: Now = utc_now) -> None:
        self._stored, self._bus, self._now = stored, bus, now
        self._known = EndedSessions()
        self._is_loaded = False
        self._requests = self._finished = self._next_cleanup = 0
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Reads new endings when another replica signals them, and every second."""
        async with self._bus.subscribe(only=frozenset({Topic.SESSION})) as signals:
            is_failing = False
            while True:
                signal = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        signal = await anext(signals)
                if signal is not None and signal.topic is Topic.EVERYTHING:
                    self._is_loaded = False
                try:
                    await self.refresh()
                except PipecdError as e:
                    if not is_failing:
                        log.warning("endings of sessions not readable, retrying", error=str(e))
                    is_failing = True
                else:
                    is_failing = False

    async def refresh(self) -> None:
        """Reads the endings that were stored before this call; concurrent calls share a query."""
        self._requests += 1
        request = self._requests
        async with self._lock:
            if self._finished >= request:
                return
            latest = self._requests
            now = to_unix(self._now())
            since = self._known.latest_millis - OVERLAP_MILLIS if self._is_loaded else 0
            self._known.add(await self._stored.since(since, now=now))
            if now >= self._next_cleanup:
                self._known.drop_expired(now)
                self._next_cleanup = now + CLEANUP_SECONDS
            self._is_loaded, self._finished = True, latest

    async def contain(self, session: VerifiedSession) -> bool:
        """Whether the session has ended."""
        if not self._is_loaded:
            await self.refresh()
        return self._known.contain(session)

    def issue_millis(self) -> int:
        """The time of issue of a session that begins now."""
        return self._known.issue_millis(self._now_millis())

    async def end_session(self, session: VerifiedSession) -> None:
        """Ends one session; those of the same user in other browsers stay."""
        target = EndingTarget(EndingScope.SESSION, session.id)
        await self._end(session.user.project, (target,), session.expires_at)
        await self._bus.publish(Signal(Topic.SESSION, session.id, session.user.project))

    async def end(self, project: str, *targets: EndingTarget) -> None:
        """Ends all sessions of these targets that have begun until now."""
        if not targets:
            return
        await self._end(project, targets, to_unix(self._now() + MAX_TTL))
        log.info("sessions ended", project=project, targets=[t.scope.value for t in targets])
        await self._bus.publish(Signal(Topic.SESSION, "", project))

    async def _end(self, project: str, targets: tuple[EndingTarget, ...], expires_at: int) -> None:
        # The time of the new ending must be after that of the endings of other replicas.
        await self.refresh()
        ended_at = self._known.ending_millis(self._now_millis())
        endings = [
            SessionEnding(project, target.scope.value, target.stored_subject, ended_at, expires_at)
            for target in targets
        ]
        await self._stored.add(endings)
        self._known.add(endings)

    def _now_millis(self) -> int:
        return int(self._now().timestamp() * 1000)
